"""Rankers: their learning data, their models on disk, and the scoring of new documents.

A stored model consists of `model.txt` (LightGBM's format) or `model.npz` (arrays), its features, a script that scores
new rows without posbias, and for factors the ids of queries and documents. Model files are untrusted input, as their
digests are no secret: LightGBM reads its file in a separate process, and no pickle is read.
"""

import re
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, Literal
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import msgspec
import numpy as np
import polars as pl
from polars.exceptions import PolarsError

from posbias.core.arrays.count_table import CountTable, Floats, Hashes, Integers, concatenate, starts
from posbias.core.arrays.threads import n_threads
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SIGNATURE, SufficientStatistics, count_randomized, dense_row_ranks
from posbias.core.errors import LogFormatError, SchemaError, UsageError
from posbias.core.fit.propensities import PROPENSITY
from posbias.core.learners.boosting import ModelText, Rows, RowsBy, select_rows, slices_of_size
from posbias.core.learners.learning import Features, Learned, Learner, LearningData, Pages, sigmoid
from posbias.core.learners.models import FactorModel, Forest, NetworkModel
from posbias.core.log.pages import in_page_order
from posbias.core.schema import CLICK, DOC, PAIR, QUERY, SESSION, WEIGHT
from posbias.core.training.layout import GROUP, get_layout
from posbias.core.training.weights import is_in_validation, split_hashes
from posbias.io.counting.count import CountedLog, PairsOfPart
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.log.scan import check_headers, reading, resolve_quotes, scan_sources
from posbias.io.log.sources import Source, find_sources
from posbias.io.places.locations import Location, open_plain, state_of
from posbias.io.places.temporary import temporary_files
from posbias.io.progress import Progress, Stage
from posbias.io.results.conclusions import Reason
from posbias.io.results.manifest import open_stored
from posbias.io.results.tables import read_table, write_in_one_file
from posbias.io.training.feature_parts import FeaturesRequest, bring_features
from posbias.io.training.feature_tables import as_number, key_columns
from posbias.io.training.laid_out import Feature, LaidOut, as_numbers, keep_rows, rows_per_chunk, write_features
from posbias.io.training.separate_forest import require_lightgbm, separate_forest

Kind = Literal["trees", "network", "factors"]

FEATURE = "feature"
"""Column of the importance table: name of the feature."""

QUERIES, DOCUMENTS = "queries.parquet", "documents.parquet"
_FILES: dict[Kind, str] = {"trees": "model.txt", "network": "model.npz", "factors": "model.npz"}
_SCRIPTS = Path(__file__).parent / "scripts"
_LEARNED_PROPENSITIES = "learned_propensities.parquet"
_CURVE, _IMPORTANCE = "learning_curve.parquet", "feature_importance.parquet"
_NUMBER = "posbias_number"
_LARGEST = 1 << 30  # most bytes of a model file
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '<f8', 'fortran_order': (?P<fortran>True|False), "
    rb"'shape': \((?P<shape>([0-9]{1,18},?\x20?){0,4})\), \} *\n",
    re.DOTALL,
)
"""Header of an array of floats in NumPy's file format."""


@dataclass(frozen=True)
class Ids:
    """Queries and documents with factors, in the order of their numbers."""

    queries: pl.Series
    documents: pl.Series

    def numbers(self, rows: pl.DataFrame) -> tuple[Integers, Integers]:
        """Return the numbers of the queries and documents of rows; -1 for unknown ids.

        Raises:
            SchemaError: rows have no query, or ids of a type that cannot be converted to that of the model.
        """
        if QUERY not in rows.columns:
            raise SchemaError("the model ranks by query and document, and no column says the query. Name it: --query.")

        def numbers(known: pl.Series, given: pl.Series, role: str) -> Integers:
            numbered = known.alias("id").to_frame().with_row_index(_NUMBER)
            try:
                ids = given.cast(known.dtype, strict=False).alias("id").to_frame()
                known_ids = ids.join(numbered, on="id", how="left", maintain_order="left", nulls_equal=False)
            except PolarsError as error:
                raise SchemaError(f"--{role}: holds {given.dtype}, and the model knows {known.dtype}.") from error
            return known_ids[_NUMBER].cast(pl.Int64).fill_null(-1).to_numpy().astype(np.int64)

        return numbers(self.queries, rows[QUERY], "query"), numbers(self.documents, rows[DOC], "doc")


