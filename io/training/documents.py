"""Documents to learn from and to score, with their features."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import CountTable, Floats, Integers, concatenate, starts
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SIGNATURE, SufficientStatistics, count_randomized
from posbias.core.errors import LogFormatError, SchemaError
from posbias.core.learners.boosting import Rows, runs
from posbias.core.learners.learning import Features, Learner, LearningData, Pages, SomeRows, sigmoid
from posbias.core.log.pages import in_page_order
from posbias.core.schema import ALIASES, CLICK, DOC, PAIR, QUERY, SESSION, WEIGHT
from posbias.core.training.layout import GROUP, get_layout
from posbias.core.training.weights import hashes, in_validation
from posbias.io.counting.count import CountedLog, PairsOfPart
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.log.scan import check_headers, reading, resolve_quotes, scan_sources
from posbias.io.log.sources import Source, find_sources
from posbias.io.places.temporary import temporary_files
from posbias.io.progress import Progress, Stage
from posbias.io.results.conclusions import Reason
from posbias.io.results.tables import write_in_one_file
from posbias.io.training.feature_parts import FeaturesOfPart, FeaturesRequest, bring_features, chunks, rows_per_chunk
from posbias.io.training.feature_tables import as_number
from posbias.io.training.laid_out import Feature, LaidOut, keep_rows
from posbias.io.training.model_files import Ids, StoredModel

_BYTES = 8


@dataclass(frozen=True)
class RowsOnDisk:
    """A matrix of floats in a file: rows one after the other, each of F floats of 8 bytes."""

    path: Path
    n_rows: int
    n_columns: int  # F

    def __len__(self) -> int:
        """Number of rows."""
        return self.n_rows

    def __getitem__(self, rows: slice | Integers) -> Floats:
        """Some rows, shape (n, F)."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(self.n_rows)
            return self._read(start, max(stop - start, 0))
        if not len(rows):
            return self._read(0, 0)
        first, last = int(rows[0]), int(rows[-1])
        if (np.diff(rows) >= 0).all() and last - first < len(rows):  # in one run, where they stand together
            return self._read(first, last - first + 1)[rows - first]
        return np.concatenate([self._read(int(row), 1) for row in rows])

    def _read(self, first: int, number: int) -> Floats:
        values = np.fromfile(self.path, np.float64, number * self.n_columns, offset=first * self.n_columns * _BYTES)
        return values.reshape(number, self.n_columns)


@dataclass(frozen=True)
class WithoutColumn:
    """Rows of features less one of them."""

    rows: Rows
    column: int

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def __getitem__(self, rows: slice | Integers, /) -> Floats:
        """Some rows, shape (n, F - 1)."""
        return np.delete(self.rows[rows], self.column, axis=1)


def encoded(rows: pl.DataFrame, features: Sequence[Feature]) -> Floats:
    """The features of rows, shape (n, F). A text that is no category counts as missing."""
    columns: list[pl.Expr] = []
    for number, feature in enumerate(features):
        column = pl.col(feature.name)
        if feature.categories is not None:
            column = column.cast(pl.String).cast(pl.Enum(feature.categories), strict=False).to_physical()
        columns.append(column.cast(pl.Float64).fill_null(np.nan).alias(f"f{number}"))
    values = rows.select(columns).to_numpy() if columns else np.zeros((rows.height, 0))
    return np.ascontiguousarray(values, np.float64)


def check_numbers(rows: pl.DataFrame, numbers: pl.DataFrame, features: Sequence[Feature], where: str) -> None:
    """Check that text that should be a number is one.

    Args:
        rows: features as they stand in a file.
        numbers: the same, read as numbers.
        features: which they are.
        where: what is being read, for the message.

    Raises:
        SchemaError: a feature that was numbers in training holds a text that is none.
    """
    for feature in features:
        if feature.categories is not None or rows.schema[feature.name] != pl.String:
            continue
        lost = rows.filter(numbers[feature.name].is_null() & (pl.col(feature.name).str.strip_chars() != ""))
        if lost.height:
            raise SchemaError(
                f"{where}: the feature {feature.name!r} holds {lost[feature.name][0]!r}, and was numbers in training. "
                "Write a number, or leave it empty where it is missing."
            )


_DOCUMENT = "posbias_document"
_CELL = "posbias_cell"


