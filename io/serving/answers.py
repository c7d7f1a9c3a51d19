"""Parse responses of search engines: hits with their scores and logged features."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from posbias.core.arrays.count_table import Floats
from posbias.core.errors import LogFormatError
from posbias.core.serving.formats import EngineModel
from posbias.io.places.locations import open_plain, state_of

_LARGEST = 256 << 20  # most bytes of a response that are read


@dataclass(frozen=True)
class Hit:
    """A document of a response."""

    doc: str
    score: float
    features: Mapping[str, float]  # value by the engine's name of a feature; NaN for missing values


def read_answer(path: Path, engine: str) -> list[Hit]:
    """Read the hits of a response to the request of `send.sh`.

    Raises:
        LogFormatError: the file cannot be read, or has no hits with features.
    """
    try:
        with open_plain(path) as file:
            size = state_of(file).bytes
            content = msgspec.json.decode(file.read(min(size, _LARGEST)))
        hits = list(_PARSERS.get(engine, _parse_plugin)(content))
    except OSError as error:
        raise LogFormatError(f"{path}: cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LogFormatError(f"{path}: is no JSON: {error}.") from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise LogFormatError(
            f"{path}: holds no answer of {engine} with scores and features ({type(error).__name__}: {error}). Send the "
            "request of send.sh, which asks for them."
        ) from error
    if not hits:
        raise LogFormatError(f"{path}: the answer has no hits. Ask for documents that are in the index.")
    return hits


_LOGGED = "feature value for ["


def _number(value: Any) -> float:  # noqa: ANN401 - of JSON
    return nan if value is None else float(value)


def _parse_plugin(content: Any) -> Iterator[Hit]:  # noqa: ANN401 - of JSON
    for hit in content["hits"]["hits"]:
        logged = [feature for entry in hit["fields"]["_ltrlog"] for values in entry.values() for feature in values]
        features = {feature["name"]: _number(feature.get("value")) for feature in logged}
        yield Hit(str(hit["_id"]), float(hit["_score"]), features)


def _parse_elasticsearch(content: Any) -> Iterator[Hit]:  # noqa: ANN401 - of JSON
    for hit in content["hits"]["hits"]:
        features, parts = dict[str, float](), [hit["_explanation"]]
        for part in parts:  # breadth first: the loop appends to `parts`
            if part["description"].startswith(_LOGGED):
                name = part["description"].removeprefix(_LOGGED).removesuffix("]")
                features[name] = float(part["value"])
            parts += part.get("details", [])
        yield Hit(str(hit["_id"]), float(hit["_score"]), features)


def _parse_solr(content: Any) -> Iterator[Hit]:  # noqa: ANN401 - of JSON
    for doc in content["response"]["docs"]:
        pairs = (pair.rpartition("=") for pair in doc["[features]"].split(","))
        yield Hit(str(doc["id"]), float(doc["score"]), {name: float(value) for name, _, value in pairs})


def _parse_vespa(content: Any) -> Iterator[Hit]:  # noqa: ANN401 - of JSON
    for hit in content["root"].get("children", []):
        logged = hit["fields"]["matchfeatures"]
        features = {name.removeprefix("rankingExpression(").removesuffix(")"): logged[name] for name in logged}
        doc = str(hit["fields"].get("documentid", hit.get("id"))).rpartition("::")[2]
        yield Hit(doc, float(hit["relevance"]), {name: _number(value) for name, value in features.items()})


_PARSERS: Mapping[str, Callable[[Any], Iterator[Hit]]] = {
    "elasticsearch": _parse_elasticsearch,
    "solr": _parse_solr,
    "vespa": _parse_vespa,
}


def logged_features(model: EngineModel, hits: list[Hit]) -> Floats:
    """Return the logged features of hits, shape (n, number of the engine's features); NaN for missing values."""
    return np.array([[hit.features.get(name, nan) for name in model.ensemble.names] for hit in hits], np.float64)


def ranker_rows(model: EngineModel, logged: Floats, n_features: int) -> Floats:
    """Return features of the ranker that give the logged features of the engine, shape (n, F).

    A logged feature may tell only whether a category is in a set: the code is then the smallest one that agrees with
    all sets of its feature, or NaN. Defaults for missing values become NaN.
    """
    rows = np.full((len(logged), n_features), nan)
    sets = dict[int, list[tuple[int, frozenset[int]]]]()
    for number, (name, feature) in enumerate(zip(model.ensemble.names, model.original, strict=True)):
        if number in model.ensemble.sets:
            sets.setdefault(feature, []).append((number, model.ensemble.sets[number][1]))
            continue
        is_default = logged[:, number] == np.float32(model.defaults.get(name, nan))
        rows[:, feature] = np.where(is_default, nan, logged[:, number])
    for feature, numbered_sets in sets.items():
        codes = range(max(max(members, default=0) for _, members in numbered_sets) + 1)
        patterns = {tuple(code in members for _, members in numbered_sets): code for code in reversed(codes)}
        inside = logged[:, [number for number, _ in numbered_sets]] == 1
        rows[:, feature] = [patterns.get(tuple(row), nan) for row in inside.tolist()]
    return rows
