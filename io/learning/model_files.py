"""A model on disk: the file that holds it, its features, and a script that scores new rows.

`model.txt` is LightGBM's own file, `model.npz` holds arrays. Both are data from outside when they are read again, and
their digests are no secret: every number is checked to be in range, and no native code and no pickle reads them.

The script beside a model that scores new rows without posbias.

The ids of queries and documents that have factors, in files beside these.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, Literal
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import msgspec
import numpy as np
import polars as pl
from polars.exceptions import PolarsError

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.errors import LogFormatError, SchemaError, UsageError
from posbias.core.escapes import escaped_json
from posbias.core.fit.propensities import PROPENSITY
from posbias.core.learners.forest import Forest
from posbias.core.learners.learner import Learned
from posbias.core.learners.models import FactorModel, NetworkModel, RowModel
from posbias.core.schema import DOC, QUERY
from posbias.io.layouts.training_set import Feature
from posbias.io.places.locations import Location
from posbias.io.places.plain_files import open_plain, state_of_open
from posbias.io.results.stored import open_stored
from posbias.io.results.tables import read_table

QUERIES, DOCUMENTS = "queries.parquet", "documents.parquet"
_NUMBER = "posbias_number"


@dataclass(frozen=True)
class Ids:
    """Which queries and documents have factors.

    Attributes:
        queries: in the order of their numbers.
        documents: likewise.
    """

    queries: pl.Series
    documents: pl.Series

    def files(self) -> dict[str, bytes]:
        """The content of the files, by name: a row for each, its place the place of its factors."""
        return {QUERIES: _packed_ids(self.queries.alias(QUERY)), DOCUMENTS: _packed_ids(self.documents.alias(DOC))}

    @classmethod
    def read(cls, folder: Path) -> "Ids":
        """The ids beside a model.

        Raises:
            LogFormatError: a file holds none.
        """
        return cls(_ids_in(folder / QUERIES, QUERY), _ids_in(folder / DOCUMENTS, DOC))

    def numbers(self, rows: pl.DataFrame) -> tuple[Integers, Integers]:
        """The numbers of the queries and documents of rows; -1 for what was never seen.

        Raises:
            SchemaError: rows have no query, or ids that cannot be compared with those of the model.
        """
        if QUERY not in rows.columns:
            raise SchemaError("the model ranks by query and document, and no column says the query. Name it: --query.")
        return _numbers(self.queries, rows[QUERY], "query"), _numbers(self.documents, rows[DOC], "doc")


def _numbers(known: pl.Series, wanted: pl.Series, role: str) -> Integers:
    numbered = known.alias("id").to_frame().with_row_index(_NUMBER)
    try:
        asked = wanted.cast(known.dtype, strict=False).alias("id").to_frame()
        found = asked.join(numbered, on="id", how="left", maintain_order="left", nulls_equal=False)
    except PolarsError as error:
        raise SchemaError(f"--{role}: holds {wanted.dtype}, and the model knows {known.dtype}.") from error
    return found[_NUMBER].cast(pl.Int64).fill_null(-1).to_numpy().astype(np.int64)


def _packed_ids(ids: pl.Series) -> bytes:
    file = BytesIO()
    ids.to_frame().write_parquet(file)
    return file.getvalue()


def _ids_in(path: Path, column: str) -> pl.Series:
    table = read_table(path)
    if table.columns != [column] or table[column].has_nulls() or table[column].is_duplicated().any():
        raise LogFormatError(f"{path}: does not hold one column {column!r} of ids, each once. Train again.")
    return table[column]


_SHARED = '''"""Scores rows of features with the model beside this file.

    python load.py ROWS.parquet > scores.csv        (or ROWS.csv)

or, from Python: `score(rows)` with a Polars frame that has the columns of features.json.
"""

import json
import sys
from pathlib import Path

@IMPORTS@
HERE = Path(__file__).resolve().parent
FEATURES = json.loads((HERE / "features.json").read_text(encoding="utf-8"))
@MODEL@

def encode(rows: pl.DataFrame) -> np.ndarray:
    """Text as its place among the categories, booleans as 0 and 1, what is missing as nan."""
    columns = []
    for feature in FEATURES:
        column = rows[feature["name"]]
        if feature["categories"] is not None:
            column = column.cast(pl.String).cast(pl.Enum(feature["categories"]), strict=False).to_physical()
        columns.append(column.cast(pl.Float64).fill_null(float("nan")).to_numpy())
    return np.column_stack(columns)


def score(rows: pl.DataFrame) -> np.ndarray:
    """The score of each row: the larger, the more relevant."""
    @SCORE@


if __name__ == "__main__":
    path = Path(sys.argv[1])
    rows = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path)
    names = {feature["name"] for feature in FEATURES}
    others = rows.select(name for name in rows.columns if name not in names)
    print(others.with_columns(score=pl.Series(score(rows))).write_csv(), end="")
'''

_TREES = {
    "IMPORTS": "import lightgbm as lgb\nimport numpy as np\nimport polars as pl\n",
    "MODEL": 'MODEL = lgb.Booster(model_file=str(HERE / "model.txt"))\n',
    "SCORE": "return MODEL.predict(encode(rows), raw_score=True)",
}

_NETWORK = {
    "IMPORTS": "import numpy as np\nimport polars as pl\n",
    "MODEL": """with np.load(HERE / "model.npz", allow_pickle=False) as file:
    MODEL = dict(file)
