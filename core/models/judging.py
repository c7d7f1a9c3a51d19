"""Evaluation of click models on held-out clicks: sums over pages, measures, bootstrap errors, tables.

In a bootstrap sample every session counts a Poisson(1) number of times, so that parts of a log are summed independently
and in bounded memory. The draws are the same for all models: differences are paired.

    log-likelihood           mean over sessions of the mean over their positions of ln P(c_r | c_1 .. c_(r-1))
    perplexity               mean over positions k of 2^(- mean log2 P(c_k)), marginal over the clicks above
    conditional perplexity   the same with P(c_k | clicks above)
    rate error               root mean square of predicted minus observed click rate by (query, document) and position
    calibration error        mean over impressions of |clicks - predicted clicks| of their bin of predicted probability

AUC: the probability that a relevant document (grade above 0) has a larger value than an irrelevant document of its
query, ties counting one half.

*Debiasedness.* Given the relevance of documents, a model's values should be independent of their positions. The
dependence is measured by rho, the correlation of the normal scores of value and mean shown position within documents of
one query and grade (under a normal copula, their mutual information is - 1/2 log(1 - rho^2)), and tested by permuting
places within these groups.

Sources: Deffayet, Hager, Renders & de Rijke 2023 (SIGIR: conditional mutual information with the production ranker,
there estimated by nearest neighbours); Agarwal et al. 2005 (AUC).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
import scipy

from posbias.core.models import ClickModel, ExaminationModel, FactorisedModel
from posbias.core.models.em import ModelEstimate, parameter_table
from posbias.core.models.page_matrices import SMALLEST_PROBABILITY, Floats, PageBatch, Parameters, click_log_likelihood
from posbias.core.schema import CLICKS, IMPRESSIONS, POSITION, QUERY

EDGES = np.array([0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0])
"""Edges of the calibration bins of predicted probability."""

_PAGES, _NUMBERS = 1 << 13, 1 << 23  # per block
_UNIT = "unit"


def sample_weights(pages: PageBatch, samples: int, seed: int, number: int) -> Floats:
    """The weights of the pages of a batch, then those of B bootstrap samples, shape (B + 1, N).

    Args:
        pages: the batch.
        samples: B, bootstrap samples.
        seed: of the draws.
        number: of the batch in the log; each batch has its own draws.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
    weights = np.empty((samples + 1, pages.n_pages))
    weights[0] = pages.weight
    for row in weights[1:]:  # one by one, so that only one row is in memory as whole numbers, too
        row[:] = rng.poisson(pages.weight)
    return weights


JudgedModel = tuple[ClickModel, Parameters]
"""A model with its parameters."""


class ModelSums:
    """Sums of one model over the log, then over each of B bootstrap samples."""

    def __init__(self, samples: int, n_positions: int) -> None:
        shape = samples + 1, n_positions + 1
        self.log_likelihood = np.zeros(samples + 1)  # over sessions, of the mean over positions of ln P(c_r | above)
        self.marginal = np.zeros(shape)  # by position, of log2 P(C_k = c_k)
        self.given_clicks = np.zeros(shape)  # by position, of log2 P(c_k | clicks above)
        self.impossible = 0.0  # clicks of probability 0 by the model
        self.predicted = np.zeros((3, len(EDGES) - 1))  # by bin: predicted clicks, clicks and impressions
        self.squared = 0.0  # (predicted - observed click rate)^2 by unit and position, weighted by impressions
        self.compared = 0.0  # impressions in `squared`


class SharedSums:
    """Numbers of sessions and impressions, common to all models; shapes as in `ModelSums`."""

    def __init__(self, samples: int, n_positions: int) -> None:
        self.n_positions = n_positions
        self.sessions = np.zeros(samples + 1)
        self.impressions = np.zeros((samples + 1, n_positions + 1))


