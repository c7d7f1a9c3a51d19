"""From a table of features to the parts of a log.

The features of laid-out rows: opened, brought to the parts, and what becomes of rows that have none.

Features that stand in the log itself.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from posbias.core.choices import Missing
from posbias.core.errors import SchemaError
from posbias.core.schema import DOC, PAIR, QUERY, Roles
from posbias.core.training.layout import GROUP, LOSER_ROW, WINNER_ROW, Layout
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.log.scan import reading, untyped_columns
from posbias.io.log.sources import Source, check_unchanged
from posbias.io.places.temporary import KeptFrame, check_room, keep, temporary_files
from posbias.io.progress import Progress
from posbias.io.results.conclusions import CAUTION, Reason
from posbias.io.training.feature_tables import FeatureTable, check_finite, described, feature_columns, open_features
from posbias.io.training.laid_out import Feature, LaidOut, LaidOutSplits, keep_rows, keys_of

_HASH, _PART = "posbias_hash", "posbias_part"
_ROWS_OF_BATCH = 50_000
_SHARE_OF_WAITING = 32  # of the memory: rows that wait to be written
_LEAST_BYTES = 1  # on disk, of one value of a feature


def route(table: FeatureTable, keys_of_part: Sequence[pl.LazyFrame], folder: Path, memory: int) -> list[pl.LazyFrame]:
    """The features that each part needs, on disk, in one pass over the table.

    A hash of each key of all parts is held in memory; the features are not.

    Args:
        table: the features.
        keys_of_part: `query` and `doc` of the rows of each part, in any order, any number of times.
        folder: where to put the features: it is made, in the directory of temporary files.
        memory: target for the peak resident memory of the process, in bytes; a share of it holds what is not yet
            written.

    Returns:
        For each part the rows of the table with its keys.

    Raises:
        LogFormatError: the table cannot be read.
        SchemaError: no part has any of the keys, a key stands twice, or a value is infinite.
        OutputError: there is no room.
    """
    if not keys_of_part:
        return []
    keys, where = table.keys, table.where
    parts = route_rows(table.rows, keys, table.sources, keys_of_part, folder, memory)
    if not any(folder.iterdir()) and any(of_part.head(1).collect().height for of_part in keys_of_part):
        ours = pl.concat(of_part.select(keys).head(1) for of_part in keys_of_part).head(1).collect()
        with reading(table.sources):
            theirs = table.rows.select(keys).head(1).collect()
        if not theirs.height:
            raise SchemaError(f"{where}: holds no row whose key could be one of the log, e.g. {described(ours, keys)}.")
        raise SchemaError(
            f"{where}: has features for no row of the log. The log holds e.g. {described(ours, keys)}, "
            f"the table e.g. {described(theirs, keys)}. Write the ids of the table as in the log."
        )
    twice = (part.select(keys).group_by(keys).len().filter(pl.col("len") > 1) for part in parts)
    repeated = pl.concat(of_part.collect(engine="streaming") for of_part in twice).unique(keys).sort(keys)
    if repeated.height:
        raise SchemaError(
            f"{where}: {repeated.height:,} keys appear more than once, e.g. {described(repeated, keys)} in "
            f"{repeated['len'][0]} rows. Write one row of features for each."
        )
    for part in parts:
        check_finite(part, [feature.name for feature in table.features], keys, where)
    return parts


def route_rows(
    rows: pl.LazyFrame,
    keys: Sequence[str],
    sources: Sequence[Source],
    keys_of_part: Sequence[pl.LazyFrame],
    folder: Path,
    memory: int,
) -> list[pl.LazyFrame]:
    """The rows with the keys of each part, on disk, in one pass; for the other arguments see `route`.

    Args:
        rows: a table.
        keys: its columns that parts are looked up by.
        sources: the files that it is read from.
        keys_of_part: these columns of each part.
        folder: where to put the rows.
        memory: target for the memory of the process.

    Raises:
        LogFormatError: the table cannot be read.
        OutputError: there is no room.
    """
    hashed = pl.struct(keys).hash().alias(_HASH)
    # Which parts want which keys, each once. Two keys of one hash would share their parts, which does no harm.
    of_parts = (of_part.select(hashed).unique().collect(engine="streaming") for of_part in keys_of_part)
    hashes = pl.concat(
        of_part.with_columns(pl.lit(number, pl.UInt32).alias(_PART)) for number, of_part in enumerate(of_parts)
    )
    schema = rows.collect_schema()
    in_table = sum(source.bytes for source in sources)
    check_room(folder.parent, min(in_table, hashes.height * (len(schema) - len(keys)) * _LEAST_BYTES))
    routed = rows.with_columns(hashed).join(hashes.lazy(), on=_HASH, how="inner", build_side="force_right").drop(_HASH)
    waiting: list[pl.DataFrame] = []
    bytes_waiting, flushes = 0, 0

    def flush() -> None:
        """Write what waits to files of its parts."""
        for (number,), of_part in pl.concat(waiting).partition_by(_PART, as_dict=True, include_key=False).items():
            path = folder / f"{number:05d}-{flushes:05d}.parquet"
            of_part.write_parquet(path, compression="lz4", statistics=False)

    with reading(sources), temporary_files(folder.parent):
        folder.mkdir()
        # Polars' own partitioned sink keeps 100,000 rows and more of each part: all of a table that is wide.
        batches = routed.collect_batches(chunk_size=_ROWS_OF_BATCH, maintain_order=False, lazy=True, engine="streaming")
        for batch in batches:
            waiting.append(batch)
            bytes_waiting += batch.estimated_size()
            if bytes_waiting >= memory // _SHARE_OF_WAITING:
                flush()
                waiting, bytes_waiting, flushes = [], 0, flushes + 1
        if waiting:
            flush()
    files = [sorted(folder.glob(f"{number:05d}-*.parquet")) for number in range(len(keys_of_part))]
    return [
        pl.scan_parquet(paths, hive_partitioning=False, glob=False) if paths else pl.LazyFrame(schema=schema)
        for paths in files
    ]


_EXAMPLES = 3
_ROWS = "posbias_rows"


def rows_with_features(rows: pl.LazyFrame, features: pl.LazyFrame) -> pl.LazyFrame:
    """Those rows that have features, in the same order."""
    keys = keys_of(features)
    return rows.join(features.select(keys), on=keys, how="semi", maintain_order="left")


@dataclass(frozen=True)
class MissingFeatures:
    """Keys without features; those of two parts add up."""

    keys: int = 0  # number of different keys: of (query, doc), or of documents in each part
    rows: int = 0  # number of rows with these keys
    examples: tuple[str, ...] = ()  # a few of the keys, in words

    def __add__(self, other: "MissingFeatures") -> "MissingFeatures":
        examples = tuple(dict.fromkeys([*self.examples, *other.examples]))[:_EXAMPLES]
        return MissingFeatures(self.keys + other.keys, self.rows + other.rows, examples)


def missing_features(of_part: tuple[pl.LazyFrame, pl.LazyFrame]) -> MissingFeatures:
    """The keys of rows of a part, `query` and `doc` of each row, that have no features, given the part's."""
    rows, features = of_part
    keys = keys_of(features)
    without = rows.select(keys).join(features.select(keys), on=keys, how="anti")
    missing = without.group_by(keys).agg(pl.len().cast(pl.Int64).alias(_ROWS)).collect(engine="streaming")
    first = missing.sort(keys).head(_EXAMPLES)
    examples = tuple(described(first, keys, number) for number in range(first.height))
    return MissingFeatures(missing.height, int(missing[_ROWS].sum()), examples)


