"""The impressions of a log with their cells, part by part, and their features as numbers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import narwhals as nw
import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.choices import Cluster
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import SchemaError
from posbias.core.exposure.draws import draws_of
from posbias.core.schema import CLICK, DOC, QUERY, SESSION, WEIGHT
from posbias.core.training.layouts import GROUP, get_layout
from posbias.io.counting.count import CountedLog
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.features.chunks import chunks, rows_per_chunk
from posbias.io.features.of_parts import FeaturedRows, FeaturesOfPart, WantedFeatures, bring_features
from posbias.io.features.rows import held
from posbias.io.layouts.parts import LaidOut, keep_rows
from posbias.io.layouts.training_set import Feature
from posbias.io.progress import Progress

DRAW, CELL, CLUSTER, OWN_WEIGHT = "posbias_draw", "posbias_cell", "posbias_cluster", "posbias_weight"

_MOST_ROWS_AT_ONCE = 1 << 21
_OTHER_SEED = 2  # so that pieces of a bucket are no buckets
_SHARE_OF_FEATURES = 4  # of the memory: those of a part, if they fit, are held as long as it is read


@dataclass(frozen=True)
class Impressions:
    """The rows of a log.

    Attributes:
        parts: them, by page, and where their features are. A part holds whole clusters.
        features: the features, in their order.
        report: what the manifest says of them.
        warnings: what a reader must know.
        memory: target for the memory of the process, in bytes.
    """

    parts: tuple[tuple[LaidOut, FeaturesOfPart], ...]
    features: tuple[Feature, ...]
    report: dict[str, object]
    warnings: tuple[str, ...]
    memory: int

    @property
    def n_pages(self) -> int:
        """Number of pages."""
        return sum(part.n_groups for part, _ in self.parts)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return sum(part.n_rows for part, _ in self.parts)

    @property
    def names(self) -> list[str]:
        """The names of the features."""
        return [feature.name for feature in self.features]

    @property
    def categorical(self) -> list[int]:
        """Which features are numbers of categories."""
        return [number for number, feature in enumerate(self.features) if feature.categories is not None]

    def chunks(
        self, part: tuple[LaidOut, FeaturesOfPart], wanted: Callable[[pl.DataFrame], pl.DataFrame] = lambda rows: rows
    ) -> Iterator[tuple[pl.DataFrame, "Matrix"]]:
        """The rows of a part, and their features, so many at once as fit.

        Args:
            part: one of the parts.
            wanted: picks rows before features are brought to them.
        """
        laid_out, features = part
        own = {name.meta.output_name() for name in features.own}
        rows = laid_out.rows
        others = [name for name in rows.scan().collect_schema().names() if name not in own]
        tables = tuple(held(table, self.memory // _SHARE_OF_FEATURES) for table in features.tables)
        in_reach = FeaturesOfPart(features.own, tables)
        for chunk in chunks(rows, rows_per_chunk(len(self.features), self.memory)):
            some = wanted(chunk)
            if some.height:
                found = in_reach.bring(some, others)
                yield found.select(others), Matrix(_as_numbers(found, self.features))


@dataclass(frozen=True)
class Matrix:
    """Features as single-precision numbers, which trees compare as double.

    Attributes:
        values: shape (n, F); nan where a value is missing.
    """

    values: np.ndarray[tuple[int, int], np.dtype[np.float32]]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.values)

    def __getitem__(self, wanted: slice | Integers, /) -> Floats:
        """Some rows in double precision."""
        return self.values[wanted].astype(np.float64)


def _as_numbers(rows: pl.DataFrame, features: tuple[Feature, ...]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Texts as their place among the categories, booleans as 0 and 1, what is missing as nan."""
    read = (
        pl.col(feature.name)
        if feature.categories is None
        else pl.col(feature.name).cast(pl.Enum(feature.categories), strict=False).to_physical()
        for feature in features
    )
    return rows.select(read).cast(pl.Float32).fill_null(np.nan).to_numpy()


