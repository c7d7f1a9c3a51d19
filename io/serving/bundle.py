"""Write an export: the model, its features and requests for an engine, the mapping of names, and a README."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from math import isnan
from pathlib import Path
from string import Template
from typing import Any

from posbias.core.errors import UsageError, escape_unseen_in_json
from posbias.core.serving.formats import EngineModel
from posbias.io.training.laid_out import Feature

MARK = "FIELD_OF_"
"""Prefix of the marks that a user replaces by fields of the index."""

_SEPARATORS = ",;|~^"
_SOLR = {False: "org.apache.solr.ltr.feature.FieldValueFeature", True: "org.apache.solr.ltr.feature.SolrFeature"}


@cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("requests.toml").read_text(encoding="utf-8"))


def templates(engine: str) -> Mapping[str, Any]:
    """Return the entries of an engine in requests.toml, with those of the engine that it is `like`."""
    own = _tables()[engine]
    return {**(templates(own["like"]) if "like" in own else {}), **own}


def write_export(
    model: EngineModel, features: Sequence[Feature], folder: Path, *, name: str, words: Mapping[str, object]
) -> None:
    """Write all files of an export except its manifest.

    Args:
        model: the model in the engine's format.
        features: features of the ranker.
        folder: directory of the export.
        name: name of the model, the feature set or store, and the rank profile.
        words: further values of the templates of `send.sh` and the README, by name.

    Raises:
        UsageError: a category cannot be written in a request of the engine.
    """
    engine = model.target.engine
    entries, is_text = templates(engine), engine == "vespa"
    described, queries = list[dict[str, Any]](), list[str]()
    for number, engine_name in enumerate(model.ensemble.names):
        feature, default = features[model.original[number]], model.defaults.get(engine_name)
        kind, values, texts = "number", dict[str, object](), list[str]()
        if number in model.ensemble.sets:
            known = feature.categories or ()
            texts = [known[code] for code in sorted(model.ensemble.sets[number][1]) if code < len(known)]
            kind, values = "set", {"values": texts}
            _check_texts(texts, feature.name, engine, entries["refused"])
        elif feature.categories is not None:
            kind, values = "code", {"codes": {text: code for code, text in enumerate(feature.categories)}}
        java = None if default is None else "NaN" if isnan(default) else default
        described.append({"name": engine_name, "feature": feature.name, "kind": kind, **values, "missing": java})
        field = f"{MARK}{re.sub(r'[^0-9A-Za-z_]', '_', feature.name) if is_text else feature.name}"
        query_values: dict[str, object] = {"field": field, "default": str(java) if engine == "solr" else java, **values}
        if engine == "solr" and kind == "set":
            query_values["terms"] = _terms(field, texts, feature.name)
        entry = "set" if kind == "set" else "number" if java is None else "default"
        about = {"name": name, "engine_name": engine_name, "class": _SOLR[kind == "set"]}
        template = Template(_fill(entries["feature"], about, is_text=is_text))
        queries.append(template.substitute(query=_fill(entries[entry], query_values, is_text=is_text)).strip("\n"))
    text = {
        "features": ("\n" if is_text else ",\n").join(queries),
        "inputs": "\n".join(f"        {each}" for each in model.ensemble.names),
        "text": model.text,
        "quoted": json.dumps(model.text),
    }
    words = {"engine": engine, "port": entries["port"], "since": model.target.since, "name": name, **words}
    words |= {"marked": Template(entries["marked"]).substitute(words)}
    for file, template in entries["files"].items():
        content = template.lstrip("\n")
        if file == "send.sh":
            script = Template(content).substitute(words)
            content = Template(_tables()["common"][file].lstrip("\n")).substitute(words, send=script)
        else:
            plain = name if is_text else json.dumps(name)
            content = Template(content).substitute(text, name=plain).rstrip("\n") + "\n"
        path = folder / Template(file).substitute(name=name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
    mapping = escape_unseen_in_json(json.dumps(described, ensure_ascii=False, indent=1))
    (folder / "features.json").write_text(mapping + "\n", encoding="utf-8")
    notes = Template(entries["notes"].strip("\n")).substitute(words)
    readme = Template(_tables()["common"]["README.md"].lstrip("\n")).substitute(words, notes=notes)
    (folder / "README.md").write_text(re.sub("\n{3,}", "\n\n", readme) + "\n", encoding="utf-8")


def _fill(template: str, values: Mapping[str, object], *, is_text: bool) -> str:
    """Fill a template with values as JSON, or with `is_text` as in a rank profile; other names remain."""

    def word(value: object) -> object:
        in_json = json.dumps(value, ensure_ascii=False)
        return in_json if not is_text else in_json[1:-1] if isinstance(value, list) else value

    return Template(template).safe_substitute({name: word(value) for name, value in values.items()})


def _check_texts(texts: Sequence[str], feature: str, engine: str, refused: Sequence[str]) -> None:
    """Check that no category contains text that the engine would interpret.

    Raises:
        UsageError: a category contains a text of `refused`.
    """
    for text in texts:
        for part in refused:
            if part in text:
                raise UsageError(
                    f"the feature {feature!r} has the text {text!r}, and {engine} would not read {part!r} in it as it "
                    "stands. Give texts as numbers: --categories codes."
                )


def _terms(field: str, texts: Sequence[str], feature: str) -> str:
    """Return Solr's filter for a set of texts.

    Raises:
        UsageError: the texts contain all separators.
    """
    separator = next((mark for mark in _SEPARATORS if not any(mark in text for text in texts)), None)
    if separator is None:
        raise UsageError(
            f"the feature {feature!r} has texts with all of {_SEPARATORS}, so that nothing can separate them in a "
            "filter of solr. Give texts as numbers: --categories codes."
        )
    return f"{{!terms f={field} separator='{separator}'}}{separator.join(texts)}"
