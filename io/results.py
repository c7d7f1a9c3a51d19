"""From a fit to the files of a result, part by part."""

from collections.abc import Sequence
from functools import partial, reduce
from operator import add
from pathlib import Path

import narwhals as nw
import numpy as np
import polars as pl

from posbias.core.attractiveness_prior import AttractivenessPrior, posterior_by_position
from posbias.core.clicked_sessions import FittedLog
from posbias.core.cluster_errors import ClusterSums
from posbias.core.errors import IdentifiabilityError, SchemaError, StatisticsError
from posbias.core.evidence import SIGNATURE, Evidence
from posbias.core.fit import Fit
from posbias.core.schema import CLICKS, IMPRESSIONS
from posbias.core.signatures import Floats
from posbias.core.statistics_plan import StatisticsPlan
from posbias.core.weights import (
    PROPENSITY,
    ClickWeights,
    WeightOptions,
    click_weights,
    expected_attractions,
    pointwise_rows,
    positive_and_shown,
    session_rows,
)
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.gathering import Gathered, PairsOfPart
from posbias.io.output_tables import ATTRACTIVENESS, write_attractiveness_csv
from posbias.io.owned import remove_unfinished, whole_files
from posbias.io.progress import Progress
from posbias.io.statistics_store import Statistics
from posbias.io.training import TrainingFormat


def write_attractiveness_of(
    gathered: Gathered, fit: Fit, engine: Engine, folder: Path, progress: Progress, *, csv: bool
) -> None:
    """Write the attractiveness of every pair, part by part, and as CSV if asked for."""
    items = ((part, fit.attractiveness_of(part.signature)) for part in gathered.parts)
    rows = partial(_attractiveness_rows, columns=gathered.plan.pair_columns)
    with progress.stage("writing", len(gathered.pairs)) as stage:
        for _ in engine.write_table(items, rows, folder / f"{ATTRACTIVENESS}.parquet"):
            stage.advance()
    if csv:
        write_attractiveness_csv(folder)


def _attractiveness_rows(item: tuple[PairsOfPart, pl.DataFrame], columns: Sequence[str]) -> pl.DataFrame:
    """The columns of the pairs of a part, `impressions`, `clicks`, `attractiveness`, `std_dev`, in their order."""
    part, of_signature = item
    pairs = part.load()
    return pairs.select(*columns, IMPRESSIONS, CLICKS).hstack(of_signature[pairs[SIGNATURE]])


def weights_for(
    cells: pl.DataFrame, totals: pl.DataFrame, propensities: pl.DataFrame, options: WeightOptions
) -> ClickWeights:
    """Click weights of the cells of a log, from a propensity table.

    Args:
        cells: the cell columns.
        totals: `impressions` and `clicks` of each cell, in the same order.
        propensities: the table; cells that it lacks have no propensity.
        options: clipping and normalisation.
    """
    theta = _of_cells(cells, propensities, PROPENSITY)
    impressions, clicks = (totals[name].cast(pl.Float64).to_numpy() for name in (IMPRESSIONS, CLICKS))
    return click_weights(cells, theta.fill_null(np.nan).to_numpy(), impressions, clicks, options)


def expected_positives(evidence: Evidence, propensities: pl.DataFrame, prior: AttractivenessPrior) -> Floats:
    """Expected attractions of each pair signature, from a propensity table and the prior of attractiveness."""
    examination = _of_cells(evidence.cells, propensities, "examination").fill_null(np.nan).to_numpy()
    counts = evidence.pair_signatures, examination
    attractiveness, _ = posterior_by_position(*counts, prior, evidence.position_of_cell)
    return expected_attractions(*counts, attractiveness)


