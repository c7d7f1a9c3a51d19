"""What is written of judged click models: a row a model, a row a position, a row a parameter."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from posbias.core.browsing.em import FittedModel
from posbias.core.browsing.table import parameter_table
from posbias.core.judging.measures import Measured, ModelMeasures, by_log_likelihood, differences, positions
from posbias.core.judging.relevance import Dependence
from posbias.core.judging.sums import EDGES, SharedSums
from posbias.core.models.click_model import ClickModel, ExaminationModel
from posbias.core.models.model import FactorisedModel
from posbias.core.schema import IMPRESSIONS, POSITION

JUDGED = ("ndcg", "auc", "dependence_on_ranker", "dependence_p_value")
"""Columns that need judgments."""


def model_table(
    models: Sequence[ClickModel],
    fitted: Sequence[FittedModel],
    measures: Sequence[ModelMeasures],
    judged: Mapping[str, Mapping[str, float | None]],
) -> pl.DataFrame:
    """The models, the best first: their measures, the difference to the best, and how they were fitted.

    Args:
        models: them.
        fitted: with their parameters.
        measures: by held-out pages.
        judged: of a model's name, what judgments say of its relevance; empty without judgments.
    """
    apart = differences(measures)
    rows: list[dict[str, object]] = []
    for number in by_log_likelihood(measures):
        model, one = models[number], measures[number]
        by_row = "row" if isinstance(model, ExaminationModel) else "none"
        examination = "cell" if isinstance(model, FactorisedModel) else by_row
        rows.append(
            {
                "model": model.name,
                "log_likelihood": one.log_likelihood.value,
                "std_error": one.log_likelihood.std_error,
                "difference": apart[number].value,
                "difference_std_error": apart[number].std_error,
                "significant": apart[number].significant,
                "perplexity": one.perplexity.value,
                "perplexity_std_error": one.perplexity.std_error,
                "conditional_perplexity": one.conditional_perplexity.value,
                "conditional_perplexity_std_error": one.conditional_perplexity.std_error,
                "rate_error": one.rate_error,
                "calibration_error": one.calibration_error,
                "impossible_clicks": one.impossible_clicks,
                "examination": examination,
                "parameters": sum(values.size for values in fitted[number].parameters.values()),
                "passes": fitted[number].passes,
                "converged": fitted[number].converged,
                **(dict.fromkeys(JUDGED) if judged else {}),
                **judged.get(model.name, {}),
            }
        )
    schema: dict[str, type[pl.Float64]] = dict.fromkeys(JUDGED, pl.Float64) if judged else {}
    return pl.DataFrame(rows, schema_overrides=schema, infer_schema_length=None)


def of_relevance(ndcg: float | None, auc: float | None, dependence: Dependence | None) -> dict[str, float | None]:
    """The columns of a model that judgments allow."""
    found = (None, None) if dependence is None else (dependence.correlation, dependence.p_value)
    values = (ndcg, auc, *found)
    return {
        name: None if value is None or np.isnan(value) else value for name, value in zip(JUDGED, values, strict=True)
    }


def position_table(models: Sequence[ClickModel], measures: Sequence[ModelMeasures], shared: SharedSums) -> pl.DataFrame:
    """Perplexity by model and position, with how often the position was held out."""
    frames: list[pl.DataFrame] = []
    for number in by_log_likelihood(measures):
        columns: dict[str, object] = {
            "model": models[number].name,
            POSITION: pl.Series(positions(shared), dtype=pl.Int32),
        }
        for name in ("perplexity", "conditional_perplexity"):
            found: list[Measured] = getattr(measures[number], f"{name}_by_position")
            columns |= {name: [one.value for one in found], f"{name}_std_error": [one.std_error for one in found]}
        frames.append(pl.DataFrame(columns | {IMPRESSIONS: shared.impressions[0][positions(shared)]}))
    return pl.concat(frames)


def calibration_table(models: Sequence[ClickModel], measures: Sequence[ModelMeasures]) -> pl.DataFrame:
    """Clicks against predicted clicks, given the clicks above, by bin of predicted probability; only bins in use."""
    frames: list[pl.DataFrame] = []
    for number in by_log_likelihood(measures):
        predicted, clicks, impressions = measures[number].sums.predicted
        used = np.flatnonzero(impressions > 0)
        frames.append(
            pl.DataFrame(
                {
                    "model": [models[number].name] * len(used),
                    "predicted_from": EDGES[:-1][used],
                    "predicted_to": EDGES[1:][used],
                    IMPRESSIONS: impressions[used],
                    "predicted_rate": predicted[used] / impressions[used],
                    "click_rate": clicks[used] / impressions[used],
                }
            )
        )
    return pl.concat(frames)


def parameters_table(models: Sequence[ClickModel], fitted: Sequence[FittedModel]) -> pl.DataFrame:
    """The parameters of all models; see `parameter_table`, with `model` first."""
    return pl.concat(
        parameter_table(model.parameters, one).select(pl.lit(model.name).alias("model"), pl.exclude("std_error"))
        for model, one in zip(models, fitted, strict=True)
    )