def check_none_missing(missing: MissingFeatures, where: str) -> None:
    """Raise SchemaError where features are missing (`--missing error`).

    Raises:
        SchemaError: some rows have no features.
    """
    if missing.keys:
        raise SchemaError(
            f"{where}: has no features for {missing.keys:,} keys of the log ({missing.rows:,} training rows): "
            f"{'; '.join(missing.examples)}{'; ...' if missing.keys > len(missing.examples) else ''}. Add them, leave "
            "these rows out (--missing drop) or leave their features empty (--missing nan)."
        )


_VARIES = "posbias_varies:"


def features_of_pairs(
    impressions: pl.LazyFrame, features: Sequence[pl.Expr], path: Path
) -> tuple[pl.LazyFrame, dict[str, int]]:
    """One row per (query, doc) of a part: the largest value of each feature over the pair's impressions.

    Args:
        impressions: canonical impressions with the raw columns; a query lies wholly in one part.
        features: the features, as they are read.
        path: a Parquet file to make, in the directory of temporary files.

    Returns:
        `query`, `doc` and the features, and for each feature the number of pairs where its values differ. A value that
        is missing in some impressions does not differ from the others.

    Raises:
        OutputError: there is no room.
    """
    names = [feature.meta.output_name() for feature in features]
    read = impressions.select(*PAIR, *features)
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
class FeaturesRequest:
    """Features as the command line names them."""

    tables: tuple[str, ...] = ()  # tables beside the log: files, globs or directories each
    columns: tuple[str, ...] = ()  # columns of the log
    missing: Missing = "error"  # what becomes of rows without features in a table


