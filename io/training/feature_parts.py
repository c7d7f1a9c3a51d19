"""Join features to laid-out rows: from tables, which are split by part in one pass, or from columns of the log."""

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
from posbias.io.training.feature_tables import FeatureTable, check_finite, feature_columns, key_text, open_features
from posbias.io.training.laid_out import Feature, LaidOut, LaidOutSplits, keep_rows, keys_of

_HASH, _PART = "posbias_hash", "posbias_part"
_ROWS_OF_BATCH = 50_000
_SHARE_OF_BUFFER = 32  # rows to write are buffered in a 32nd of the memory
_LEAST_BYTES = 1  # least size of a value of a feature on disk


def route(table: FeatureTable, keys_of_part: Sequence[pl.LazyFrame], folder: Path, memory: int) -> list[pl.LazyFrame]:
    """Write the features that each part needs to disk, in one pass over the table.

    Memory holds a hash of each key of all parts, but not the features.

    Args:
        table: the table of features.
        keys_of_part: `query` and `doc` of the rows of each part, in any order, with repeats.
        folder: directory to create for the features, in the directory of temporary files.
        memory: target for the peak resident memory of the process, in bytes.

    Returns:
        For each part the rows of the table with its keys.

    Raises:
        LogFormatError: the table cannot be read.
        SchemaError: no part has any of the keys, a key is repeated, or a value is infinite.
        OutputError: the disk is full.
    """
    if not keys_of_part:
        return []
    keys, where = table.keys, table.where
    parts = route_rows(table.rows, keys, table.sources, keys_of_part, folder, memory)
    if not any(folder.iterdir()) and any(part.head(1).collect().height for part in keys_of_part):
        ours = pl.concat(part.select(keys).head(1) for part in keys_of_part).head(1).collect()
        with reading(table.sources):
            theirs = table.rows.select(keys).head(1).collect()
        if not theirs.height:
            raise SchemaError(f"{where}: holds no row whose key could be one of the log, e.g. {key_text(ours, keys)}.")
        raise SchemaError(
            f"{where}: has features for no row of the log. The log holds e.g. {key_text(ours, keys)}, "
            f"the table e.g. {key_text(theirs, keys)}. Write the ids of the table as in the log."
        )
    counts = (part.select(keys).group_by(keys).len().filter(pl.col("len") > 1) for part in parts)
    repeated = pl.concat(part.collect(engine="streaming") for part in counts).unique(keys).sort(keys)
    if repeated.height:
        raise SchemaError(
            f"{where}: {repeated.height:,} keys appear more than once, e.g. {key_text(repeated, keys)} in "
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
    """Write the rows of a table with the keys of each part to disk, in one pass; for other arguments see `route`.

    Args:
        rows: the table.
        keys: key columns.
        sources: files of the table.
        keys_of_part: key columns of each part, with repeats.
        folder: directory to create for the rows.
        memory: target for the memory of the process, in bytes.

    Raises:
        LogFormatError: the table cannot be read.
        OutputError: the disk is full.
    """
    hashed = pl.struct(keys).hash().alias(_HASH)
    # Unique (hash of key, part). If two keys have one hash, parts get needless rows, which does no harm.
    hashes = pl.concat(
        part.select(hashed).unique().collect(engine="streaming").with_columns(pl.lit(number, pl.UInt32).alias(_PART))
        for number, part in enumerate(keys_of_part)
    )
    schema = rows.collect_schema()
    table_bytes = sum(source.bytes for source in sources)
    check_room(folder.parent, min(table_bytes, hashes.height * (len(schema) - len(keys)) * _LEAST_BYTES))
    routed = rows.with_columns(hashed).join(hashes.lazy(), on=_HASH, how="inner", build_side="force_right").drop(_HASH)
    buffered: list[pl.DataFrame] = []
    buffered_bytes, flushes = 0, 0

    def flush() -> None:
        for (number,), part in pl.concat(buffered).partition_by(_PART, as_dict=True, include_key=False).items():
            part.write_parquet(folder / f"{number:05d}-{flushes:05d}.parquet", compression="lz4", statistics=False)

    with reading(sources), temporary_files(folder.parent):
        folder.mkdir()
        # Polars' partitioned sink would buffer at least 100,000 rows of each part: too much for wide tables.
        batches = routed.collect_batches(chunk_size=_ROWS_OF_BATCH, maintain_order=False, lazy=True, engine="streaming")
        for batch in batches:
            buffered.append(batch)
            buffered_bytes += batch.estimated_size()
            if buffered_bytes >= memory // _SHARE_OF_BUFFER:
                flush()
                buffered, buffered_bytes, flushes = [], 0, flushes + 1
        if buffered:
            flush()
    files = [sorted(folder.glob(f"{number:05d}-*.parquet")) for number in range(len(keys_of_part))]
    return [
        pl.scan_parquet(paths, hive_partitioning=False, glob=False) if paths else pl.LazyFrame(schema=schema)
        for paths in files
    ]


_EXAMPLES = 3
_ROWS = "posbias_rows"


def rows_with_features(rows: pl.LazyFrame, features: pl.LazyFrame) -> pl.LazyFrame:
    """Return the rows that have features, in the same order."""
    keys = keys_of(features)
    return rows.join(features.select(keys), on=keys, how="semi", maintain_order="left")


@dataclass(frozen=True)
class MissingFeatures:
    """Numbers of keys and rows without features; the numbers of parts can be added."""

    keys: int = 0  # number of distinct keys per part
    rows: int = 0  # number of rows with these keys
    examples: tuple[str, ...] = ()  # texts of up to three keys

    def __add__(self, other: "MissingFeatures") -> "MissingFeatures":
        examples = tuple(dict.fromkeys([*self.examples, *other.examples]))[:_EXAMPLES]
        return MissingFeatures(self.keys + other.keys, self.rows + other.rows, examples)


def missing_features(part: tuple[pl.LazyFrame, pl.LazyFrame]) -> MissingFeatures:
    """Count the keys without features in a part, a pair of `query` and `doc` of its rows, and its features."""
    rows, features = part
    keys = keys_of(features)
    without = rows.select(keys).join(features.select(keys), on=keys, how="anti")
    missing = without.group_by(keys).agg(pl.len().cast(pl.Int64).alias(_ROWS)).collect(engine="streaming")
    first = missing.sort(keys).head(_EXAMPLES)
    examples = tuple(key_text(first, keys, number) for number in range(first.height))
    return MissingFeatures(missing.height, int(missing[_ROWS].sum()), examples)


def check_none_missing(missing: MissingFeatures, where: str) -> None:
    """Check that no features are missing (`--missing error`).

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
    """Aggregate features by pair: the largest value of each feature over the pair's impressions.

    Args:
        impressions: canonical impressions of whole queries, with the raw columns.
        features: expressions of the features.
        path: a Parquet file to create, in the directory of temporary files.

    Returns:
        `query`, `doc` and the features, one row per pair, and for each feature the number of pairs with different
        values; missing values are ignored.

    Raises:
        OutputError: the disk is full.
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
    """Features that options name."""

    tables: tuple[str, ...] = ()  # tables of features: files, globs or directories
    columns: tuple[str, ...] = ()  # columns of the log
    missing: Missing = "error"  # treatment of rows without features in a table


@dataclass(frozen=True)
class RowsRequest:
    """Options of an estimate from features of each impression."""

    method: str  # name of the method
    features: FeaturesRequest
    score: str | None  # the feature that is the ranker's score
    sample_pages: int  # maximum number of pages to learn from


@dataclass(frozen=True)
class FeaturedRows:
    """Laid-out rows with their features."""

    parts: LaidOutSplits  # the rows, which refer to their features
    features: tuple[Feature, ...]  # the features, in their order
    report: dict[str, Any]  # the features in the manifest
    reasons: tuple[Reason, ...]  # cautions about the features
    left_out: int = 0  # number of rows that are left out because they, or the click of their group, lack features


def bring_features(
    laid_out: LaidOutSplits,
    request: FeaturesRequest,
    layout: Layout,
    read: ReadLog | None,
    engine: Engine,
    progress: Progress,
) -> FeaturedRows:
    """Open the requested features, and join them to laid-out rows.

    Args:
        laid_out: laid-out rows.
        request: the requested features.
        layout: layout of the rows.
        read: the log; None for statistics, which have no columns of features.
        engine: engine that holds the parts.
        progress: progress display.

    Raises:
        LogFormatError: a table cannot be read, or was changed meanwhile.
        SchemaError: a table has no key or no feature, a feature is invalid, or features are missing.
    """
    parts = [part for split in laid_out.values() for part in split]
    if not parts or not (request.tables or request.columns):
        return FeaturedRows(laid_out, (), {}, ())
    with progress.stage("features") as stage:
        in_rows, own, tables, reasons = _open(parts, request, layout, read, engine)
        features = (*in_rows, *(feature for table in tables for feature in table.features))
        stage.say(f"{len(features):,} columns")
        keys = [part.rows.scan().select(PAIR) for part in parts]
        first = len(list(engine.scratch.glob("features-*")))  # an earlier step may have joined features, too
        folders = (engine.scratch / f"features-{first + number}" for number in range(len(tables)))
        routed = [route(table, keys, folder, engine.memory) for table, folder in zip(tables, folders, strict=True)]
        tables_of_parts = zip(*routed, strict=True) if routed else ((),) * len(parts)
        parts = [replace(part, own=own, tables=frames) for part, frames in zip(parts, tables_of_parts, strict=True)]
        missing = [_missing(table, parts, frames, engine) for table, frames in zip(tables, routed, strict=True)]
    if request.missing == "error":
        for table, lacking in zip(tables, missing, strict=True):
            check_none_missing(lacking, table.where)
    remaining = [[part] for part in parts]
    if request.missing == "drop" and any(lacking.rows for lacking in missing):
        folder = None if parts[0].rows.in_memory else engine.scratch
        work = partial(_drop_rows_without_features, layout=layout, folder=folder)
        remaining = list(engine.each(list(enumerate(parts)), work))
    before = sum(part.n_rows for part in parts)
    left_out = before - sum(part.n_rows for entry in remaining for part in entry)
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
                "missing_keys": lacking.keys,
                "missing_rows": lacking.rows,
            }
            for table, lacking in zip(tables, missing, strict=True)
        ],
    }
    for table in tables:
        check_unchanged(table.sources)
    in_order = iter(remaining)
    splits: LaidOutSplits = {
        split: [part for _ in before_split for part in next(in_order)] for split, before_split in laid_out.items()
    }
    return FeaturedRows(splits, features, report, reasons, left_out)


