"""A model on disk: the file that holds it, its features, and a script that scores new rows without posbias.

`model.txt` is LightGBM's own file, `model.npz` holds arrays. Both are data from outside when they are read again, and
their digests are no secret: LightGBM reads its file in a process of its own, and no pickle is read. The ids of queries
and documents that have factors are in files beside these.
"""

import json
import re
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Literal
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import msgspec
import numpy as np
import polars as pl
from polars.exceptions import PolarsError

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.arrays.threads import n_threads
from posbias.core.errors import LogFormatError, SchemaError, UsageError, escaped_json
from posbias.core.fit.propensities import PROPENSITY
from posbias.core.learners.boosting import ModelText
from posbias.core.learners.learning import Learned
from posbias.core.learners.models import FactorModel, Forest, NetworkModel
from posbias.core.schema import DOC, QUERY
from posbias.io.places.locations import Location, open_plain, state_of
from posbias.io.results.manifest import open_stored
from posbias.io.results.tables import read_table
from posbias.io.training.laid_out import Feature
from posbias.io.training.separate_forest import require_lightgbm, separate_forest

Kind = Literal["trees", "network", "factors"]

FEATURE = "feature"
"""The column of the importance that names a feature."""

QUERIES, DOCUMENTS = "queries.parquet", "documents.parquet"
_FILES: dict[Kind, str] = {"trees": "model.txt", "network": "model.npz", "factors": "model.npz"}
_SCRIPTS = Path(__file__).parent / "scripts"
_LEARNED_PROPENSITIES = "learned_propensities.parquet"
_CURVE, _IMPORTANCE, _FEATURES = "learning_curve.parquet", "feature_importance.parquet", "features.json"
_NUMBER = "posbias_number"
_LARGEST = 1 << 30  # bytes of a file
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '<f8', 'fortran_order': (?P<fortran>True|False), "
    rb"'shape': \((?P<shape>([0-9]{1,18},?\x20?){0,4})\), \} *\n",
    re.DOTALL,
)
"""The beginning of a file of NumPy's, as it writes arrays of floats."""


@dataclass(frozen=True)
class Ids:
    """Which queries and documents have factors, in the order of their numbers."""

    queries: pl.Series
    documents: pl.Series

    def write(self, folder: Path) -> None:
        """Write the files: a row for each, its place the place of its factors."""
        self.queries.alias(QUERY).to_frame().write_parquet(folder / QUERIES)
        self.documents.alias(DOC).to_frame().write_parquet(folder / DOCUMENTS)

    def numbers(self, rows: pl.DataFrame) -> tuple[Integers, Integers]:
        """The numbers of the queries and documents of rows; -1 for what was never seen.

        Raises:
            SchemaError: rows have no query, or ids that cannot be compared with those of the model.
        """
        if QUERY not in rows.columns:
            raise SchemaError("the model ranks by query and document, and no column says the query. Name it: --query.")
        return _numbers(self.queries, rows[QUERY], "query"), _numbers(self.documents, rows[DOC], "doc")


def _numbers(known: pl.Series, given: pl.Series, role: str) -> Integers:
    numbered = known.alias("id").to_frame().with_row_index(_NUMBER)
    try:
        ids = given.cast(known.dtype, strict=False).alias("id").to_frame()
        known_ids = ids.join(numbered, on="id", how="left", maintain_order="left", nulls_equal=False)
    except PolarsError as error:
        raise SchemaError(f"--{role}: holds {given.dtype}, and the model knows {known.dtype}.") from error
    return known_ids[_NUMBER].cast(pl.Int64).fill_null(-1).to_numpy().astype(np.int64)


def _ids_in(path: Path, column: str) -> pl.Series:
    table = read_table(path)
    if table.columns != [column] or table[column].has_nulls() or table[column].is_duplicated().any():
        raise LogFormatError(f"{path}: does not hold one column {column!r} of ids, each once. Train again.")
    return table[column]


class ModelSection(msgspec.Struct, frozen=True):
    """The section of a model in the manifest."""

    kind: Kind  # what holds it
    is_probability: bool  # whether 1 / (1 + exp(-score)) is an attractiveness
    features: tuple[Feature, ...]  # what it learnt from, in their order

    def __post_init__(self) -> None:
        """Find features and categories that stand there twice."""
        for names in ([feature.name for feature in self.features], *(feature.categories for feature in self.features)):
            if names is not None and len(set(names)) < len(names):
                raise ValueError("features or categories of one have one name")