@dataclass(frozen=True)
class Documents:
    """The documents of a log, and what is learnt from them."""

    data: LearningData
    parts: tuple[pl.LazyFrame, ...]  # `query` and `doc` of the documents
    order: Integers  # of each number, where the document stands in these, shape (D,)
    features: tuple[Feature, ...]
    report: dict[str, Any]  # what the manifest says of the features
    reasons: tuple[Reason, ...]

    @property
    def ids(self) -> Ids | None:
        """The ids of queries and of documents across queries, by their numbers; None where the latter have none."""
        if self.data.item is None:
            return None
        pairs = pl.concat(self.parts).collect()
        queries, documents = (
            pairs[column].gather(self.order[np.unique(numbers, return_index=True)[1]])
            for column, numbers in ((QUERY, self.data.query), (DOC, self.data.item))
        )
        return Ids(queries, documents)

    def by_part(self, values: Floats) -> Iterator[tuple[pl.DataFrame, Floats]]:
        """`query` and `doc`, part by part, and what an array of shape (D,) holds for them."""
        first, of_rows = 0, np.empty_like(values)
        of_rows[self.order] = values
        for part in self.parts:
            rows = part.collect()
            yield rows, of_rows[first : first + rows.height]
            first += rows.height


def prepare(
    counted: CountedLog,
    examination: Floats,
    learner: Learner,
    features: FeaturesRequest,
    score: str | None,
    validation: float,
    engine: Engine,
    progress: Progress,
) -> Documents:
    """Add up the counts of every document, bring its features, and number the pages where they are needed.

    Args:
        counted: the log; with its pages, where these are needed.
        examination: theta of each cell as a probability, nan where it is not known, shape (K,).
        learner: says what else it needs.
        features: the features, and the ranker's score, if it is named.
        score: its name, if it is named; it is no feature.
        validation: the share of queries that are set apart.
        engine: where the parts are.
        progress: where stages are reported.

    Raises:
        LogFormatError: a table of features cannot be read.
        SchemaError: features cannot be learnt from, or documents have none; or no query is left to learn from.
    """
    laid_out: list[LaidOut] = []
    tables: list[CountTable] = []
    folder = None if counted.in_memory else engine.scratch
    first = 0
    for part in counted.parts:
        rows, table = _documents_of(part, counted)
        tables.append(table)
        numbered = rows.with_columns(pl.int_range(first, first + rows.height, dtype=pl.Int64).alias(_DOCUMENT))
        kept = keep_rows(folder, f"documents-{part.number:05d}", numbered, None)
        laid_out += [] if kept is None else [kept]
        first += rows.height
    counts = concatenate(tables)
    featured = bring_features({"training": laid_out}, features, get_layout("judgments"), counted.read, engine, progress)
    parts, columns = featured.parts["training"], featured.features
    rows, numbers = _matrix(parts, columns, engine, progress)
    knowledge, place = None, next((number for number, feature in enumerate(columns) if feature.name == score), None)
    if place is not None:
        if columns[place].categories is not None:
            raise SchemaError(f"--ranker-score {score}: holds text. Name the number that the ranker orders by.")
        knowledge = np.concatenate([rows[some][:, place] for some in runs(len(rows))])
        rows, columns = WithoutColumn(rows, place), (*columns[:place], *columns[place + 1 :])
    pairs = [part.rows.scan().select(GROUP, *PAIR) for part, _ in parts]
    queries = [part.select(QUERY).collect().to_series() for part in pairs]
    apart = [in_validation(query, validation).to_numpy() for query in queries] if validation else []
    # by a hash of the query, as in training files
    held_out = np.concatenate([np.zeros(0, np.bool_), *apart]) if apart else np.zeros(sum(map(len, queries)), np.bool_)
    if held_out.all():
        raise SchemaError(
            "no query is left to learn from. Set less apart with --validation."
            if validation
            else "no document is left to learn from: see --missing."
        )
    categorical = tuple(number for number, feature in enumerate(columns) if feature.categories is not None)
    scans, statistics = tuple(part.select(PAIR) for part in pairs), counted.statistics
    read = counted.read if learner.source == "pages" else None
    query, order = _queries(pairs)
    names, in_order = tuple(feature.name for feature in columns), SomeRows(rows, order)
    pages = None if read is None else _pages(read, counted.plan, statistics.cells, scans)
    data = LearningData(
        query=query,
        held_out=held_out[order],
        counts=counts.take(numbers[order]),
        examination=examination,
        position=statistics.position_of_cell,
        features=Features(in_order, names, categorical) if columns else None,
        pages=None if pages is None else replace(pages, document=np.argsort(order)[pages.document]),
        item=None if learner.needs_features else _items(scans)[order],
        randomized=_randomized(statistics, scans).take(order) if learner.needs_randomized else None,
        knowledge=None if knowledge is None else knowledge[order],
    )
    return Documents(data, scans, order, columns, featured.report, featured.reasons)