def _ids_in(path: Path, column: str) -> pl.Series:
    table = read_table(path)
    if table.columns != [column] or table[column].has_nulls() or table[column].is_duplicated().any():
        raise LogFormatError(f"{path}: does not hold one column {column!r} of ids, each once. Train again.")
    return table[column]


class ModelSection(msgspec.Struct, frozen=True):
    """The section of a model in the manifest."""

    kind: Kind
    is_probability: bool  # whether 1 / (1 + exp(-score)) is an attractiveness
    features: tuple[Feature, ...]  # features of the training data, in their order

    def __post_init__(self) -> None:
        """Check that names of features, and the categories of each, are unique."""
        for names in ([feature.name for feature in self.features], *(feature.categories for feature in self.features)):
            if names is not None and len(set(names)) < len(names):
                raise ValueError("features or categories of one have one name")


class _Manifest(msgspec.Struct, frozen=True):
    model: ModelSection


@dataclass(frozen=True)
class StoredModel:
    """A model on disk."""

    model: ModelText | NetworkModel | FactorModel
    section: ModelSection
    path: Path
    ids: Ids | None = None  # ids of a `FactorModel`

    @contextmanager
    def scoring(self) -> Generator[Callable[[pl.DataFrame, Floats], Floats]]:
        """Yield the function from rows (`query`, `doc`) and their features, shape (n, F), to scores, shape (n,).

        Raises:
            LogFormatError: LightGBM cannot score with the model.
        """
        model, ids = self.model, self.ids
        if isinstance(model, ModelText):
            with separate_forest(model.text(), self.path, n_threads()) as scores:
                yield lambda _, features: scores(features)
        elif isinstance(model, FactorModel) and ids is not None:
            yield lambda rows, _: model.scores(*ids.numbers(rows))
        elif isinstance(model, NetworkModel):
            yield lambda _, features: model.scores(features)


def write_model(
    learned: Learned, features: Sequence[Feature], folder: Path, *, is_probability: bool, ids: Ids | None = None
) -> ModelSection:
    """Write a model, its script, features, learning curve and importance; return its section of the manifest."""
    model = learned.model
    kind: Kind = "trees" if isinstance(model, Forest) else "network" if isinstance(model, NetworkModel) else "factors"
    if isinstance(model, Forest):
        (folder / _FILES[kind]).write_bytes(model.text.encode())
    else:
        np.savez(folder / _FILES[kind], allow_pickle=False, **model.arrays())  # deterministic: no times of files
    if ids is not None:  # sorted as the factors
        ids.queries.alias(QUERY).to_frame().write_parquet(folder / QUERIES)
        ids.documents.alias(DOC).to_frame().write_parquet(folder / DOCUMENTS)
    write_features(features, folder)
    shutil.copyfile(_SCRIPTS / f"{kind}.py.txt", folder / "load.py")
    learned.curve.write_parquet(folder / _CURVE)
    if learned.importance is not None:
        named_importance(learned.importance, features).write_parquet(folder / _IMPORTANCE)
    return ModelSection(kind, is_probability, tuple(features))


def write_learned_propensities(cells: pl.DataFrame, propensities: Floats, folder: Path) -> None:
    """Write the propensities that a learner estimates, null for cells without one."""
    column = pl.Series(PROPENSITY, propensities, pl.Float64).fill_nan(None)
    cells.with_columns(column).write_parquet(folder / _LEARNED_PROPENSITIES)


def named_importance(importance: pl.DataFrame, features: Sequence[Feature]) -> pl.DataFrame:
    """Return the importance of features with their names, sorted by gain, descending."""
    names = pl.Series(FEATURE, [feature.name for feature in features], pl.String)
    return importance.with_columns(names).sort("gain", FEATURE, descending=[True, False])