LAYERS = sum(name.startswith("weight_") for name in MODEL)
""",
    "SCORE": """hidden = np.nan_to_num(np.clip((encode(rows) - MODEL["mean"]) / MODEL["scale"], -5.0, 5.0))
    for layer in range(LAYERS):
        hidden = hidden @ MODEL[f"weight_{layer}"] + MODEL[f"bias_{layer}"]
        if layer < LAYERS - 1:
            hidden = np.maximum(hidden, 0.0)
    return hidden[:, 0]""",
}

_FACTORS = '''"""Scores queries and documents with the factors beside this file.

    python load.py ROWS.parquet > scores.csv        (or ROWS.csv; columns `query` and `doc`)

or, from Python: `score(rows)` with a Polars frame. What was never seen has bias and factors 0.
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

HERE = Path(__file__).resolve().parent
with np.load(HERE / "model.npz", allow_pickle=False) as file:
    MODEL = dict(file)


def numbers(rows: pl.DataFrame, column: str, name: str) -> np.ndarray:
    """The place of each id among those that have factors, -1 where it has none."""
    known = pl.read_parquet(HERE / name).with_row_index("number")
    asked = rows.select(pl.col(column).cast(known.schema[column], strict=False))
    found = asked.join(known, on=column, how="left", maintain_order="left")
    return found["number"].cast(pl.Int64).fill_null(-1).to_numpy()


def score(rows: pl.DataFrame) -> np.ndarray:
    """The score of each row: the larger, the more relevant."""
    padded = {name: np.concatenate([array, np.zeros_like(array[:1])]) for name, array in MODEL.items() if array.ndim}
    query, doc = numbers(rows, "query", "queries.parquet"), numbers(rows, "doc", "documents.parquet")
    biases = padded["query_bias"][query] + padded["item_bias"][doc]
    return MODEL["mean"] + biases + (padded["query_factors"][query] * padded["item_factors"][doc]).sum(axis=1)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    rows = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path)
    print(rows.select("query", "doc").with_columns(score=pl.Series(score(rows))).write_csv(), end="")