def _documents_of(part: PairsOfPart, counted: CountedLog) -> tuple[pl.DataFrame, CountTable]:
    """The documents of a part, `group`, `query`, `doc`, and the counts of each over all of its contexts."""
    pairs = part.kept.load()
    signature = part.signature[pairs[SIGNATURE].to_numpy()].astype(np.int64)
    by_pair = counted.statistics.pair_signatures.take(signature)
    document = pairs.select(pl.struct(PAIR).rle_id()).to_series().to_numpy()
    first = np.flatnonzero(np.diff(document, prepend=-1))
    rows = pairs[first].select(pl.col(QUERY).rle_id().cast(pl.Int64).alias(GROUP), QUERY, DOC)
    start = by_pair.start[np.append(first, len(document))]  # cells of two contexts are not the same
    return rows, replace(by_pair, start=start, multiplicity=np.ones(rows.height))


def _matrix(
    parts: Sequence[tuple[LaidOut, FeaturesOfPart]], columns: Sequence[Feature], engine: Engine, progress: Progress
) -> tuple[Rows, Integers]:
    """The features of all documents, and the numbers that these had before some were left out."""
    path = engine.scratch / "features.f64"
    in_memory = all(part.rows.in_memory for part, _ in parts)
    values, numbers, n_rows = [np.zeros((0, len(columns)))], [np.zeros(0, np.int64)], 0
    with progress.stage("encoding", len(parts)) as stage:
        for part, features in parts:
            rows = part.rows.scan()
            if not columns:
                numbers.append(rows.select(_DOCUMENT).collect().to_series().to_numpy())
                continue
            of_part = features.held(engine.memory)
            for chunk in chunks(part.rows, rows_per_chunk(len(columns), engine.memory)):
                with_features = of_part.bring(chunk, rows.collect_schema().names())
                numbers.append(with_features[_DOCUMENT].to_numpy())
                n_rows += with_features.height
                if in_memory:
                    values.append(encoded(with_features, columns))
                    continue
                with temporary_files(path.parent), path.open("ab") as file:
                    encoded(with_features, columns).tofile(file)
            stage.advance()
    return np.concatenate(values) if in_memory else RowsOnDisk(path, n_rows, len(columns)), np.concatenate(numbers)


def _queries(parts: Sequence[pl.LazyFrame]) -> tuple[Integers, Integers]:
    """The number of each document's query, ascending, and which of the documents it is, shapes (D,).

    They are ordered by a hash of the query, so that what is drawn at random is the same in however many parts a log is.
    """
    numbers, of_query, before = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
    for part in parts:
        rows = part.select(QUERY, pl.col(GROUP).rle_id().cast(pl.Int64)).collect()
        number = rows[GROUP].to_numpy()
        distinct = rows[QUERY].gather(np.flatnonzero(np.diff(number, prepend=-1)))
        of_query.append(np.array(hashes(distinct), np.int64)[number])
        numbers.append(number + before)
        before += len(distinct)
    order = np.argsort(np.concatenate(of_query), kind="stable")
    number = np.concatenate(numbers)[order]
    return np.cumsum(np.diff(number, prepend=number[:1]) != 0), order


def _items(parts: Sequence[pl.LazyFrame]) -> Integers:
    docs = pl.concat(part.select(DOC) for part in parts).collect().to_series()
    return docs.rank("dense").to_numpy().astype(np.int64) - 1