def _open(
    parts: Sequence[LaidOut], request: FeaturesRequest, layout: Layout, read: ReadLog | None, engine: Engine
) -> tuple[tuple[Feature, ...], tuple[pl.Expr, ...], list[FeatureTable], tuple[Reason, ...]]:
    """Open the requested features.

    Returns:
        Features that are columns of the rows, one value per impression; their expressions; tables of features, also
        of the log's columns by pair; and cautions.
    """
    schema = parts[0].rows.scan().collect_schema()
    in_rows, own = tuple[Feature, ...](), tuple[pl.Expr, ...]()
    tables, reasons = list[FeatureTable](), tuple[Reason, ...]()
    if read is None:  # of statistics, only the columns of query and document are known
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
            table, reasons = _table_from_log(request.columns, untyped, read, engine.scratch)
            tables.append(table)
    for name in request.tables:
        taken = [feature.name for feature in (*in_rows, *(of for table in tables for of in table.features))]
        tables.append(open_features([name], roles, schema, taken))
    return in_rows, own, tables, reasons


def _table_from_log(
    names: Sequence[str], untyped: Collection[str], read: ReadLog, scratch: Path
) -> tuple[FeatureTable, tuple[Reason, ...]]:
    """Return columns of the log as a table of features by query and document, and cautions on varying values."""
    where = str(read.log.sources[0].path)
    store = partial(_store_distinct, names=tuple(names), folder=scratch)
    distinct = [stored.scan() for stored in read.buckets.map(store)]
    features, expressions = feature_columns(distinct, names, untyped, where)
    frames: list[pl.LazyFrame] = []
    varying = Counter[str]()
    for number, frame in enumerate(distinct):
        pairs, varies = features_of_pairs(frame, expressions, scratch / f"of-pairs-{number:05d}.parquet")
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


