"""The features of laid-out rows: opened, brought to the parts, and what becomes of rows that have none.

Features that stand in the log itself.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from posbias.core.choices import Missing
from posbias.core.schema import DOC, PAIR, QUERY, Roles
from posbias.core.training.layouts import GROUP, Layout
from posbias.core.training.layouts.preferences import LOSER_ROW, WINNER_ROW
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.features.columns import FeatureColumns, check_finite, feature_columns
from posbias.io.features.routing import route
from posbias.io.features.rows import (
    MissingFeatures,
    check_none_missing,
    held,
    missing_features,
    rows_with_features,
    with_features,
)
from posbias.io.features.table import FeatureTable, open_features
from posbias.io.layouts.parts import LaidOut, LaidOutSplits, Split, keep_rows, splits_of
from posbias.io.layouts.training_set import Feature
from posbias.io.log.fingerprints import check_unchanged
from posbias.io.log.scan import untyped_columns
from posbias.io.progress import Progress
from posbias.io.temporary.files import temporary_files
from posbias.io.temporary.kept import KeptFrame, keep

_VARIES = "posbias_varies:"
_SHARE_OF_MEMORY = 4  # features of a part, if they fit, are held as long as it is worked on


def features_of_pairs(
    impressions: pl.LazyFrame, columns: FeatureColumns, path: Path
) -> tuple[pl.LazyFrame, dict[str, int]]:
    """One row per (query, doc) of a part: the largest value of each feature over the pair's impressions.

    Args:
        impressions: canonical impressions with the raw columns; a query lies wholly in one part.
        columns: the features.
        path: a Parquet file to make, in the directory of temporary files.

    Returns:
        `query`, `doc` and the features, and for each feature the number of pairs where its values differ. A value that
        is missing in some impressions does not differ from the others.

    Raises:
        OutputError: there is no room.
    """
    names = [feature.name for feature in columns.features]
    read = impressions.select(*PAIR, *columns.read)
    schema = read.collect_schema()
    values = [pl.col(name).fill_nan(None) if schema[name].is_float() else pl.col(name) for name in names]
    varies = [(value.min() != value.max()).fill_null(value=False).name.prefix(_VARIES) for value in values]
    with temporary_files(path.parent):
        read.group_by(PAIR).agg(*(value.max() for value in values), *varies).sink_parquet(
            path, compression="lz4", statistics=False
        )
    pairs = pl.scan_parquet(path, glob=False)
    counts = pairs.select(pl.col(f"{_VARIES}{name}").sum().alias(name) for name in names).collect(engine="streaming")
    return pairs.select(*PAIR, *names), dict(zip(names, map(int, counts.row(0)), strict=True))


_ROW, _NEW_ROW = "posbias_row", "posbias_new_row"


@dataclass(frozen=True)
class WantedFeatures:
    """What the user said about features."""

    tables: tuple[str, ...] = ()  # tables beside the log: files, globs or directories each
    columns: tuple[str, ...] = ()  # columns of the log
    missing: Missing = "error"  # what becomes of rows without features in a table


@dataclass(frozen=True)
class RowsRequest:
    """A request for an estimate from features, row by row."""

    method: str  # its name
    wanted: WantedFeatures  # the features
    score: str | None  # the feature that is the ranker's score, if one is named
    sample_pages: int  # how many pages to learn from, at most


@dataclass(frozen=True)
class FeaturesOfPart:
    """Where the features of a part's rows are."""

    own: tuple[pl.Expr, ...] = ()  # those that stand in the rows, as they are read there
    tables: tuple[pl.LazyFrame, ...] = ()  # those to join, each key once

    def held(self, memory: int) -> "FeaturesOfPart":
        """The same, each table in memory where it takes no more than a share of so many bytes."""
        return replace(self, tables=tuple(held(table, memory // _SHARE_OF_MEMORY) for table in self.tables))

    def bring(self, rows: pl.DataFrame, ids: Sequence[str]) -> pl.DataFrame:
        """Rows with the columns that are no features first, then the features."""
        for table in self.tables:
            rows = with_features(rows, table)
        joined = [name for table in self.tables for name in table.collect_schema().names() if name not in PAIR]
        return rows.select(*ids, *self.own, *joined)


@dataclass(frozen=True)
class FeaturedRows:
    """Laid-out rows with their features."""

    parts: Mapping[Split, Sequence[tuple[LaidOut, FeaturesOfPart]]]  # the rows, and where their features are, by split
    features: tuple[Feature, ...]  # the features, in their order
    report: dict[str, Any]  # what the manifest says
    warnings: tuple[str, ...]  # what a reader must know
    left_out: int = 0  # rows that are left out because they, or the click of their group, lack features


def bring_features(
    laid_out: LaidOutSplits,
    wanted: WantedFeatures,
    layout: Layout,
    read: ReadLog | None,
    engine: Engine,
    progress: Progress,
) -> FeaturedRows:
    """Open the features that are wanted, and bring those that rows need to their parts.

    Args:
        laid_out: the rows.
        wanted: which features.
        layout: of the rows.
        read: the log, where there is one; else there are no columns of it.
        engine: where the parts are.
        progress: is told.

    Raises:
        LogFormatError: a table cannot be read.
        SchemaError: a table has no key or no feature, or what no model can learn from; or rows lack features.
    """
    named: list[tuple[Split, LaidOut]] = [(split, part) for split, parts in splits_of(laid_out) for part in parts]
    parts = [part for _, part in named]
    if not parts or not (wanted.tables or wanted.columns):
        return FeaturedRows(_by_split(laid_out, named, [FeaturesOfPart()] * len(parts)), (), {}, ())
    with progress.stage("features") as stage:
        in_rows, tables, warnings = _open(parts, wanted, layout, read, engine)
        features = (*in_rows.features, *(feature for table in tables for feature in table.features))
        stage.say(f"{len(features):,} columns")
        keys = [part.rows.scan().select(PAIR) for part in parts]
        first = len(list(engine.scratch.glob("features-*")))  # a fit may have brought features before
        folders = (engine.scratch / f"features-{first + number}" for number in range(len(tables)))
        routed = [route(table, keys, folder, engine.memory) for table, folder in zip(tables, folders, strict=True)]
        of_part = [FeaturesOfPart(in_rows.read, tuple(frames[n] for frames in routed)) for n in range(len(parts))]
        missing = [_missing(table, parts, frames, engine) for table, frames in zip(tables, routed, strict=True)]
    if wanted.missing == "error":
        for table, without in zip(tables, missing, strict=True):
            check_none_missing(without, table.where)
    left: Sequence[tuple[Split, LaidOut | None]] = named
    if wanted.missing == "drop" and any(without.rows for without in missing):
        folder = None if parts[0].rows.in_memory else engine.scratch
        work = partial(_with_features_only, layout=layout, folder=folder)
        kept = engine.each(list(enumerate(zip(parts, of_part, strict=True))), work)
        left = [(split, part) for (split, _), part in zip(named, kept, strict=True)]
    before = sum(part.n_rows for part in parts)
    left_out = before - sum(part.n_rows for _, part in left if part is not None)
    if left_out:
        warnings += (f"--missing drop: {left_out:,} of {before:,} rows are left out for want of features.",)
    report = {
        "names": [feature.name for feature in features],
        "categorical": [feature.name for feature in features if feature.categories is not None],
        "tables": [
            {
                "sources": {str(source.path): source.digest() for source in table.sources},
                "keys": table.keys,
                "missing_keys": without.keys,
                "missing_rows": without.rows,
            }
            for table, without in zip(tables, missing, strict=True)
        ],
    }
    for table in tables:
        check_unchanged(table.sources)
    return FeaturedRows(_by_split(laid_out, left, of_part), features, report, warnings, left_out)


def _open(
    parts: Sequence[LaidOut], wanted: WantedFeatures, layout: Layout, read: ReadLog | None, engine: Engine
) -> tuple[FeatureColumns, list[FeatureTable], tuple[str, ...]]:
    """The features that stand in the rows as each impression had them, those in tables, and what is to be said."""
    schema = parts[0].rows.scan().collect_schema()
    in_rows, tables, warnings = FeatureColumns((), ()), list[FeatureTable](), tuple[str, ...]()
    if read is None:  # statistics: the columns of their log, as far as they tell
        names = {role: tuple(of.to_schema()) if isinstance(of := schema[role], pl.Struct) else (role,) for role in PAIR}
        roles = Roles((), names[QUERY], names[DOC], None, None)
    else:
        roles, where = read.log.roles, str(read.log.sources[0].path)
        untyped = untyped_columns(read.log.origins, wanted.columns)
        if wanted.columns and layout.shows_impressions:
            in_rows = feature_columns([part.rows.scan() for part in parts], wanted.columns, untyped, where)
            for part in parts:
                check_finite(part.rows.scan().select(QUERY, DOC, *in_rows.read), wanted.columns, PAIR, where)
        elif wanted.columns:
            table, warnings = _of_pairs(wanted.columns, untyped, read, engine.scratch)
            tables.append(table)
    for name in wanted.tables:
        taken = [feature.name for feature in (*in_rows.features, *(of for table in tables for of in table.features))]
        tables.append(open_features([name], roles, schema, taken))
    return in_rows, tables, warnings


def _by_split(
    splits: Iterable[Split], named: Sequence[tuple[Split, LaidOut | None]], of_part: Sequence[FeaturesOfPart]
) -> dict[Split, list[tuple[LaidOut, FeaturesOfPart]]]:
    found: dict[Split, list[tuple[LaidOut, FeaturesOfPart]]] = {split: [] for split in splits}
    for (split, part), features in zip(named, of_part, strict=True):
        if part is not None:
            found[split].append((part, features))
    return found


def _of_pairs(
    names: Sequence[str], untyped: Collection[str], read: ReadLog, scratch: Path
) -> tuple[FeatureTable, tuple[str, ...]]:
    """Features that stand in the log, as a table by query and document."""
    where = str(read.log.sources[0].path)
    distinct = [kept.scan() for kept in read.buckets.map(_Distinct(tuple(names), scratch))]
    columns = feature_columns(distinct, names, untyped, where)
    frames: list[pl.LazyFrame] = []
    varying = Counter[str]()
    for number, frame in enumerate(distinct):
        pairs, varies = features_of_pairs(frame, columns, scratch / f"of-pairs-{number:05d}.parquet")
        frames.append(pairs)
        varying.update(varies)
    warnings = tuple(
        f"--feature {name}: varies between the impressions of {varying[name]:,} (query, doc) pairs; the largest value "
        "is taken."
        for name in names
        if varying[name]
    )
    return FeatureTable(read.log.sources, PAIR, columns.features, pl.concat(frames)), warnings


@dataclass(frozen=True)
class _Distinct:
    """Keeps the different values of features by query and document of a bucket on disk."""

    names: tuple[str, ...]
    folder: Path

    def __call__(self, number: int, impressions: pl.LazyFrame) -> KeptFrame:
        distinct = impressions.select(*PAIR, *self.names).unique().collect(engine="streaming")
        return keep(distinct, self.folder, f"in-log-{number:05d}")


def _missing(
    table: FeatureTable, parts: Sequence[LaidOut], frames: Sequence[pl.LazyFrame], engine: Engine
) -> MissingFeatures:
    keys = [part.rows.scan().select(PAIR) for part in parts]
    found = sum(engine.each(list(zip(keys, frames, strict=True)), _missing_in), MissingFeatures())
    if table.keys == PAIR or not found.keys:
        return found
    without = [  # a document may be shown for queries of several parts
        part.rows.scan().select(table.keys).unique().join(frame, on=table.keys, how="anti").collect(engine="streaming")
        for part, frame in zip(parts, frames, strict=True)
    ]
    return replace(found, keys=pl.concat(without).n_unique())


def _missing_in(keys_and_features: tuple[pl.LazyFrame, pl.LazyFrame]) -> MissingFeatures:
    return missing_features(*keys_and_features)


def _with_features_only(
    item: tuple[int, tuple[LaidOut, FeaturesOfPart]], layout: Layout, folder: Path | None
) -> LaidOut | None:
    """The rows of a part that have all features; no clicked group without its click, no preference without both."""
    number, (part, features) = item
    rows = part.rows.scan().with_row_index(_ROW)
    for table in features.tables:
        rows = rows_with_features(rows, table)
    kept = layout.still_of_use(rows.collect(engine="streaming"))
    kept = kept.with_columns(pl.col(GROUP).rle_id().cast(pl.Int64))
    preferences = None if part.preferences is None else _renumbered(part.preferences.load(), kept)
    return keep_rows(folder, f"with-features-{number:05d}", kept.drop(_ROW), preferences)


def _renumbered(preferences: pl.DataFrame, kept: pl.DataFrame) -> pl.DataFrame:
    """Preferences among the rows that are left, by their new numbers."""
    new = kept.select(pl.col(_ROW).cast(pl.Int64), GROUP).with_row_index(_NEW_ROW)
    columns = preferences.columns
    for role in (LOSER_ROW, WINNER_ROW):
        preferences = (
            preferences.drop(GROUP)
            .join(new, left_on=role, right_on=_ROW, how="inner", maintain_order="left")
            .with_columns(pl.col(_NEW_ROW).cast(pl.Int64).alias(role))
            .drop(_NEW_ROW)
        )
    return preferences.select(columns)