@dataclass(frozen=True)
class RowsRequest:
    """A request for an estimate from features, row by row."""

    method: str  # its name
    features: FeaturesRequest
    score: str | None  # the feature that is the ranker's score, if one is named
    sample_pages: int  # how many pages to learn from, at most


@dataclass(frozen=True)
class FeaturedRows:
    """Laid-out rows with their features."""

    parts: LaidOutSplits  # the rows, which say where their features are
    features: tuple[Feature, ...]  # the features, in their order
    report: dict[str, Any]  # what the manifest says
    reasons: tuple[Reason, ...]  # what speaks against them
    left_out: int = 0  # rows that are left out because they, or the click of their group, lack features


def bring_features(
    laid_out: LaidOutSplits,
    request: FeaturesRequest,
    layout: Layout,
    read: ReadLog | None,
    engine: Engine,
    progress: Progress,
) -> FeaturedRows:
    """Open the requested features, and bring those that rows need to their parts.

    Args:
        laid_out: the rows.
        request: names the features.
        layout: of the rows.
        read: the log, where there is one; else there are no columns of it.
        engine: where the parts are.
        progress: where stages are reported.

    Raises:
        LogFormatError: a table cannot be read.
        SchemaError: a table has no key or no feature, or what no model can learn from; or rows lack features.
    """
    parts = [part for of_split in laid_out.values() for part in of_split]
    if not parts or not (request.tables or request.columns):
        return FeaturedRows(laid_out, (), {}, ())
    with progress.stage("features") as stage:
        in_rows, own, tables, reasons = _open(parts, request, layout, read, engine)
        features = (*in_rows, *(feature for table in tables for feature in table.features))
        stage.say(f"{len(features):,} columns")
        keys = [part.rows.scan().select(PAIR) for part in parts]
        first = len(list(engine.scratch.glob("features-*")))  # a fit may have brought features before
        folders = (engine.scratch / f"features-{first + number}" for number in range(len(tables)))
        routed = [route(table, keys, folder, engine.memory) for table, folder in zip(tables, folders, strict=True)]
        of_parts = zip(*routed, strict=True) if routed else ((),) * len(parts)
        parts = [replace(part, own=own, tables=frames) for part, frames in zip(parts, of_parts, strict=True)]
        missing = [_missing(table, parts, frames, engine) for table, frames in zip(tables, routed, strict=True)]
    if request.missing == "error":
        for table, without in zip(tables, missing, strict=True):
            check_none_missing(without, table.where)
    left = [[part] for part in parts]
    if request.missing == "drop" and any(without.rows for without in missing):
        folder = None if parts[0].rows.in_memory else engine.scratch
        work = partial(_with_features_only, layout=layout, folder=folder)
        left = list(engine.each(list(enumerate(parts)), work))
    before = sum(part.n_rows for part in parts)
    left_out = before - sum(part.n_rows for kept in left for part in kept)
    if left_out:
        sentence = f"{left_out:,} of {before:,} rows have no features and are left out (--missing drop)."
        reasons += (Reason("rows-without-features", CAUTION, sentence, {"left_out": left_out, "rows": before}),)
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
    in_order = iter(left)
    parts_of: LaidOutSplits = {split: [part for _ in of for part in next(in_order)] for split, of in laid_out.items()}
    return FeaturedRows(parts_of, features, report, reasons, left_out)