'''


def load_script(kind: Literal["trees", "network", "factors"]) -> str:
    """`load.py` for a kind of model."""
    if kind == "factors":
        return _FACTORS
    script = _SHARED
    for placeholder, text in (_TREES if kind == "trees" else _NETWORK).items():
        script = script.replace(f"@{placeholder}@", text)
    return script


Kind = Literal["trees", "network", "factors"]

_FILES: dict[Kind, str] = {"trees": "model.txt", "network": "model.npz", "factors": "model.npz"}
_LARGEST = 1 << 30  # bytes of a file
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '<f8', 'fortran_order': (?P<fortran>True|False), "
    rb"'shape': \((?P<shape>([0-9]{1,18},?\x20?){0,4})\), \} *\n",
    re.DOTALL,
)
"""Of a file of NumPy's, as it writes arrays of floats."""

FEATURE = "feature"
"""The column of the importance that names a feature."""

_LEARNED_PROPENSITIES = "learned_propensities.parquet"
_CURVE, _IMPORTANCE, _FEATURES = "learning_curve.parquet", "feature_importance.parquet", "features.json"


class FeatureSection(msgspec.Struct, frozen=True):
    """A feature of a model."""

    name: str
    categories: tuple[str, ...] | None = None


class ModelSection(msgspec.Struct, frozen=True):
    """What the manifest says of a model.

    Attributes:
        kind: what holds it.
        is_probability: whether 1 / (1 + exp(-score)) is an attractiveness.
        features: what it learnt from, in their order.
    """

    kind: Kind
    is_probability: bool
    features: tuple[FeatureSection, ...]

    def __post_init__(self) -> None:
        """Find features and categories that stand there twice."""
        for names in ([feature.name for feature in self.features], *(feature.categories for feature in self.features)):
            if names is not None and len(set(names)) < len(names):
                raise ValueError("features or categories of one have one name")


class _Trained(msgspec.Struct, frozen=True):
    model: ModelSection


@dataclass(frozen=True)
class StoredModel:
    """A model that was read.

    Attributes:
        model: it.
        features: what it learnt from, in their order.
        is_probability: whether 1 / (1 + exp(-score)) is an attractiveness.
        ids: what has factors, where the model is of factors.
    """

    model: RowModel | FactorModel
    features: tuple[Feature, ...]
    is_probability: bool
    ids: Ids | None = None


def write_model(
    learned: Learned, features: Sequence[Feature], folder: Path, *, is_probability: bool, ids: Ids | None = None
) -> ModelSection:
    """Write what was learnt, but for the scores; return what the manifest says of it."""
    kind, content = _content(learned.model)
    (folder / _FILES[kind]).write_bytes(content)
    for name, packed in ({} if ids is None else ids.files()).items():
        (folder / name).write_bytes(packed)
    described = [{"name": feature.name, "categories": feature.categories} for feature in features]
    text = escaped_json(json.dumps(described, ensure_ascii=False, indent=1))
    (folder / _FEATURES).write_text(text + "\n", encoding="utf-8")
    (folder / "load.py").write_text(load_script(kind), encoding="utf-8")
    learned.curve.write_parquet(folder / _CURVE)
    if learned.importance is not None:
        importance_table(learned.importance, features).write_parquet(folder / _IMPORTANCE)
    return ModelSection(
        kind,
        is_probability,
        tuple(FeatureSection(feature.name, feature.categories) for feature in features),
    )


def write_learned_propensities(cells: pl.DataFrame, propensities: Floats, folder: Path) -> None:
    """Write the propensities of cells as a learner itself estimates them; null where it has none."""
    column = pl.Series(PROPENSITY, propensities, pl.Float64).fill_nan(None)
    cells.with_columns(column).write_parquet(folder / _LEARNED_PROPENSITIES)


def importance_table(importance: pl.DataFrame, features: Sequence[Feature]) -> pl.DataFrame:
    """The importance of features by name, the largest first."""
    names = pl.Series(FEATURE, [feature.name for feature in features], pl.String)
    return importance.with_columns(names).sort("gain", FEATURE, descending=[True, False])


def _content(model: RowModel | FactorModel) -> tuple[Kind, bytes]:
    if isinstance(model, Forest):
        return "trees", model.text.encode()
    return "network" if isinstance(model, NetworkModel) else "factors", _packed(model.arrays())


def _packed(arrays: Mapping[str, Any]) -> bytes:
    """Arrays as a file of NumPy's, the same bytes for the same arrays."""
    file = BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def read_model(place: Location) -> StoredModel:
    """The model in a directory that `train` wrote.

    Raises:
        LogFormatError: it is damaged.
        UsageError: what the directory holds is no model.
    """
    with open_stored(place, (*_FILES.values(), QUERIES, DOCUMENTS)) as stored:
        if "model" not in stored.content:
            raise UsageError(f"--model {stored.folder}: holds no model. Name the directory that `posbias train` wrote.")
        said = stored.typed(_Trained).model
        path = stored.folder / _FILES[said.kind]
        ids = Ids.read(stored.folder) if said.kind == "factors" else None
        try:
            model = _model(said.kind, _content_of(path))
            _check_sizes(model, said, ids)
        except OSError as error:
            raise LogFormatError(f"{path}: cannot be read: {error.strerror}. Train again.") from error
        except (ValueError, BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:  # four of them zipfile's
            raise LogFormatError(f"{path}: is no model that can be read: {error}. Train again.") from error
    features = tuple(Feature(feature.name, feature.categories) for feature in said.features)
    return StoredModel(model, features, said.is_probability, ids)


def _content_of(path: Path) -> bytes:
    with open_plain(path) as file:
        size = state_of_open(file).bytes
        if size > _LARGEST:
            raise ValueError(f"it has {size:,} bytes, and a model has {_LARGEST:,} at most")
        return file.readall()


def _check_sizes(model: RowModel | FactorModel, said: ModelSection, ids: Ids | None) -> None:
    if isinstance(model, RowModel):
        if model.n_features != len(said.features):
            raise ValueError(f"it has {model.n_features:,} features, and the manifest {len(said.features):,}")
    elif ids is not None and (len(model.query_bias), len(model.item_bias)) != (len(ids.queries), len(ids.documents)):
        raise ValueError("it has factors of other queries or documents than those beside it")


def _model(kind: Kind, content: bytes) -> RowModel | FactorModel:
    if kind == "trees":
        forest = Forest(content.decode())
        if not forest.trees:
            raise ValueError("it has no tree")
        return forest
    with ZipFile(BytesIO(content)) as archive:
        entries = archive.infolist()
        arrays = {entry.filename.removesuffix(".npy"): _array(entry, archive) for entry in entries}
    if len(arrays) < len(entries):
        raise ValueError("it holds an array twice")
    return NetworkModel.of_arrays(arrays) if kind == "network" else FactorModel.of_arrays(arrays)


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