def read_model(place: Location) -> StoredModel:
    """Read the model in a directory that `train` wrote.

    Raises:
        LogFormatError: the model is damaged.
        MissingExtraError: the model consists of trees, and LightGBM is not installed.
        UsageError: the directory holds no model.
    """
    with open_stored(place, (*_FILES.values(), QUERIES, DOCUMENTS)) as stored:
        folder = stored.folder
        if "model" not in stored.content:
            raise UsageError(f"{folder}: holds no model. Name the directory that `posbias train` wrote.")
        section = stored.typed(_Manifest).model
        path, ids = folder / _FILES[section.kind], None
        if section.kind == "factors":
            ids = Ids(_ids_in(folder / QUERIES, QUERY), _ids_in(folder / DOCUMENTS, DOC))
        try:
            return StoredModel(_parse_model(section, path, ids), section, path, ids)
        except OSError as error:
            raise LogFormatError(f"{path}: cannot be read: {error.strerror}. Train again.") from error
        except (ValueError, BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:  # zipfile raises four
            raise LogFormatError(f"{path}: is no model that can be read: {error}. Train again.") from error


def _parse_model(section: ModelSection, path: Path, ids: Ids | None) -> ModelText | NetworkModel | FactorModel:
    """Parse a model file, and check that it matches its features and ids.

    Raises:
        ValueError: the file is too large, damaged, or does not match; also other errors of `zipfile`.
    """
    with open_plain(path) as file:
        size = state_of(file).bytes
        if size > _LARGEST:
            raise ValueError(f"it has {size:,} bytes, and a model has {_LARGEST:,} at most")
        content = file.readall()
    if section.kind == "trees":
        require_lightgbm()
        model = ModelText.parse(content.decode())
        model.check()
        if not model.trees:
            raise ValueError("it has no tree")
    else:
        with ZipFile(BytesIO(content)) as archive:
            entries = archive.infolist()
            arrays = {entry.filename.removesuffix(".npy"): _array(entry, archive) for entry in entries}
        if len(arrays) < len(entries):
            raise ValueError("it holds an array twice")
        if ids is not None:
            factors = FactorModel.from_arrays(arrays)
            if (len(factors.query_bias), len(factors.item_bias)) != (len(ids.queries), len(ids.documents)):
                raise ValueError("it has factors of other queries or documents than those beside it")
            return factors
        model = NetworkModel.from_arrays(arrays)
    if model.n_features != len(section.features):
        raise ValueError(f"it has {model.n_features:,} features, and the manifest {len(section.features):,}")
    return model


def _array(entry: ZipInfo, archive: ZipFile) -> Floats:
    """Parse an array that `np.savez` wrote; NumPy would allocate whatever size its header claims.

    Raises:
        ValueError: the array is compressed, does not hold floats, or has another size than its header claims.
    """
    if entry.compress_type != ZIP_STORED:
        raise ValueError(f"{entry.filename} is compressed")
    content = archive.read(entry)
    header = _HEADER.match(content)
    if header is None:
        raise ValueError(f"{entry.filename} holds no array of numbers")
    shape = tuple(map(int, header["shape"].replace(b",", b" ").split()))
    values = np.frombuffer(content, "<f8", offset=header.end())
    if values.size != prod(shape):
        raise ValueError(f"{entry.filename} has not the shape that it says")
    return values.reshape(shape, order="F" if header["fortran"] == b"True" else "C").astype(np.float64)


_BYTES = 8


def rows_on_disk(path: Path, n_rows: int, n_columns: int) -> Rows:
    """Return a matrix of floats, shape (n, F), that is stored row by row in a file."""

    def span(first: int, number: int) -> Floats:
        values = np.fromfile(path, np.float64, number * n_columns, offset=first * n_columns * _BYTES)
        return values.reshape(number, n_columns)

    def read(rows: slice | Integers) -> Floats:
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(n_rows)
            return span(start, max(stop - start, 0))
        first, last = (int(rows[0]), int(rows[-1])) if len(rows) else (0, -1)
        if (np.diff(rows) >= 0).all() and last - first < len(rows):  # contiguous rows are read at once
            return span(first, last - first + 1)[rows - first]
        return np.concatenate([span(int(row), 1) for row in rows])

    return RowsBy(n_rows, read)


def as_served(rows: Rows, *, missing_as_zero: bool) -> Rows:
    """Return rows of features as a search engine passes them to a model: in single precision, NaN as 0 if requested."""

    def read(selection: slice | Integers) -> Floats:
        with np.errstate(over="ignore"):
            values = rows[selection].astype(np.float32).astype(np.float64)
        return np.where(np.isnan(values), 0.0, values) if missing_as_zero else values

    return RowsBy(len(rows), read)


def encoded(rows: pl.DataFrame, features: Sequence[Feature]) -> Floats:
    """Return the features of rows as floats, shape (n, F); NaN for missing values and unknown texts."""
    words = [feature.name for feature in features if feature.categories is not None]
    values = as_numbers(rows.with_columns(pl.col(words).cast(pl.String)), features)
    values = values.cast(pl.Float64).fill_null(np.nan).to_numpy()
    return np.ascontiguousarray(values if features else np.zeros((rows.height, 0)), np.float64)


_DOCUMENT = "posbias_document"
_CELL = "posbias_cell"


@dataclass(frozen=True)
class Documents:
    """The (query, document) pairs of a log as learning data, in the order of `data`."""

    data: LearningData
    parts: tuple[pl.LazyFrame, ...]  # `query` and `doc` of the pairs, in the order of the log's parts
    order: Integers  # row in `parts` of each pair of `data`, shape (D,)
    features: tuple[Feature, ...]
    report: dict[str, Any]  # the features in the manifest
    reasons: tuple[Reason, ...]  # cautions about the features

    @property
    def ids(self) -> Ids | None:
        """Ids of queries, and of documents over all queries, by number; None if documents have no numbers."""
        if self.data.item is None:
            return None
        pairs = pl.concat(self.parts).collect()
        queries, documents = (
            pairs[column].gather(self.order[np.unique(numbers, return_index=True)[1]])
            for column, numbers in ((QUERY, self.data.query), (DOC, self.data.item))
        )
        return Ids(queries, documents)

    @property
    def across_queries(self) -> Hashes:
        """Hash of the document of each pair, the same in all queries, shape (D,)."""
        return pl.concat(self.parts).select(pl.col(DOC).hash()).collect().to_series().to_numpy()[self.order]

    def by_part(self, values: Floats) -> Iterator[tuple[pl.DataFrame, Floats]]:
        """Yield `query` and `doc` of each part, and their elements of an array of shape (D,)."""
        first, in_parts = 0, np.empty_like(values)
        in_parts[self.order] = values
        for part in self.parts:
            rows = part.collect()
            yield rows, in_parts[first : first + rows.height]
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
    """Prepare the data of a learner: counts and features of each (query, document) pair, and pages if it needs them.

    Args:
        counted: the counted log; with its rows, if the learner needs pages.
        examination: theta of each cell as a probability, NaN if unknown, shape (K,).
        learner: the learner, which specifies the data that it needs.
        features: the requested features, including the ranker's score.
        score: name of the ranker's score, which is not used as a feature.
        validation: share of queries to hold out.
        engine: engine that holds the parts.
        progress: progress display.

    Raises:
        LogFormatError: a table of features cannot be read.
        SchemaError: features are invalid or missing, or no query is left to learn from.
    """
    laid_out: list[LaidOut] = []
    tables: list[CountTable] = []
    folder = None if counted.in_memory else engine.scratch
    first = 0
    for part in counted.parts:
        rows, table = _pairs_of_part(part, counted)
        tables.append(table)
        numbered = rows.with_columns(pl.int_range(first, first + rows.height, dtype=pl.Int64).alias(_DOCUMENT))
        laid_out += keep_rows(folder, f"documents-{part.number:05d}", numbered, None)
        first += rows.height
    counts = concatenate(tables)
    featured = bring_features({"training": laid_out}, features, get_layout("judgments"), counted.read, engine, progress)
    parts, columns = featured.parts["training"], featured.features
    rows, numbers = _feature_matrix(parts, columns, engine, progress)
    knowledge, place = None, next((number for number, feature in enumerate(columns) if feature.name == score), None)
    if place is not None:
        if columns[place].categories is not None:
            raise SchemaError(f"--ranker-score {score}: holds text. Name the number that the ranker orders by.")
        knowledge = np.concatenate([rows[run][:, place] for run in slices_of_size(len(rows))])
        all_columns, columns = rows, (*columns[:place], *columns[place + 1 :])
        rows = RowsBy(len(all_columns), lambda selection: np.delete(all_columns[selection], place, axis=1))
    pairs = [part.rows.scan().select(GROUP, *PAIR) for part in parts]
    queries = [part.select(QUERY).collect().to_series() for part in pairs]
    held_out = np.zeros(sum(map(len, queries)), np.bool_)
    if validation and queries:
        held_out = np.concatenate([is_in_validation(query, validation).to_numpy() for query in queries])
    if held_out.all():
        raise SchemaError(
            "no query is left to learn from. Set less apart with --validation."
            if validation
            else "no document is left to learn from: see --missing."
        )
    categorical = tuple(number for number, feature in enumerate(columns) if feature.categories is not None)
    scans, statistics = tuple(part.select(PAIR) for part in pairs), counted.statistics
    read = counted.read if learner.source == "pages" else None
    query, order = _sort_by_query(pairs)
    names, in_order = tuple(feature.name for feature in columns), select_rows(rows, order)
    pages = None if read is None else _pages(read, counted.plan, statistics.cells, scans)
    item = None
    if not learner.needs_features:
        docs = pl.concat(part.select(DOC) for part in scans).collect().to_series()
        item = docs.rank("dense").to_numpy().astype(np.int64)[order] - 1
    data = LearningData(
        query=query,
        held_out=held_out[order],
        counts=counts.take(numbers[order]),
        examination=examination,
        position=statistics.position_of_cell,
        features=Features(in_order, names, categorical) if columns else None,
        pages=None if pages is None else replace(pages, document=np.argsort(order)[pages.document]),
        item=item,
        randomized=_randomized(statistics, scans).take(order) if learner.needs_randomized else None,
        knowledge=None if knowledge is None else knowledge[order],
        curve=dense_row_ranks(statistics.cells.select(counted.plan.cell)) if counted.plan.cell else None,
    )
    return Documents(data, scans, order, columns, featured.report, featured.reasons)


def _pairs_of_part(part: PairsOfPart, counted: CountedLog) -> tuple[pl.DataFrame, CountTable]:
    """Return `group`, `query` and `doc` of the pairs of a part, and their counts over all contexts."""
    pairs = part.kept.load()
    signature = part.signature[pairs[SIGNATURE].to_numpy()].astype(np.int64)
    by_pair = counted.statistics.pair_signatures.take(signature)
    document = pairs.select(pl.struct(PAIR).rle_id()).to_series().to_numpy()
    first = np.flatnonzero(np.diff(document, prepend=-1))
    rows = pairs[first].select(pl.col(QUERY).rle_id().cast(pl.Int64).alias(GROUP), QUERY, DOC)
    start = by_pair.start[np.append(first, len(document))]  # contexts share no cell: entries need not be merged
    return rows, replace(by_pair, start=start, multiplicity=np.ones(rows.height))


def _feature_matrix(
    parts: Sequence[LaidOut], columns: Sequence[Feature], engine: Engine, progress: Progress
) -> tuple[Rows, Integers]:
    """Return the features of all pairs with features, shape (D, F), and the numbers of these pairs, shape (D,)."""
    path = engine.scratch / "features.f64"
    in_memory = all(part.rows.in_memory for part in parts)
    values, numbers, n_rows = [np.zeros((0, len(columns)))], [np.zeros(0, np.int64)], 0
    with progress.stage("encoding", len(parts)) as stage:
        for part in parts:
            for chunk in part.chunks(engine.memory):
                numbers.append(chunk[_DOCUMENT].to_numpy())
                n_rows += chunk.height
                if in_memory or not columns:
                    values.append(encoded(chunk, columns))
                    continue
                with temporary_files(path.parent), path.open("ab") as file:
                    encoded(chunk, columns).tofile(file)
            stage.advance()
    return np.concatenate(values) if in_memory else rows_on_disk(path, n_rows, len(columns)), np.concatenate(numbers)


def _sort_by_query(parts: Sequence[pl.LazyFrame]) -> tuple[Integers, Integers]:
    """Sort pairs by a hash of their query, so that random draws do not depend on the number of parts.

    Returns:
        The number of each pair's query, ascending from 0, and the row of the pair in `parts`, both of shape (D,).
    """
    numbers, hashes, before = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
    for part in parts:
        rows = part.select(QUERY, pl.col(GROUP).rle_id().cast(pl.Int64)).collect()
        number = rows[GROUP].to_numpy()
        distinct = rows[QUERY].gather(np.flatnonzero(np.diff(number, prepend=-1)))
        hashes.append(np.array(split_hashes(distinct), np.int64)[number])
        numbers.append(number + before)
        before += len(distinct)
    order = np.argsort(np.concatenate(hashes), kind="stable")
    number = np.concatenate(numbers)[order]
    return np.cumsum(np.diff(number, prepend=number[:1]) != 0), order


def _randomized(statistics: SufficientStatistics, documents: Sequence[pl.LazyFrame]) -> CountTable:
    """Return the counts of randomised rows by pair; pairs without such rows have no entries."""
    work = partial(count_randomized, plan=statistics.plan, cells=statistics.cells)
    parts = list(statistics.map_parts(work))
    numbered = pl.concat(documents).with_row_index(_DOCUMENT)
    placed = pl.concat(pairs for pairs, _ in parts).lazy()
    number = placed.join(numbered, on=PAIR, how="left", maintain_order="left").select(_DOCUMENT).collect()
    table, unit = concatenate([table for _, table in parts]), number.to_series().to_numpy().astype(np.int64)
    entries = np.zeros(numbered.select(pl.len()).collect().item(), np.int64)
    entries[unit] = table.entries_of_unit
    return replace(table.take(np.argsort(unit)), start=starts(entries), multiplicity=np.ones(len(entries)))


def _pages(read: ReadLog, plan: StatisticsPlan, cells: pl.DataFrame, documents: Sequence[pl.LazyFrame]) -> Pages:
    """Return the pages of a log with the numbers of its pairs, without impressions of pairs that are left out."""
    numbered = pl.concat(documents).with_row_index(_DOCUMENT)
    parts = list(read.buckets.map(partial(_pages_of_part, plan=plan, cells=cells, documents=numbered)))
    lengths = np.concatenate([lengths for lengths, _ in parts])
    shown = pl.concat(rows for _, rows in parts)
    return Pages(
        start=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)]),
        document=shown[_DOCUMENT].to_numpy().astype(np.int64),
        cell=shown[_CELL].to_numpy().astype(np.int64),
        click=shown[CLICK].to_numpy().astype(np.float64),
    )