def add_pages(
    judged: Sequence[JudgedModel],
    batches: Sequence[PageBatch],
    weights: Floats,
    sums: Sequence[ModelSums],
    shared: SharedSums,
) -> pl.DataFrame:
    """Add a batch of pages to the sums of all models.

    Args:
        judged: the models.
        batches: the same pages for each model, with the unit numbers of the model.
        weights: as from `sample_weights`, shape (B + 1, N).
        sums: of each model.
        shared: of all models.

    Returns:
        By `unit` of the first model and `position`: `impressions`, `clicks`, and the clicks predicted by each model.
    """
    rates: list[pl.DataFrame] = []
    n_positions, n_bins = shared.n_positions, len(EDGES) - 1
    n_pages = min(_PAGES, _NUMBERS // (n_positions + 1))
    for start in range(0, batches[0].n_pages, n_pages):
        block = slice(start, start + n_pages)
        weight, pieces = weights[:, block], [batch.take(block) for batch in batches]
        first = pieces[0]
        shown, row_weight = first.shown, weight[0][:, np.newaxis] * first.shown
        shared.sessions += weight.sum(axis=1)
        shared.impressions += weight @ _by_position(shown.astype(np.float64), first, n_positions)
        columns = {
            _UNIT: first.unit[shown],
            POSITION: first.position[shown],
            IMPRESSIONS: row_weight[shown],
            CLICKS: row_weight[shown] * first.click[shown],
        }
        for number, ((model, parameters), pages, total) in enumerate(zip(judged, pieces, sums, strict=True)):
            given, marginal = model.given_clicks(parameters, pages), model.click_probability(parameters, pages)
            given_logs, marginal_logs = (click_log_likelihood(p, pages) * shown for p in (given, marginal))
            total.log_likelihood += weight @ (given_logs.sum(axis=1) / np.maximum(shown.sum(axis=1), 1))
            total.given_clicks += weight @ _by_position(given_logs / np.log(2), pages, n_positions)
            total.marginal += weight @ _by_position(marginal_logs / np.log(2), pages, n_positions)
            total.impossible += float((row_weight * (pages.click & (given <= SMALLEST_PROBABILITY))).sum())
            place = np.clip(np.searchsorted(EDGES, given, side="right") - 1, 0, n_bins - 1).ravel()
            for row, values in enumerate((given, pages.click.astype(np.float64), np.ones(given.shape))):
                total.predicted[row] += np.bincount(place, (row_weight * values).ravel(), minlength=n_bins)
            columns[f"predicted {number}"] = row_weight[shown] * marginal[shown]
        rates.append(pl.DataFrame(columns).group_by(_UNIT, POSITION, maintain_order=True).sum())
    return add_up_rates(rates)


def add_up_rates(rates: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Sum the rates of several batches by unit and position."""
    return pl.concat(rates).group_by(_UNIT, POSITION, maintain_order=True).sum()


def add_rates(rates: pl.DataFrame, sums: Sequence[ModelSums]) -> None:
    """Add squared errors of predicted click rates to the sums of all models.

    Args:
        rates: as from `add_pages`, complete for each unit.
        sums: of each model.
    """
    impressions = rates[IMPRESSIONS].to_numpy()
    observed = rates[CLICKS].to_numpy() / impressions
    for number, total in enumerate(sums):
        error = rates[f"predicted {number}"].to_numpy() / impressions - observed
        total.squared += float(impressions @ error**2)
        total.compared += float(impressions.sum())


def _by_position(values: Floats, pages: PageBatch, n_positions: int) -> Floats:
    """Rearrange values by rank, shape (N, L), by position, shape (N, K + 1)."""
    by_position = np.zeros((pages.n_pages, n_positions + 1))
    rows = np.arange(pages.n_pages)
    for rank in range(pages.n_ranks):
        by_position[rows, pages.position[:, rank]] += values[:, rank]
    return by_position


LEVEL = 0.05
"""Familywise level of the differences between the best model and all others."""

LEAST_DIFFERENCE = 5e-6
"""Half of the last decimal of the table, in nats. Bounding probabilities by 1e-6 changes the log-likelihood of equal
models by a few times 1e-9."""


class ModelMeasures:
    """Measures of one model; those with an error for the log, then for each of B bootstrap samples."""

    def __init__(self, sums: ModelSums, shared: SharedSums) -> None:
        impressions = shared.impressions[:, shared.impressions[0] > 0]  # shape (B + 1, K'), as all arrays by position
        drawn = impressions > 0
        self.log_likelihood = sums.log_likelihood / np.maximum(shared.sessions, 1)  # shape (B + 1,)
        self.perplexity_by_position, self.conditional_perplexity_by_position = (
            np.exp2(-logs[:, shared.impressions[0] > 0] / np.maximum(impressions, 1e-300))
            for logs in (sums.marginal, sums.given_clicks)
        )
        self.perplexity, self.conditional_perplexity = (
            np.where(drawn, by_position, 0.0).sum(axis=1) / np.maximum(drawn.sum(axis=1), 1)
            for by_position in (self.perplexity_by_position, self.conditional_perplexity_by_position)
        )
        self.rate_error = float(np.sqrt(sums.squared / sums.compared)) if sums.compared else float("nan")
        self.predicted = predicted, clicks, shown = sums.predicted
        self.calibration_error = float(np.abs(clicks - predicted).sum() / max(float(shown.sum()), 1.0))
        self.impossible_clicks = sums.impossible  # their probability counts as 1e-6


def std_error(samples: Floats) -> Floats:
    """Bootstrap standard errors, shape (...), of measures of the log and B samples, (B + 1, ...); NaN if B < 2."""
    return np.std(samples[1:], axis=0, ddof=1) if len(samples) > 2 else np.full(samples.shape[1:], np.nan)  # noqa: PLR2004


def by_log_likelihood(measures: Sequence[ModelMeasures]) -> list[int]:
    """Sort the models' numbers, the best first."""
    return sorted(range(len(measures)), key=lambda number: -measures[number].log_likelihood[0])


def differences_from_best(measures: Sequence[ModelMeasures]) -> list[tuple[float, float, bool]]:
    """The log-likelihood of each model minus that of the best, its paired standard error, and its significance.

    By the normal quantile at Bonferroni's level. Differences below `LEAST_DIFFERENCE` are never significant.
    """
    best = measures[by_log_likelihood(measures)[0]].log_likelihood
    limit = -float(scipy.special.ndtri(LEVEL / 2 / max(len(measures) - 1, 1)))
    compared: list[tuple[float, float, bool]] = []
    for model in measures:
        paired = model.log_likelihood - best
        difference, error = float(paired[0]), float(std_error(paired))
        compared.append((difference, error, -difference > max(limit * error, LEAST_DIFFERENCE)))
    return compared


VALUE, GRADE, PLACE = "value", "grade", "place"
"""Columns: the model's relevance, the judged grade, and the mean position of the document in the log."""

_SMALLEST_GROUP = 2
_PERMUTATIONS = 999


def auc(judged: pl.DataFrame) -> float:
    """AUC over pairs of documents of a query; NaN if no query has relevant and irrelevant documents.

    Args:
        judged: QUERY, VALUE and GRADE.
    """
    ranked = judged.select(
        QUERY, pl.col(VALUE).rank("average").over(QUERY).alias("rank"), (pl.col(GRADE) > 0).alias("relevant")
    )
    by_query = ranked.group_by(QUERY).agg(
        pl.col("rank").filter("relevant").sum().alias("sum"),
        pl.col("relevant").sum().cast(pl.Float64).alias("n"),
        (~pl.col("relevant")).sum().cast(pl.Float64).alias("others"),
    )
    n, others, ranks = (by_query[name].to_numpy() for name in ("n", "others", "sum"))
    pairs = float((n * others).sum())
    return float((ranks - n * (n + 1) / 2)[n * others > 0].sum() / pairs) if pairs else float("nan")


def dependence_on_ranker(judged: pl.DataFrame, seed: int) -> tuple[float, float] | None:
    """Partial correlation rho of values with places, given the grade, and its p-value by permutation.

    Rho < 0 if documents that were shown higher have larger values. None if no two documents share a query and a grade,
    or if values or places do not vary within them.

    Args:
        judged: QUERY, VALUE, GRADE and PLACE.
        seed: of the permutations.
    """
    groups = judged.with_columns(pl.len().over(QUERY, GRADE).alias("size")).filter(pl.col("size") >= _SMALLEST_GROUP)
    if not groups.height:
        return None
    rank, size = (pl.col(VALUE, PLACE).rank("average") - 0.5).over(QUERY, GRADE), pl.col("size")
    shares = groups.select(QUERY, GRADE, rank / size)
    # Normal scores: ranks within query and grade as quantiles of the normal distribution, of mean 0 there
    scores = shares.with_columns(
        pl.Series(name, scipy.special.ndtri(shares[name].to_numpy())) for name in (VALUE, PLACE)
    )
    centred = scores.select(pl.col(VALUE, PLACE) - pl.col(VALUE, PLACE).mean().over(QUERY, GRADE))
    value, place = (centred[name].to_numpy() for name in (VALUE, PLACE))
    group = groups.select(pl.struct(QUERY, GRADE).rank("dense")).to_series().to_numpy()
    if not (value @ value > 0 and place @ place > 0):
        return None
    rho = _correlation(value, place)
    rng = np.random.default_rng(seed)
    order = np.argsort(group, kind="stable")
    value, place, group = value[order], place[order], group[order]
    beyond = 1
    for _ in range(_PERMUTATIONS):
        drawn = place[np.lexsort((rng.random(len(place)), group))]
        beyond += abs(_correlation(value, drawn)) >= abs(rho) - 1e-12
    return float(np.clip(rho, -1 + 1e-12, 1 - 1e-12)), beyond / (_PERMUTATIONS + 1)


def _correlation(one: Floats, other: Floats) -> float:
    return float(one @ other / np.sqrt((one @ one) * (other @ other)))


JUDGED = ("ndcg", "auc", "dependence_on_ranker", "dependence_p_value")
"""Columns that need judgments."""


def model_table(
    models: Sequence[ClickModel],
    fitted: Sequence[ModelEstimate],
    measures: Sequence[ModelMeasures],
    judged: Mapping[str, Mapping[str, float | None]],
) -> pl.DataFrame:
    """Table of the models, the best first: measures, difference to the best, and fit.

    Args:
        models: the models.
        fitted: their estimates.
        measures: on held-out pages.
        judged: `judgment_columns` by name of the model; empty without judgments.
    """
    to_best = differences_from_best(measures)
    rows: list[dict[str, object]] = []
    for number in by_log_likelihood(measures):
        model, measured = models[number], measures[number]
        by_row = "row" if isinstance(model, ExaminationModel) else "none"
        examination = "cell" if isinstance(model, FactorisedModel) else by_row
        rows.append(
            {
                **(dict.fromkeys(JUDGED) if judged else {}),
                **judged.get(model.name, {}),
                "model": model.name,
                "log_likelihood": float(measured.log_likelihood[0]),
                "std_error": float(std_error(measured.log_likelihood)),
                **dict(zip(("difference", "difference_std_error", "significant"), to_best[number], strict=True)),
                "perplexity": float(measured.perplexity[0]),
                "perplexity_std_error": float(std_error(measured.perplexity)),
                "conditional_perplexity": float(measured.conditional_perplexity[0]),
                "conditional_perplexity_std_error": float(std_error(measured.conditional_perplexity)),
                **{name: getattr(measured, name) for name in ("rate_error", "calibration_error", "impossible_clicks")},
                "examination": examination,
                "parameters": sum(values.size for values in fitted[number].parameters.values()),
                "passes": fitted[number].passes,
                "converged": fitted[number].converged,
            }
        )
    schema: dict[str, type[pl.Float64]] = dict.fromkeys(JUDGED, pl.Float64) if judged else {}
    return pl.DataFrame(rows, schema_overrides=schema, infer_schema_length=None)


def judgment_columns(
    ndcg: float | None, auc: float | None, dependence: tuple[float, float] | None
) -> dict[str, float | None]:
    """The columns `JUDGED` of a model; None for NaN."""
    values = (ndcg, auc, *(dependence or (None, None)))
    return {
        name: None if value is None or np.isnan(value) else value for name, value in zip(JUDGED, values, strict=True)
    }


def position_table(models: Sequence[ClickModel], measures: Sequence[ModelMeasures], shared: SharedSums) -> pl.DataFrame:
    """Table of perplexity by model and position, with the number of held-out impressions."""
    frames, positions = list[pl.DataFrame](), np.flatnonzero(shared.impressions[0] > 0)
    for number in by_log_likelihood(measures):
        columns: dict[str, object] = {"model": models[number].name, POSITION: positions.astype(np.int32)}
        for name in ("perplexity", "conditional_perplexity"):
            measured: Floats = getattr(measures[number], f"{name}_by_position")
            columns |= {name: measured[0], f"{name}_std_error": std_error(measured)}
        frames.append(pl.DataFrame(columns | {IMPRESSIONS: shared.impressions[0][positions]}))
    return pl.concat(frames)


def calibration_table(models: Sequence[ClickModel], measures: Sequence[ModelMeasures]) -> pl.DataFrame:
    """Table of click rates and rates predicted given the clicks above, by model and non-empty bin of the prediction."""
    frames: list[pl.DataFrame] = []
    for number in by_log_likelihood(measures):
        predicted, clicks, impressions = measures[number].predicted
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


def all_parameters_table(models: Sequence[ClickModel], fitted: Sequence[ModelEstimate]) -> pl.DataFrame:
    """Concatenate the `parameter_table`s of models, with a column `model`, without standard errors."""
    return pl.concat(
        parameter_table(model.parameters, estimate).select(pl.lit(model.name).alias("model"), pl.exclude("std_error"))
        for model, estimate in zip(models, fitted, strict=True)
    )
