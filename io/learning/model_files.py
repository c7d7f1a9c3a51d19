"""A model on disk: the file that holds it, its features, and a script that scores new rows.

`model.txt` is LightGBM's own file, `model.npz` holds arrays. Both are data from outside when they are read again: the
manifest holds their checksums, and arrays are read without pickle.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import msgspec
import numpy as np
import polars as pl
import xxhash

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
from posbias.io.places.local_copies import on_disk
from posbias.io.places.locations import Location
from posbias.io.results.manifest import FILE_NAME as MANIFEST
from posbias.io.results.manifest import read_manifest

Kind = Literal["trees", "network", "factors"]

_FILES: dict[Kind, str] = {"trees": "model.txt", "network": "model.npz", "factors": "model.npz"}
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
        checksum: of its file.
        is_probability: whether 1 / (1 + exp(-score)) is an attractiveness.
        features: what it learnt from, in their order.
    """

    kind: Kind
    checksum: str
    is_probability: bool
    features: tuple[FeatureSection, ...]


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
        content += packed
    described = [{"name": feature.name, "categories": feature.categories} for feature in features]
    text = escaped_json(json.dumps(described, ensure_ascii=False, indent=1))
    (folder / _FEATURES).write_text(text + "\n", encoding="utf-8")
    (folder / "load.py").write_text(load_script(kind), encoding="utf-8")
    learned.curve.write_parquet(folder / _CURVE)
    if learned.importance is not None:
        importance_table(learned.importance, features).write_parquet(folder / _IMPORTANCE)
    return ModelSection(
        kind,
        _checksum(content),
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


def _checksum(content: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(content)


def read_model(place: Location) -> StoredModel:
    """The model in a directory that `train` wrote.

    Raises:
        LogFormatError: it is damaged.
        UsageError: what the directory holds is no model.
    """
    with on_disk(place, (MANIFEST, *dict.fromkeys(_FILES.values()), QUERIES, DOCUMENTS)) as folder:
        manifest = read_manifest(folder, "train")
        if "model" not in manifest.content:
            raise UsageError(f"--model {folder}: holds no model. Name the directory that `posbias train` wrote.")
        said = manifest.typed(_Trained, LogFormatError, "Run `posbias train` again.").model
        path = folder / _FILES[said.kind]
        try:
            content = path.read_bytes()
            of_ids = [(folder / name).read_bytes() for name in (QUERIES, DOCUMENTS) if said.kind == "factors"]
        except OSError as error:
            raise LogFormatError(f"{path}: cannot be read: {error.strerror}. Run `posbias train` again.") from error
    if _checksum(b"".join([content, *of_ids])) != said.checksum:
        raise LogFormatError(f"{path}: is not the file that was written: its checksum differs. Train again.")
    features = tuple(Feature(feature.name, feature.categories) for feature in said.features)
    model = _model(said.kind, content, str(path))
    ids = Ids.read(of_ids[0], of_ids[1], folder) if of_ids else None
    if isinstance(model, FactorModel) and ids is not None:
        _check_sizes(model, ids, str(path))
    return StoredModel(model, features, said.is_probability, ids)


def _check_sizes(model: FactorModel, ids: Ids, where: str) -> None:
    if (len(model.query_bias), len(model.item_bias)) != (len(ids.queries), len(ids.documents)):
        raise LogFormatError(f"{where}: has factors of other queries or documents than those beside it. Train again.")


def _model(kind: Kind, content: bytes, where: str) -> RowModel | FactorModel:
    if kind == "trees":
        return TreeModel(Forest(content.decode()))
    try:
        with np.load(BytesIO(content), allow_pickle=False) as arrays:
            of_arrays = NetworkModel.of_arrays if kind == "network" else FactorModel.of_arrays
            return of_arrays(dict(arrays), where)
    except (ValueError, BadZipFile, OSError) as error:
        raise LogFormatError(f"{where}: cannot be read: {error}. Train again.") from error
