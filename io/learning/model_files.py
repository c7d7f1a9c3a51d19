"""A model on disk: the file that holds it, its features, and a script that scores new rows.

`model.txt` is LightGBM's own file, `model.npz` holds arrays. Both are data from outside when they are read again, and
their digests are no secret: every number is checked to be in range, and no native code and no pickle reads them.
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

from posbias.core.arrays.count_table import Floats
from posbias.core.errors import LogFormatError, UsageError
from posbias.core.escapes import escaped_json
from posbias.core.fit.propensities import PROPENSITY
from posbias.core.learners.forest import Forest
from posbias.core.learners.learner import Learned
from posbias.core.learners.models import FactorModel, NetworkModel, RowModel, TreeModel
from posbias.io.layouts.training_set import Feature
from posbias.io.learning.ids import DOCUMENTS, QUERIES, Ids
from posbias.io.learning.load_script import load_script
from posbias.io.places.locations import Location
from posbias.io.places.plain_files import open_plain, state_of_open
from posbias.io.results.stored import open_stored

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
    if isinstance(model, TreeModel):
        return "trees", model.forest.text.encode()
    if isinstance(model, NetworkModel):
        return "network", _packed(model.arrays())
    if isinstance(model, FactorModel):
        return "factors", _packed(model.arrays())
    raise TypeError(f"no file holds a {type(model).__name__}")


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
        return TreeModel(forest)
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