def _pages_of_part(
    _: int, impressions: pl.LazyFrame, plan: StatisticsPlan, cells: pl.DataFrame, documents: pl.LazyFrame
) -> tuple[Integers, pl.DataFrame]:
    """Return the length of each page of a bucket, and the impressions in page order."""
    weight = pl.col(WEIGHT).cast(pl.Float64) if plan.weighted else pl.lit(1.0)
    in_cells = plan.with_cells_in_memory(in_page_order(impressions.collect(engine="streaming"), plan.cell))
    cell_numbers = cells.with_row_index(_CELL)
    numbered = documents.join(in_cells.lazy().select(PAIR).unique(), on=PAIR, how="semi").collect(engine="streaming")
    shown = (
        in_cells.join(cell_numbers, on=list(plan.cell_columns), how="inner", nulls_equal=True, maintain_order="left")
        .join(numbered, on=PAIR, how="inner", maintain_order="left")
        .select(SESSION, _DOCUMENT, _CELL, (pl.col(CLICK).cast(pl.Float64) * weight).alias(CLICK))
    )
    lengths = shown.select(pl.col(SESSION).rle().struct.field("len")).to_series().to_numpy().astype(np.int64)
    return lengths, shown.drop(SESSION)


@dataclass(frozen=True)
class NewDocuments:
    """Rows to be scored."""

    sources: tuple[Source, ...]
    keys: dict[str, tuple[str, ...]]  # columns of `doc`, and of `query` if there are any
    rows: pl.LazyFrame  # raw columns of keys and features
    features: tuple[Feature, ...]  # features of the model, in their order

    def chunks(self, memory: int) -> Iterator[tuple[pl.DataFrame, Floats]]:
        """Yield the rows in chunks: `query` (if known) and `doc`, and features, shape (n, F).

        Raises:
            LogFormatError: a file cannot be read.
            SchemaError: a feature that was numeric in training holds other text.
        """
        size = rows_per_chunk(len(self.features), memory)
        where = str(self.sources[0].path)
        with reading(self.sources):
            for rows in self.rows.collect_batches(chunk_size=size, maintain_order=True, engine="streaming"):
                numbers = rows
                for name in (feature.name for feature in self.features if feature.categories is None):
                    number, word = as_number(name, rows.schema[name]), pl.col(name).str.strip_chars()
                    if rows.schema[name] == pl.String:  # true and false are 1 and 0, as booleans in training
                        number = pl.when(word.str.to_lowercase() == "true").then(1.0).otherwise(number)
                        number = pl.when(word.str.to_lowercase() == "false").then(0.0).otherwise(number)
                        lost = rows.filter(number.is_null() & (word != ""))
                        if lost.height:
                            raise SchemaError(
                                f"{where}: the feature {name!r} holds {lost[name][0]!r}, and was numbers in training. "
                                "Write a number, or leave it empty where it is missing."
                            )
                    numbers = numbers.with_columns(number.alias(name))
                keys = {
                    role: pl.struct(names) if len(names) > 1 else pl.col(names) for role, names in self.keys.items()
                }
                yield rows.select(key.alias(role) for role, key in keys.items()), encoded(numbers, self.features)