class _Trained(msgspec.Struct, frozen=True):
    model: ModelSection


@dataclass(frozen=True)
class StoredModel:
    """A model that was read."""

    model: ModelText | NetworkModel | FactorModel  # LightGBM reads the first in a process of its own
    section: ModelSection
    path: Path
    ids: Ids | None = None  # what has factors, where the model is of factors

    @contextmanager
    def scoring(self) -> Generator[Callable[[pl.DataFrame, Floats], Floats]]:
        """Yield the function from rows, `query` and `doc`, and their features to scores.

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
    """Write what was learnt, but for the scores; return what the manifest says of it."""
    model = learned.model
    kind: Kind = "trees" if isinstance(model, Forest) else "network" if isinstance(model, NetworkModel) else "factors"
    if isinstance(model, Forest):
        (folder / _FILES[kind]).write_bytes(model.text.encode())
    else:
        np.savez(folder / _FILES[kind], allow_pickle=False, **model.arrays())  # the same bytes for the same arrays
    if ids is not None:
        ids.write(folder)
    described = [{"name": feature.name, "categories": feature.categories} for feature in features]
    text = escaped_json(json.dumps(described, ensure_ascii=False, indent=1))
    (folder / _FEATURES).write_text(text + "\n", encoding="utf-8")
    shutil.copyfile(_SCRIPTS / f"{kind}.py.txt", folder / "load.py")
    learned.curve.write_parquet(folder / _CURVE)
    if learned.importance is not None:
        importance_table(learned.importance, features).write_parquet(folder / _IMPORTANCE)
    return ModelSection(kind, is_probability, tuple(features))


def write_learned_propensities(cells: pl.DataFrame, propensities: Floats, folder: Path) -> None:
    """Write the propensities of cells as a learner itself estimates them; null where it has none."""
    column = pl.Series(PROPENSITY, propensities, pl.Float64).fill_nan(None)
    cells.with_columns(column).write_parquet(folder / _LEARNED_PROPENSITIES)


def importance_table(importance: pl.DataFrame, features: Sequence[Feature]) -> pl.DataFrame:
    """The importance of features by name, the largest first."""
    names = pl.Series(FEATURE, [feature.name for feature in features], pl.String)
    return importance.with_columns(names).sort("gain", FEATURE, descending=[True, False])


def read_model(place: Location) -> StoredModel:
    """The model in a directory that `train` wrote.

    Raises:
        LogFormatError: it is damaged.
        MissingExtraError: it is trees, and LightGBM is not installed.
        UsageError: what the directory holds is no model.
    """
    with open_stored(place, (*_FILES.values(), QUERIES, DOCUMENTS)) as stored:
        folder = stored.folder
        if "model" not in stored.content:
            raise UsageError(f"--model {folder}: holds no model. Name the directory that `posbias train` wrote.")
        section = stored.typed(_Trained).model
        path, ids = folder / _FILES[section.kind], None
        if section.kind == "factors":
            ids = Ids(_ids_in(folder / QUERIES, QUERY), _ids_in(folder / DOCUMENTS, DOC))
        try:
            return StoredModel(_model(section, path, ids), section, path, ids)
        except OSError as error:
            raise LogFormatError(f"{path}: cannot be read: {error.strerror}. Train again.") from error
        except (ValueError, BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:  # four of them zipfile's
            raise LogFormatError(f"{path}: is no model that can be read: {error}. Train again.") from error


def _model(section: ModelSection, path: Path, ids: Ids | None) -> ModelText | NetworkModel | FactorModel:
    """The model of a file, of the sizes that stand beside it."""
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
            of_factors = FactorModel.of_arrays(arrays)
            if (len(of_factors.query_bias), len(of_factors.item_bias)) != (len(ids.queries), len(ids.documents)):
                raise ValueError("it has factors of other queries or documents than those beside it")
            return of_factors
        model = NetworkModel.of_arrays(arrays)
    if model.n_features != len(section.features):
        raise ValueError(f"it has {model.n_features:,} features, and the manifest {len(section.features):,}")
    return model


def _array(entry: ZipInfo, archive: ZipFile) -> Floats:
    """An array as `np.savez` writes it: not compressed, and as large as it says. NumPy would reserve what it says."""
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