def _of_cells(cells: pl.DataFrame, propensities: pl.DataFrame, column: str) -> pl.Series:
    """A column of a propensity table for the given cells, null for those that the table lacks.

    Raises:
        SchemaError: a context has another type than in the table.
    """
    for name in cells.columns:
        ours, theirs = cells.schema[name], propensities.schema[name]
        if ours != theirs and not (ours.is_integer() and theirs.is_integer()):
            raise SchemaError(
                f"column {name!r} (--context) holds {ours} in this log and {theirs} in the fit, so that no value would "
                "meet its propensity. Write both with one type."
            )
    known = propensities.select(*(pl.col(name).cast(cells.schema[name]) for name in cells.columns), column)
    return cells.join(known, on=cells.columns, how="left", maintain_order="left", nulls_equal=True)[column]


def write_pointwise(
    gathered: Gathered,
    weights: ClickWeights,
    positive: Floats | None,
    engine: Engine,
    form: TrainingFormat,
    folder: Path,
    progress: Progress,
) -> None:
    """Write the pointwise layout from the statistics; `positive` is W+ by signature where it is no sum of weights."""
    totals = positive_and_shown(gathered.evidence.pair_signatures, weights, positive)
    items = ((part, totals[part.signature]) for part in gathered.parts)
    with progress.stage("weighting", len(gathered.pairs)) as stage:
        for _ in engine.each(items, partial(_write_pairs, form=form, folder=folder)):
            stage.advance()
    remove_unfinished(folder)


def _write_pairs(item: tuple[PairsOfPart, Floats], form: TrainingFormat, folder: Path) -> None:
    part, totals = item
    with whole_files(folder) as unfinished:
        form.write(pointwise_rows(part.load(), totals).lazy(), unfinished, part.number)


def cell_totals(read: ReadLog, plan: StatisticsPlan) -> pl.DataFrame:
    """Impressions and clicks per cell of a log, sorted by cell."""
    parts = read.buckets.map(partial(_count_cells, plan=plan))
    return pl.concat(parts).group_by(plan.cell_columns).agg(pl.col(IMPRESSIONS, CLICKS).sum()).sort(plan.cell_order)


def _count_cells(_: int, impressions: pl.LazyFrame, plan: StatisticsPlan) -> pl.DataFrame:
    return plan.count_cells(nw.from_native(impressions)).to_native().collect(engine="streaming")


def write_sessions(
    read: ReadLog,
    plan: StatisticsPlan,
    weights: ClickWeights,
    form: TrainingFormat,
    folder: Path,
    progress: Progress,
) -> None:
    """Write the session layout, bucket by bucket."""
    write = partial(_write_pages, plan=plan, weights=weights, form=form, folder=folder)
    with progress.stage("weighting", read.buckets.number) as stage:
        for _ in read.buckets.map(write):
            stage.advance()
    remove_unfinished(folder)


def _write_pages(
    number: int,
    impressions: pl.LazyFrame,
    plan: StatisticsPlan,
    weights: ClickWeights,
    form: TrainingFormat,
    folder: Path,
) -> None:
    with whole_files(folder) as unfinished:
        form.write(session_rows(impressions, plan, weights), unfinished, number)


def check_unidentified(weights: ClickWeights, *, stop: bool) -> None:
    """Stop where clicks would be left out and the user does not want that.

    Raises:
        IdentifiabilityError: some clicks lie in cells without a propensity.
    """
    lost = weights.summary["clicks_without_propensity"]
    if stop and lost:
        raise IdentifiabilityError(
            f"{lost:,} clicks lie in cells without a propensity (--unidentified error). Leave them out with "
            "--unidentified drop, or see `reason` in the propensity table."
        )


def sum_sessions(read: ReadLog, log: FittedLog) -> ClusterSums:
    """What errors by session need, from a log that was read with its sessions."""
    return reduce(add, read.buckets.map(partial(_sum_sessions, log=log)))


def _sum_sessions(_: int, impressions: pl.LazyFrame, log: FittedLog) -> ClusterSums:
    return log.sums_of(impressions)


def require_logs(statistics: Statistics, *, what: str) -> None:
    """Some things need the impressions themselves.

    Raises:
        StatisticsError: always; only statistics are at hand.
    """
    raise StatisticsError(f"{statistics.path} holds statistics; {what} needs the logs. Name the logs, or leave it out.")