def open_new_documents(
    inputs: Sequence[str], query: tuple[str, ...], doc: tuple[str, ...], features: Sequence[Feature]
) -> NewDocuments:
    """Open a table of rows to be scored. Only headers are read.

    Args:
        inputs: files, globs and directories.
        query: columns of the query; if empty, the column with a well-known name, if there is one.
        doc: columns of the document; if empty, the column with a well-known name.
        features: features of the model.

    Raises:
        LogFormatError: a file is missing or cannot be read.
        SchemaError: there is no column of documents, or a feature is missing or of another type.
    """
    sources = resolve_quotes(find_sources(inputs, "Name a table of documents with the features of the model."))[0]
    where = str(sources[0].path)
    with reading(sources):
        raw = scan_sources(sources)
        schema = raw.collect_schema()
        check_headers(sources, schema)
    named = {QUERY: query, DOC: doc}
    keys = {role: key_columns(role, names, list(schema), where, by_option=True) for role, names in named.items()}
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


SCORES = "scores.parquet"
SCORE, ATTRACTIVENESS = "score", "attractiveness"


def with_scores(rows: pl.DataFrame, scores: Floats, *, is_probability: bool) -> pl.DataFrame:
    """Add `score`, and `attractiveness` = 1 / (1 + exp(-score)), null if scores are no logits."""
    attractiveness = sigmoid(scores) if is_probability else np.full(len(scores), np.nan)
    return rows.with_columns(
        pl.Series(SCORE, scores, pl.Float64), pl.Series(ATTRACTIVENESS, attractiveness, pl.Float64, nan_to_null=True)
    )


def score_rows(documents: NewDocuments, stored: StoredModel, memory: int) -> Iterator[pl.DataFrame]:
    """Score documents, chunk by chunk.

    Raises:
        LogFormatError: a score is not finite, or LightGBM cannot score with the model.
        SchemaError: as for `NewDocuments.chunks` and `Ids.numbers`.
    """
    with stored.scoring() as score:
        for rows, features in documents.chunks(memory):
            if not rows.height:
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                scores = score(rows, features)
            if not np.isfinite(scores).all():
                raise LogFormatError("--model: its numbers are so large that a score is not finite. Train again.")
            yield with_scores(rows, scores, is_probability=stored.section.is_probability)


def write_scores(parts: Iterable[pl.DataFrame], folder: Path, stage: Stage) -> int:
    """Write `scores.parquet`; return its number of rows.

    Raises:
        SchemaError: there are no rows.
    """
    path = folder / SCORES
    for _ in write_in_one_file(parts, path):
        stage.advance()
    if not path.exists():
        raise SchemaError("there is no row to score.")
    return pl.scan_parquet(path, glob=False).select(pl.len()).collect().item()
