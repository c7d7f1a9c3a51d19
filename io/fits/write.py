"""From a fit to the files of a result, part by part."""

from collections.abc import Sequence
from functools import partial, reduce
from operator import add
from pathlib import Path

import polars as pl

from posbias.core.counts.sufficient_statistics import SIGNATURE
from posbias.core.fit.fit import Fit
from posbias.core.schema import CLICKS, IMPRESSIONS
from posbias.core.standard_errors.clicked_sessions import FittedLog
from posbias.core.standard_errors.cluster import ClusterSums
from posbias.io.counting.count import CountedLog, PairsOfPart
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.progress import Progress
from posbias.io.results.tables import ATTRACTIVENESS, write_attractiveness_csv


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