def _randomized(statistics: SufficientStatistics, documents: Sequence[pl.LazyFrame]) -> CountTable:
    """The counts of the rows that were placed at random, by document; those without any have no entries."""
    work = partial(count_randomized, plan=statistics.plan, cells=statistics.cells)
    parts = list(statistics.over_rows(work))
    numbered = pl.concat(documents).with_row_index(_DOCUMENT)
    placed = pl.concat(pairs for pairs, _ in parts).lazy()
    number = placed.join(numbered, on=PAIR, how="left", maintain_order="left").select(_DOCUMENT).collect()
    table, of_unit = concatenate([table for _, table in parts]), number.to_series().to_numpy().astype(np.int64)
    entries = np.zeros(numbered.select(pl.len()).collect().item(), np.int64)
    entries[of_unit] = table.entries_of_unit
    in_order = table.take(np.argsort(of_unit))
    return replace(in_order, start=starts(entries), multiplicity=np.ones(len(entries)))


def _pages(read: ReadLog, plan: StatisticsPlan, cells: pl.DataFrame, documents: Sequence[pl.LazyFrame]) -> Pages:
    """The pages of a log, with the numbers of its documents; what was left out is left out of its pages."""
    numbered = pl.concat(documents).with_row_index(_DOCUMENT)
    parts = list(read.buckets.map(partial(_pages_of, plan=plan, cells=cells, documents=numbered)))
    lengths = np.concatenate([lengths for lengths, _ in parts])
    shown = pl.concat(rows for _, rows in parts)
    return Pages(
        start=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)]),
        document=shown[_DOCUMENT].to_numpy().astype(np.int64),
        cell=shown[_CELL].to_numpy().astype(np.int64),
        click=shown[CLICK].to_numpy().astype(np.float64),
    )


def _pages_of(
    _: int, impressions: pl.LazyFrame, plan: StatisticsPlan, cells: pl.DataFrame, documents: pl.LazyFrame
) -> tuple[Integers, pl.DataFrame]:
    """The length of each page of a bucket, and its impressions from top to bottom."""
    own = pl.col(WEIGHT).cast(pl.Float64) if plan.weighted else pl.lit(1.0)
    in_cells = plan.with_cells_in_memory(in_page_order(impressions.collect(engine="streaming")))
    cell_numbers = cells.with_row_index(_CELL)
    numbered = documents.join(in_cells.lazy().select(PAIR).unique(), on=PAIR, how="semi").collect(engine="streaming")
    shown = (
        in_cells.join(cell_numbers, on=list(plan.cell_columns), how="inner", nulls_equal=True, maintain_order="left")
        .join(numbered, on=PAIR, how="inner", maintain_order="left")
        .select(SESSION, _DOCUMENT, _CELL, (pl.col(CLICK).cast(pl.Float64) * own).alias(CLICK))
    )
    lengths = shown.select(pl.col(SESSION).rle().struct.field("len")).to_series().to_numpy().astype(np.int64)
    return lengths, shown.drop(SESSION)


@dataclass(frozen=True)
class NewDocuments:
    """Rows to be scored."""

    sources: tuple[Source, ...]
    keys: dict[str, tuple[str, ...]]  # the columns that become `query` (where there are any) and `doc`, by role
    rows: pl.LazyFrame  # keys and features as they stand there
    features: tuple[Feature, ...]  # of the model, in their order

    def chunks(self, memory: int) -> Iterator[tuple[pl.DataFrame, Floats]]:
        """The rows in their order, some at a time: their keys, and their features, shape (n, F).

        Raises:
            LogFormatError: a file cannot be read.
            SchemaError: a feature that was numbers in training holds other text.
        """
        size = rows_per_chunk(len(self.features), memory)
        where = str(self.sources[0].path)
        with reading(self.sources):
            for rows in self.rows.collect_batches(chunk_size=size, maintain_order=True, engine="streaming"):
                schema = rows.schema
                numbers = rows.select(
                    pl.col(feature.name)
                    if feature.categories is not None
                    else _as_number(feature.name, schema[feature.name]).alias(feature.name)
                    for feature in self.features
                )
                check_numbers(rows, numbers, self.features, where)
                keys = {
                    role: pl.struct(names) if len(names) > 1 else pl.col(names) for role, names in self.keys.items()
                }
                yield rows.select(key.alias(role) for role, key in keys.items()), encoded(numbers, self.features)


