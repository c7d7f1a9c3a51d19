"""From counts to a fit, and its files."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import Any

import polars as pl

from posbias.core.arrays.threads import meanwhile
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SIGNATURE
from posbias.core.estimators import EstimationOptions
from posbias.core.fit.fit import BesideCounts, Fit, check_cells, fit_statistics
from posbias.core.fit.from_rows import FromRows
from posbias.core.schema import CLICKS, IMPRESSIONS
from posbias.core.standard_errors.leave_one_out import ClusterSums
from posbias.core.standard_errors.session import FittedLog
from posbias.core.training.weights import as_count
from posbias.io.counting.count import CountedLog, PairsOfPart
from posbias.io.counting.pages import other_models, sample_pages
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.fits.manifest import fit_section
from posbias.io.fits.verdicts import Verdict, Weight, fit_verdicts
from posbias.io.log.rows import Rows
from posbias.io.progress import Progress
from posbias.io.results.tables import ATTRACTIVENESS, write_attractiveness_csv, write_covariance, write_propensities
from posbias.io.stores.metadata import describe_decay, describe_plan


def write_attractiveness_of(
    counted: CountedLog, fit: Fit, engine: Engine, folder: Path, progress: Progress, *, csv: bool
) -> None:
    """Write the attractiveness of every pair, part by part, and as CSV if asked for."""
    items = ((part, fit.attractiveness_of(part.signature)) for part in counted.parts)
    rows = partial(_attractiveness_rows, columns=counted.plan.pair_columns)
    with progress.stage("writing", len(counted.pairs)) as stage:
        for _ in engine.write_table(items, rows, folder / f"{ATTRACTIVENESS}.parquet"):
            stage.advance()
    if csv:
        write_attractiveness_csv(folder)


def _attractiveness_rows(item: tuple[PairsOfPart, pl.DataFrame], columns: Sequence[str]) -> pl.DataFrame:
    """The columns of the pairs of a part, `impressions`, `clicks`, `attractiveness`, `std_dev`, in their order."""
    part, of_signature = item
    pairs = part.kept.load()
    return pairs.select(*columns, IMPRESSIONS, CLICKS).hstack(of_signature[pairs[SIGNATURE]])


def sum_sessions(read: ReadLog, log: FittedLog) -> ClusterSums:
    """What errors by session need, from a log that was read with its sessions."""
    return reduce(add, read.buckets.map(partial(_sum_sessions, log=log)))


def _sum_sessions(_: int, impressions: pl.LazyFrame, log: FittedLog) -> ClusterSums:
    return log.sums_of(impressions)


SCHEMA = "posbias.result"


@dataclass(frozen=True)
class FitRequest:
    """How counts are fitted."""

    method: str  # the estimator's name
    options: EstimationOptions  # what is asked of it
    # whether joint EM is run as well, and whether other click models are looked at; None where that is quick
    compare: bool | None = None
    csv: bool = False  # whether tables are also written as CSV


@dataclass(frozen=True)
class WrittenFit:
    """A fit whose tables are written."""

    fit: Fit  # it
    verdicts: tuple[Verdict, ...]  # what the log says about it
    sections: dict[str, Any]  # what the manifest says of it

    @property
    def warnings(self) -> list[str]:
        """What is wrong, or cannot be excluded."""
        return [verdict.sentence for verdict in self.verdicts if verdict.weight > Weight.NOTE]

    @property
    def notes(self) -> list[str]:
        """What is worth a line, and nothing that is wrong."""
        return [verdict.sentence for verdict in self.verdicts if verdict.weight is Weight.NOTE]

    @property
    def doubtful(self) -> bool:
        """Whether the propensities are not to be taken at face value."""
        return any(verdict.weight is Weight.DOUBT for verdict in self.verdicts)


def sections_of_reading(plan: StatisticsPlan, sources: dict[str, str], rows: Rows) -> dict[str, Any]:
    """What the manifest says of a log that was read."""
    return {"schema": SCHEMA, "counted": describe_plan(plan), "sources": sources, "rows": rows}


def sections_of_counts(counted: CountedLog) -> dict[str, Any]:
    """What the manifest says of what was read and counted."""
    statistics = counted.statistics
    impressions, clicks = statistics.cell_totals
    return {
        **sections_of_reading(counted.plan, counted.sources, counted.rows),
        "decay": describe_decay(counted.decay),
        "totals": {
            "queries": statistics.n_queries,
            "pairs": statistics.n_pairs,
            "signatures": statistics.pair_signatures.n_units,
            "impressions": as_count(impressions.sum()),
            "clicks": as_count(clicks.sum()),
        },
    }


def fit_counts(
    counted: CountedLog,
    asked: FitRequest,
    engine: Engine,
    folder: Path,
    progress: Progress,
    from_rows: FromRows | None = None,
) -> WrittenFit:
    """Fit, and write propensities, their covariance and attractiveness.

    Args:
        counted: a log, or statistics.
        asked: by which method, and how.
        engine: where the pairs are.
        folder: of the result.
        progress: is told.
        from_rows: what a method of rows found in them.

    Raises:
        IdentifiabilityError: the log cannot say what is asked of it.
        UsageError: it has too many cells.
    """
    check_cells(counted.statistics, asked.method, asked.options, engine.memory, compare=asked.compare)
    with progress.stage("fitting") as stage:
        found = fit_statistics(
            counted.statistics,
            asked.method,
            asked.options,
            compare=asked.compare,
            beside=BesideCounts(
                sum_sessions=None if counted.read is None else partial(sum_sessions, counted.read),
                unbinned=counted.unbinned,
                pages=partial(sample_pages, counted),
                from_rows=from_rows,
            ),
            on_iteration=stage.say,
        )
    with meanwhile(lambda: (found.theta, found.expected_clicks)):  # the files and the manifest say them
        write_attractiveness_of(counted, found, engine, folder, progress, csv=asked.csv)
    write_propensities(found.propensities, folder, csv=asked.csv)
    write_covariance(found.theta, folder)
    tests, sections = found.model_tests, dict[str, Any]()
    doubted = tests is not None and bool(tests.rejected or counted.plan.model.beside_position)
    others = other_models(counted, progress) if doubted and asked.compare is not False else None
    if others is not None:
        sections["other_models"] = {
            "log_likelihood": others.log_likelihood,
            "held_out_impressions": others.impressions,
            "models": [asdict(other) for other in others.others],
        }
    written = WrittenFit(found, tuple(fit_verdicts(found, others)), sections)
    sections |= {"estimate": fit_section(found), "verdicts": written.notes}
    return written