def _open(
    parts: Sequence[LaidOut], request: FeaturesRequest, layout: Layout, read: ReadLog | None, engine: Engine
) -> tuple[tuple[Feature, ...], tuple[pl.Expr, ...], list[FeatureTable], tuple[Reason, ...]]:
    """The features that stand in the rows as each impression had them, how they are read, tables, and warnings."""
    schema = parts[0].rows.scan().collect_schema()
    in_rows, own = tuple[Feature, ...](), tuple[pl.Expr, ...]()
    tables, reasons = list[FeatureTable](), tuple[Reason, ...]()
    if read is None:  # statistics: the columns of their log, as far as they tell
        names = {role: tuple(of.to_schema()) if isinstance(of := schema[role], pl.Struct) else (role,) for role in PAIR}
        roles = Roles((), names[QUERY], names[DOC], None, None)
    else:
        roles, where = read.log.roles, str(read.log.sources[0].path)
        untyped = untyped_columns(read.log.origins, request.columns)
        if request.columns and layout.rows_are_impressions:
            in_rows, own = feature_columns([part.rows.scan() for part in parts], request.columns, untyped, where)
            for part in parts:
                check_finite(part.rows.scan().select(QUERY, DOC, *own), request.columns, PAIR, where)
        elif request.columns:
            table, reasons = _of_pairs(request.columns, untyped, read, engine.scratch)
            tables.append(table)
    for name in request.tables:
        taken = [feature.name for feature in (*in_rows, *(of for table in tables for of in table.features))]
        tables.append(open_features([name], roles, schema, taken))
    return in_rows, own, tables, reasons


def _of_pairs(
    names: Sequence[str], untyped: Collection[str], read: ReadLog, scratch: Path
) -> tuple[FeatureTable, tuple[Reason, ...]]:
    """Features that stand in the log, as a table by query and document."""
    where = str(read.log.sources[0].path)
    distinct = [kept.scan() for kept in read.buckets.map(partial(_distinct, names=tuple(names), folder=scratch))]
    features, as_read = feature_columns(distinct, names, untyped, where)
    frames: list[pl.LazyFrame] = []
    varying = Counter[str]()
    for number, frame in enumerate(distinct):
        pairs, varies = features_of_pairs(frame, as_read, scratch / f"of-pairs-{number:05d}.parquet")
        frames.append(pairs)
        varying.update(varies)
    reasons = tuple(
        Reason(
            "feature-varies",
            CAUTION,
            f"Feature {name} is not one number for a document: it varies between the impressions of {varying[name]:,} "
            "(query, doc) pairs, and the largest value is taken.",
            {"pairs": varying[name]},
        )
        for name in names
        if varying[name]
    )
    return FeatureTable(where, read.log.sources, PAIR, features, pl.concat(frames)), reasons


def _distinct(number: int, impressions: pl.LazyFrame, names: Sequence[str], folder: Path) -> KeptFrame:
    """The different values of features by query and document of a bucket, on disk."""
    return keep(impressions.select(*PAIR, *names).unique().collect(engine="streaming"), folder, f"in-log-{number:05d}")


def _missing(
    table: FeatureTable, parts: Sequence[LaidOut], frames: Sequence[pl.LazyFrame], engine: Engine
) -> MissingFeatures:
    keys = [part.rows.scan().select(PAIR) for part in parts]
    missing = sum(engine.each(list(zip(keys, frames, strict=True)), missing_features), MissingFeatures())
    if table.keys == PAIR or not missing.keys:
        return missing
    without = [  # a document may be shown for queries of several parts
        part.rows.scan().select(table.keys).unique().join(frame, on=table.keys, how="anti").collect(engine="streaming")
        for part, frame in zip(parts, frames, strict=True)
    ]
    return replace(missing, keys=pl.concat(without).n_unique())


def _with_features_only(item: tuple[int, LaidOut], layout: Layout, folder: Path | None) -> list[LaidOut]:
    """The rows of a part that have all features; no clicked group without its click, no preference without both."""
    number, part = item
    rows = part.rows.scan().with_row_index(_ROW)
    for table in part.tables:
        rows = rows_with_features(rows, table)
    kept = layout.drop_useless_groups(rows.collect(engine="streaming"))
    kept = kept.with_columns(pl.col(GROUP).rle_id().cast(pl.Int64))
    preferences = None if part.preferences is None else part.preferences.load()
    if preferences is not None:  # those among the rows that are left, by their new numbers
        new = kept.select(pl.col(_ROW).cast(pl.Int64), GROUP).with_row_index(_NEW_ROW)
        columns = preferences.columns
        for role in (LOSER_ROW, WINNER_ROW):
            joined = preferences.drop(GROUP).join(new, left_on=role, right_on=_ROW, maintain_order="left")
            preferences = joined.with_columns(pl.col(_NEW_ROW).cast(pl.Int64).alias(role)).drop(_NEW_ROW)
        preferences = preferences.select(columns)
    kept_rows = keep_rows(folder, f"with-features-{number:05d}", kept.drop(_ROW), preferences)
    return [replace(of, own=part.own, tables=part.tables) for of in kept_rows]