def open_new_documents(
    inputs: Sequence[str], query: tuple[str, ...], doc: tuple[str, ...], features: Sequence[Feature]
) -> NewDocuments:
    """Find the rows to be scored. Only headers are read.

    Args:
        inputs: files, globs and directories.
        query: the columns of the query; none: the well-known one, if there is one.
        doc: the columns of the document; none: the well-known one.
        features: of the model.

    Raises:
        LogFormatError: a file is missing or cannot be read.
        SchemaError: there is no document, or a feature is missing.
    """
    sources = resolve_quotes(find_sources(inputs, "Name a table of documents with the features of the model."))[0]
    where = str(sources[0].path)
    with reading(sources):
        raw = scan_sources(sources)
        schema = raw.collect_schema()
        check_headers(sources, schema)
    keys = {QUERY: _columns(QUERY, query, schema, where), DOC: _columns(DOC, doc, schema, where)}
    if not keys[DOC]:
        raise SchemaError(
            f"{where}: no column says which document a row is about. Name it with --doc COLUMN. The columns are: "
            f"{', '.join(schema)}."
        )
    lacking = [feature.name for feature in features if feature.name not in schema]
    if lacking:
        raise SchemaError(
            f"{where}: has no column {lacking[0]!r}{f' and {len(lacking) - 1} more' if len(lacking) > 1 else ''}, "
            "which the model learnt from. Add it, empty where it is not known."
        )
    for feature in features:
        dtype = schema[feature.name]
        if dtype.is_nested() or dtype.is_temporal() or (feature.categories is None and dtype == pl.Binary):
            raise SchemaError(f"{where}: the feature {feature.name!r} holds {dtype}; the model learnt from others.")
    named = {role: names for role, names in keys.items() if names}
    columns = [*(name for names in named.values() for name in names), *(feature.name for feature in features)]
    return NewDocuments(sources, named, raw.select([*dict.fromkeys(columns)]), tuple(features))


def _as_number(name: str, dtype: pl.DataType) -> pl.Expr:
    """A number; in text, true and false are 1 and 0, as booleans were in training."""
    number = as_number(name, dtype)
    if not isinstance(dtype, pl.String):
        return number
    word = pl.col(name).str.strip_chars().str.to_lowercase()
    return pl.when(word == "true").then(1.0).when(word == "false").then(0.0).otherwise(number)


def _columns(role: str, named: tuple[str, ...], schema: pl.Schema, where: str) -> tuple[str, ...]:
    """The columns that play a role.

    Raises:
        SchemaError: one that is named is not there, or several could be it.
    """
    for name in named:
        if name not in schema:
            raise SchemaError(f"{where}: has no column {name!r} (--{role}). The columns are: {', '.join(schema)}.")
    known = named or tuple(name for name in schema if name.lower() in ALIASES[role])
    if not named and len(known) > 1:
        raise SchemaError(f"{where}: {', '.join(known)} could be the {role}. Name it with --{role} COLUMN.")
    return known


SCORES = "scores.parquet"
SCORE, ATTRACTIVENESS = "score", "attractiveness"


def with_scores(rows: pl.DataFrame, scores: Floats, *, is_probability: bool) -> pl.DataFrame:
    """Rows with `score`, and `attractiveness`: 1 / (1 + exp(-score)), null where scores are no logits."""
    attractiveness = sigmoid(scores) if is_probability else np.full(len(scores), np.nan)
    return rows.with_columns(
        pl.Series(SCORE, scores, pl.Float64), pl.Series(ATTRACTIVENESS, attractiveness, pl.Float64, nan_to_null=True)
    )


def score_rows(documents: NewDocuments, stored: StoredModel, memory: int) -> Iterator[pl.DataFrame]:
    """Score documents, some at a time.

    Raises:
        LogFormatError: the numbers of the model are so large that a score is not finite.
    """
    with stored.scoring() as scored:
        for rows, features in documents.chunks(memory):
            if not rows.height:
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                scores = scored(rows, features)
            if not np.isfinite(scores).all():
                raise LogFormatError("--model: its numbers are so large that a score is not finite. Train again.")
            yield with_scores(rows, scores, is_probability=stored.section.is_probability)


def write_scores(parts: Iterable[pl.DataFrame], folder: Path, stage: Stage) -> int:
    """Write `scores.parquet`; return its number of rows.

    Raises:
        SchemaError: there are none.
    """
    n_rows = 0

    def counted() -> Iterator[pl.DataFrame]:
        nonlocal n_rows
        for part in parts:
            n_rows += part.height
            yield part

    for _ in write_in_one_file(counted(), folder / SCORES):
        stage.advance()
    if not n_rows:
        raise SchemaError("there is no row to score.")
    return n_rows