def _store_distinct(number: int, impressions: pl.LazyFrame, names: Sequence[str], folder: Path) -> KeptFrame:
    """Store the distinct values of features by query and document of a bucket on disk."""
    return keep(impressions.select(*PAIR, *names).unique().collect(engine="streaming"), folder, f"in-log-{number:05d}")


def _missing(
    table: FeatureTable, parts: Sequence[LaidOut], frames: Sequence[pl.LazyFrame], engine: Engine
) -> MissingFeatures:
    keys = [part.rows.scan().select(PAIR) for part in parts]
    missing = sum(engine.each(list(zip(keys, frames, strict=True)), missing_features), MissingFeatures())
    if table.keys == PAIR or not missing.keys:
        return missing
    lacking = [  # a document may be shown for queries of several parts
        part.rows.scan().select(table.keys).unique().join(frame, on=table.keys, how="anti").collect(engine="streaming")
        for part, frame in zip(parts, frames, strict=True)
    ]
    return replace(missing, keys=pl.concat(lacking).n_unique())


def _drop_rows_without_features(item: tuple[int, LaidOut], layout: Layout, folder: Path | None) -> list[LaidOut]:
    """Drop rows that lack features, then groups that are useless without them, and preferences of dropped rows."""
    number, part = item
    rows = part.rows.scan().with_row_index(_ROW)
    for table in part.tables:
        rows = rows_with_features(rows, table)
    remaining = layout.drop_useless_groups(rows.collect(engine="streaming"))
    remaining = remaining.with_columns(pl.col(GROUP).rle_id().cast(pl.Int64))
    preferences = None if part.preferences is None else part.preferences.load()
    if preferences is not None:  # renumber the rows of preferences
        new = remaining.select(pl.col(_ROW).cast(pl.Int64), GROUP).with_row_index(_NEW_ROW)
        columns = preferences.columns
        for role in (LOSER_ROW, WINNER_ROW):
            joined = preferences.drop(GROUP).join(new, left_on=role, right_on=_ROW, maintain_order="left")
            preferences = joined.with_columns(pl.col(_NEW_ROW).cast(pl.Int64).alias(role)).drop(_NEW_ROW)
        preferences = preferences.select(columns)
    laid_out = keep_rows(folder, f"with-features-{number:05d}", remaining.drop(_ROW), preferences)
    return [replace(rows, own=part.own, tables=part.tables) for rows in laid_out]