def read_impressions(
    counted: CountedLog, wanted: WantedFeatures, by: Cluster, seed: int, engine: Engine, progress: Progress
) -> Impressions:
    """Lay out the rows of a log, and bring their features to them.

    Args:
        counted: the log.
        wanted: which features.
        by: what a part must hold whole: pages (`session`) or queries.
        seed: of folds and samples.
        engine: where the rows are.
        progress: is told.

    Raises:
        LogFormatError: a table of features cannot be read.
        SchemaError: a feature is none that a model can learn from, or rows have none.
    """
    read = _read_of(counted)
    folder = None if read.buckets.in_memory else engine.scratch
    work = partial(_lay_out, layout=_Layout(counted.plan, counted.statistics.cells, wanted.columns, by, seed, folder))
    laid_out: list[LaidOut] = []
    with progress.stage("laying out rows", read.buckets.number) as stage:
        for of_bucket in read.buckets.map(work):
            stage.advance()
            laid_out += of_bucket
    layout = get_layout("session")  # rows are impressions there too
    found = bring_features({"training": laid_out}, wanted, layout, read, engine, progress)
    return _impressions(found, engine.memory)


def _impressions(found: FeaturedRows, memory: int) -> Impressions:
    return Impressions(tuple(found.parts["training"]), found.features, found.report, found.warnings, memory)


def _read_of(counted: CountedLog) -> ReadLog:
    if counted.read is None:
        raise SchemaError("features of impressions need the log, and there are only statistics. Name the logs.")
    return counted.read


@dataclass(frozen=True)
class _Layout:
    """How rows are laid out."""

    plan: StatisticsPlan
    cells: pl.DataFrame
    columns: tuple[str, ...]
    by: Cluster
    seed: int
    folder: Path | None

    def rows(self, impressions: pl.DataFrame) -> pl.DataFrame:
        """Rows by query and page: number of the page, ids, draw, cell, click, weight, cluster, columns of features."""
        shown = self.plan.with_cells(nw.from_native(impressions.lazy())).to_native().collect()
        cells, keys = self.cells.with_row_index(CELL), list(self.plan.cell_columns)
        ordered = shown.join(cells, on=keys, how="inner", nulls_equal=True).sort(QUERY, SESSION, CELL, DOC)
        sessions = ordered.select(pl.col(SESSION).unique(maintain_order=True)).to_series()
        draws = pl.DataFrame({SESSION: sessions, DRAW: draws_of(sessions, self.seed)})
        cluster = SESSION if self.by == "session" else QUERY
        weight = pl.col(WEIGHT).cast(pl.Float64) if self.plan.weighted else pl.lit(1.0)
        return ordered.join(draws, on=SESSION, how="left", maintain_order="left").select(
            pl.struct(QUERY, SESSION).rle_id().cast(pl.Int64).alias(GROUP),
            pl.struct(QUERY, cluster).rle_id().cast(pl.Int64).alias(CLUSTER)
            if cluster != QUERY
            else pl.col(QUERY).rle_id().cast(pl.Int64).alias(CLUSTER),
            *(QUERY, DOC, DRAW),
            pl.col(CELL).cast(pl.Int64),
            pl.col(CLICK).cast(pl.Float64),
            weight.alias(OWN_WEIGHT),
            *self.columns,
        )


def _lay_out(number: int, impressions: pl.LazyFrame, layout: _Layout) -> list[LaidOut]:
    """The rows of a bucket; of one that a frequent query makes large, in pieces of whole clusters."""
    n_pieces = max(1, -(-impressions.select(pl.len()).collect().item() // _MOST_ROWS_AT_ONCE))
    key = pl.col(SESSION if layout.by == "session" else QUERY).hash(_OTHER_SEED) % n_pieces
    found: list[LaidOut | None] = []
    for piece in range(n_pieces):
        some = (impressions.filter(key == piece) if n_pieces > 1 else impressions).collect(engine="streaming")
        found.append(keep_rows(layout.folder, f"impressions-{number:05d}-{piece:05d}", layout.rows(some), None))
    return [part for part in found if part is not None]
