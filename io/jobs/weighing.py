"""The impressions of a log, each with its examination under a fitted click model, or with what trust makes of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from posbias.core.counts.sufficient_statistics import SIGNATURE
from posbias.core.errors import SchemaError, UsageError
from posbias.core.fit.propensities import PROPENSITY
from posbias.core.log.pages import in_page_order
from posbias.core.models import ClickModel, ExaminationModel
from posbias.core.models.page_matrices import Floats, at_position
from posbias.core.models.position_based import CLICK_IF_NOT, CLICK_IF_RELEVANT, TrustBiasModel
from posbias.core.schema import CLICKS, IMPRESSIONS, PAIR, POSITION
from posbias.core.training.layout import WeighedDocuments
from posbias.core.training.weights import (
    ATTRACTED,
    BASELINE,
    BEYOND,
    EXPECTED,
    RowWeights,
    WeightOptions,
    examination_of_rows,
    row_weights,
    sums_by_position,
    sums_of_documents,
)
from posbias.io.counting.count import PairsOfPart
from posbias.io.engines.engine import Engine, Parts
from posbias.io.jobs.click_model_fits import ClickModelFit
from posbias.io.log.scan import scan_sources
from posbias.io.log.sources import find_sources
from posbias.io.places.temporary import KeptFrame, keep
from posbias.io.progress import Progress
from posbias.io.training.feature_parts import route_rows

RELEVANCE = "posbias_relevance"


@dataclass(frozen=True)
class WeighedLog:
    """A log whose impressions have propensities of their own."""

    parts: tuple[KeptFrame, ...]  # in page order, with `propensity` (null where there is none), BASELINE, RELEVANCE
    weights: RowWeights


def check_can_weigh(model: ClickModel) -> None:
    """Check that a click model has what clicks are weighed by: examination, or trust bias.

    Raises:
        UsageError: it does not.
    """
    if not isinstance(model, ExaminationModel) and model.name != TrustBiasModel.name:
        raise UsageError(
            f"--model {model.name}: has no examination, so that there is nothing to weigh clicks by. Its click rates "
            "are in what `posbias fit` writes."
        )


def no_weight_of_rows(option: str) -> UsageError:
    """The error where impressions are to be weighed one by one under trust bias."""
    return UsageError(
        f"{option}: under trust bias an impression without a click is worth less than nothing, and a weight cannot say "
        "that. Use --layout pointwise or judgments."
    )


def weigh_rows(
    impressions: Parts, fit: ClickModelFit, options: WeightOptions, engine: Engine, progress: Progress
) -> WeighedLog:
    """Find the examination of each impression of a log, given the clicks above it.

    Args:
        impressions: canonical ones, whole pages.
        fit: the click model; a document that it has not seen has the mean of the prior.
        options: clipping and normalisation.
        engine: where the parts are.
        progress: where stages are reported.

    Raises:
        SchemaError: ids have other types than in the fit.
    """
    folder = None if impressions.in_memory else engine.scratch
    with progress.stage("examination", impressions.number) as stage:
        documents = _documents(impressions, fit, engine, folder)
        travels = replace(fit, documents=None)
        work = partial(_weigh, fit=travels, documents=documents, options=options, folder=folder)
        parts: list[tuple[KeptFrame, pl.DataFrame]] = []
        for part in impressions.map(work):
            parts.append(part)
            stage.advance()
    weights = row_weights(pl.concat(sums for _, sums in parts), options)
    return WeighedLog(tuple(frame for frame, _ in parts), weights)


def _documents(
    impressions: Parts, fit: ClickModelFit, engine: Engine, folder: Path | None
) -> list[pl.LazyFrame] | None:
    """The parameters of the documents of each part."""
    if fit.documents is None:
        return None
    keys = [frame.scan() for frame in impressions.map(partial(_keys_of, folder=folder))]
    sources = find_sources([str(fit.documents)])
    table = scan_sources(sources)
    known, ours = table.collect_schema(), keys[0].collect_schema()
    for name in PAIR:
        if known[name] != ours[name] and not (known[name].is_integer() and ours[name].is_integer()):
            raise SchemaError(
                f"the {name} holds {ours[name]} in this log and {known[name]} in the fit, so that no document would be "
                "known. Write both with the same type."
            )
    rows = table.select(*(pl.col(name).cast(ours[name]) for name in PAIR), *fit.prior_means)
    return route_rows(rows, PAIR, sources, keys, engine.scratch / "documents", engine.memory)


def _keys_of(number: int, impressions: pl.LazyFrame, folder: Path | None) -> KeptFrame:
    return keep(impressions.select(PAIR).unique().collect(engine="streaming"), folder, f"keys-{number:05d}")


def _weigh(
    number: int,
    impressions: pl.LazyFrame,
    fit: ClickModelFit,
    documents: Sequence[pl.LazyFrame] | None,
    options: WeightOptions,
    folder: Path | None,
) -> tuple[KeptFrame, pl.DataFrame]:
    if fit.plan.max_position is not None:
        impressions = impressions.filter(pl.col(POSITION) <= fit.plan.max_position)
    rows = in_page_order(impressions.collect(engine="streaming"))
    model, of_rows = fit.model, dict[str, Floats]()
    if documents is not None:  # the parameters by document, each of the document of the row
        of_pair, pairs = documents[number], rows.lazy().select(PAIR)
        known = pairs.join(of_pair, on=PAIR, how="left", nulls_equal=True, maintain_order="left").collect()
        of_rows = {name: known[name].fill_null(mean).to_numpy() for name, mean in fit.prior_means.items()}
    if isinstance(model, ExaminationModel):
        baseline, propensity = np.zeros(rows.height), examination_of_rows(model, rows, of_rows, fit.shared)
    else:
        position = rows[POSITION].cast(pl.Int64).to_numpy()
        baseline = at_position(fit.shared[CLICK_IF_NOT.name], position)
        propensity = at_position(fit.shared[CLICK_IF_RELEVANT.name], position) - baseline
    relevance = model.relevance(of_rows)
    columns = {
        PROPENSITY: np.where(propensity > 0, propensity, np.nan),
        BASELINE: baseline,
        RELEVANCE: np.full(rows.height, np.nan) if relevance is None else relevance,
    }
    rows = rows.with_columns(pl.Series(name, values, nan_to_null=True) for name, values in columns.items())
    return keep(rows, folder, f"weighed-{number:05d}"), sums_by_position(rows, options)


@dataclass(frozen=True)
class WeighedPairs:
    """The documents of a weighed log, part by part, each a signature of its own."""

    pairs: tuple[KeptFrame, ...]  # `query`, `doc`, SIGNATURE (from 0 in each part) of each part
    first: tuple[int, ...]  # the number of the first document of each part
    documents: WeighedDocuments  # what layouts make rows of

    @property
    def number(self) -> int:
        """How many documents there are."""
        return len(self.documents.impressions)

    @property
    def parts(self) -> Iterator[PairsOfPart]:
        """The documents, with their numbers over all parts."""
        ends = [*self.first[1:], self.number]
        spans = zip(self.pairs, self.first, ends, strict=True)
        return (
            PairsOfPart(number, kept, np.arange(start, end, dtype=np.int64))
            for number, (kept, start, end) in enumerate(spans)
        )


def weigh_documents(
    log: WeighedLog, options: WeightOptions, engine: Engine, progress: Progress, *, whole: bool
) -> WeighedPairs:
    """Add up the weighed impressions of each document; `whole` says that impressions count one each."""
    folder = None if all(part.in_memory for part in log.parts) else engine.scratch
    work = partial(_add_up, options=options, factor=log.weights.factor, folder=folder)
    parts: list[tuple[KeptFrame, pl.DataFrame]] = []
    with progress.stage("adding up", len(log.parts)) as stage:
        for part in engine.each(list(enumerate(log.parts)), work):
            parts.append(part)
            stage.advance()
    sums = pl.concat(of_part for _, of_part in parts)
    first = np.cumsum([0, *(of_part.height for _, of_part in parts)])[:-1].tolist()
    columns = (IMPRESSIONS, CLICKS, BEYOND, ATTRACTED, EXPECTED, RELEVANCE)
    values = [sums[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in columns]
    documents = WeighedDocuments(*values, options=options, whole=whole)
    return WeighedPairs(tuple(pairs for pairs, _ in parts), tuple(first), documents)


def _add_up(
    item: tuple[int, KeptFrame], options: WeightOptions, factor: float, folder: Path | None
) -> tuple[KeptFrame, pl.DataFrame]:
    number, kept = item
    rows = kept.load()
    sums = sums_of_documents(rows, options, factor)
    relevance = rows.group_by(PAIR, maintain_order=True).agg(pl.first(RELEVANCE))
    sums = sums.join(relevance, on=PAIR, how="left", nulls_equal=True, maintain_order="left")
    pairs = sums.select(PAIR).with_row_index(SIGNATURE)
    return keep(pairs, folder, f"documents-{number:05d}"), sums.drop(PAIR)
