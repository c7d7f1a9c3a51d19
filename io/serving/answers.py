"""Answers of search engines: the hits of a response, with their scores and the features that the engine logged."""

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

_LARGEST = 256 << 20  # bytes of a response


@dataclass(frozen=True)
class Hit:
    """A document in an answer."""

    doc: str
    score: float
    features: Mapping[str, float]  # by the engine's name; NaN where it has none


def read_answer(path: Path, engine: str) -> list[Hit]:
    """The hits of a response, as `send.sh` asks for them.

    Raises:
        LogFormatError: it cannot be read, or has no hits with features.
    """
    try:
        with open_plain(path) as file:
            size = state_of(file).bytes
            content = msgspec.json.decode(file.read(min(size, _LARGEST)))
        hits = list(_HITS.get(engine, _of_plugin)(content))
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


def _number(value: Any) -> float:  # noqa: ANN401 - of JSON
    return nan if value is None else float(value)


def _of_plugin(content: Any) -> Iterator[Hit]:  # noqa: ANN401 - of JSON
    for hit in content["hits"]["hits"]:
        logged = [one for entry in hit["fields"]["_ltrlog"] for values in entry.values() for one in values]
        features = {one["name"]: _number(one.get("value")) for one in logged}
        yield Hit(str(hit["_id"]), float(hit["_score"]), features)


def _of_elasticsearch(content: Any) -> Iterator[Hit]:  # noqa: ANN401 - of JSON
    for hit in content["hits"]["hits"]:
        features, waiting = dict[str, float](), [hit["_explanation"]]
        for part in waiting:  # which grows meanwhile
            before, found, name = part["description"].partition("feature value for [")
            if found and not before:
                features[name.removesuffix("]")] = float(part["value"])
            waiting += part.get("details", [])
        yield Hit(str(hit["_id"]), float(hit["_score"]), features)


def _of_solr(content: Any) -> Iterator[Hit]:  # noqa: ANN401 - of JSON
    for doc in content["response"]["docs"]:
        pairs = (pair.rpartition("=") for pair in doc["[features]"].split(","))
        yield Hit(str(doc["id"]), float(doc["score"]), {name: float(value) for name, _, value in pairs})


def _of_vespa(content: Any) -> Iterator[Hit]:  # noqa: ANN401 - of JSON
    for hit in content["root"].get("children", []):
        given = hit["fields"]["matchfeatures"]
        features = {name.removeprefix("rankingExpression(").removesuffix(")"): given[name] for name in given}
        doc = str(hit["fields"].get("documentid", hit.get("id"))).rpartition("::")[2]
        yield Hit(doc, float(hit["relevance"]), {name: _number(value) for name, value in features.items()})


_HITS: Mapping[str, Callable[[Any], Iterator[Hit]]] = {
    "elasticsearch": _of_elasticsearch,
    "solr": _of_solr,
    "vespa": _of_vespa,
}


def logged_features(model: EngineModel, hits: list[Hit]) -> Floats:
    """The engine's features of hits, shape (n, features of the engine); NaN where the engine has none."""
    return np.array([[hit.features.get(name, nan) for name in model.ensemble.names] for hit in hits], np.float64)


def ranker_rows(model: EngineModel, logged: Floats, n_features: int) -> Floats:
    """Rows of the ranker for what an engine has logged, shape (n, F).

    A feature that stands for a set of categories says only whether the value is inside: any code that agrees with all
    sets of its feature will do. What stands for a missing value is missing.
    """
    rows = np.full((len(logged), n_features), nan)
    sets = dict[int, list[tuple[int, frozenset[int]]]]()
    for number, (name, feature) in enumerate(zip(model.ensemble.names, model.original, strict=True)):
        if number in model.ensemble.sets:
            sets.setdefault(feature, []).append((number, model.ensemble.sets[number][1]))
            continue
        stands_for_missing = logged[:, number] == np.float32(model.defaults.get(name, nan))
        rows[:, feature] = np.where(stands_for_missing, nan, logged[:, number])
    for feature, of_feature in sets.items():
        codes = range(max(max(among, default=0) for _, among in of_feature) + 1)
        patterns = {tuple(code in among for _, among in of_feature): code for code in reversed(codes)}
        inside = logged[:, [number for number, _ in of_feature]] == 1
        rows[:, feature] = [patterns.get(tuple(row), nan) for row in inside.tolist()]
    return rows
