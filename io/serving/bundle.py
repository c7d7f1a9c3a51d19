"""The files of an export: the model, its features and requests for an engine, the mapping of names, and a README."""

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
"""What a user replaces by a field of the index."""

_SEPARATORS = ",;|~^"
_SOLR = {False: "org.apache.solr.ltr.feature.FieldValueFeature", True: "org.apache.solr.ltr.feature.SolrFeature"}


@cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("requests.toml").read_text(encoding="utf-8"))


def templates(engine: str) -> Mapping[str, Any]:
    """The entries of an engine in requests.toml."""
    own = _tables()[engine]
    return {**(templates(own["like"]) if "like" in own else {}), **own}


def write_export(
    model: EngineModel, features: Sequence[Feature], folder: Path, *, name: str, words: Mapping[str, object]
) -> None:
    """Write all files of an export but its manifest.

    Args:
        model: for the engine.
        features: of the ranker.
        folder: where to write.
        name: of the model, the feature set or store, and the rank profile.
        words: what else the README says, by the names of its template.

    Raises:
        UsageError: a text of a category cannot stand in a request of the engine.
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
        filled: dict[str, object] = {"field": field, "default": str(java) if engine == "solr" else java, **values}
        if engine == "solr" and kind == "set":
            filled["terms"] = _terms(field, texts, feature.name)
        of_kind = "set" if kind == "set" else "number" if java is None else "default"
        about = {"name": name, "engine_name": engine_name, "class": _SOLR[kind == "set"]}
        template = Template(_filled(entries["feature"], about, is_text=is_text))
        queries.append(template.substitute(query=_filled(entries[of_kind], filled, is_text=is_text)).strip("\n"))
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


def _filled(template: str, values: Mapping[str, object], *, is_text: bool) -> str:
    """A template with values as JSON, or as they stand in a rank profile; other names are left for later."""

    def word(value: object) -> object:
        in_json = json.dumps(value, ensure_ascii=False)
        return in_json if not is_text else in_json[1:-1] if isinstance(value, list) else value

    return Template(template).safe_substitute({name: word(value) for name, value in values.items()})


def _check_texts(texts: Sequence[str], feature: str, engine: str, refused: Sequence[str]) -> None:
    """Raise UsageError if an engine would act on a text of a category."""
    for text in texts:
        for part in refused:
            if part in text:
                raise UsageError(
                    f"the feature {feature!r} has the text {text!r}, and {engine} would not read {part!r} in it as it "
                    "stands. Give texts as numbers: --categories codes."
                )


def _terms(field: str, texts: Sequence[str], feature: str) -> str:
    """Solr's filter for a set of texts."""
    between = next((one for one in _SEPARATORS if not any(one in text for text in texts)), None)
    if between is None:
        raise UsageError(
            f"the feature {feature!r} has texts with all of {_SEPARATORS}, so that nothing can separate them in a "
            "filter of solr. Give texts as numbers: --categories codes."
        )
    return f"{{!terms f={field} separator='{between}'}}{between.join(texts)}"
