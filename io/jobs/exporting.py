"""`export`: write a ranker for a search engine, verify its scores, and compare an engine's response with it."""

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import isnan
from typing import Any

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.errors import LogFormatError, UsageError, plural
from posbias.core.learners.boosting import ModelText
from posbias.core.schema import DOC
from posbias.core.serving.formats import Agreement, EngineModel, Target, agreement, first_names, model_for
from posbias.core.serving.splits import Ensemble, parse, rows_at_limits
from posbias.io.jobs.tables import Column, PrintedTable, Result, first, more
from posbias.io.options import ServingOptions
from posbias.io.places.locations import Location
from posbias.io.results.conclusions import reason
from posbias.io.serving.answers import Hit, logged_features, ranker_rows
from posbias.io.serving.bundle import write_export
from posbias.io.training.laid_out import Feature
from posbias.io.training.rankers import StoredModel, open_new_documents, read_model

_LIMIT_ROWS, _SEED = 4000, 0  # rows at split points, to verify scores on
_MOST_TABLE_ROWS = 20_000
_LARGEST_OF_SOLR = 1_000_000  # bytes of ZooKeeper's buffer
_TOLERANCE = 1e-4  # of scores: engines print features in single precision

_MEMORY = 256 << 20
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,59}")


@dataclass(frozen=True)
class ExportedRanker:
    """A ranker of trees, and its form in an engine."""

    stored: StoredModel
    features: tuple[Feature, ...]
    ensemble: Ensemble
    model: EngineModel

    def label(self, number: int) -> str:
        """Name a feature of the engine, with its name in the ranker if different."""
        name, feature = self.model.ensemble.names[number], self.features[self.model.original[number]].name
        return name if name == feature else f"{name} ({feature})"

    @contextmanager
    def scoring(self) -> Generator[Callable[[Floats], Floats]]:
        """Yield a function that scores rows, shape (n, F), by LightGBM."""
        with self.stored.scoring() as scored:
            yield lambda rows: scored(pl.DataFrame(), np.ascontiguousarray(rows))


def open_ranker(place: Location, request: ServingOptions) -> ExportedRanker:
    """Read a ranker and convert it to the engine's form.

    Raises:
        LogFormatError: the ranker is damaged.
        UsageError: the engine cannot represent the ranker, or the name is invalid.
    """
    if not _NAME.fullmatch(request.name):
        raise UsageError(
            f"--name {request.name}: give small letters, digits, _ and -, 60 at most, a letter first, such as ranker_7."
        )
    target, stored = Target.of(request.engine, request.engine_version), read_model(place)
    if stored.section.kind == "factors":
        raise UsageError(
            f"{place}: is a model of factors, which has a score for each query and document, and no trees. "
            f"{place}/scores.parquet is that table: index its scores by query, as a rank_feature or a tensor."
        )
    if not isinstance(stored.model, ModelText):
        raise UsageError(
            f"{place}: is a network, which clips features at 5 standard deviations, as no linear model of "
            f"{request.engine} does. Train trees: --learner auto, pbm or lambdarank."
        )
    features = stored.section.features
    categories = {number: of.categories for number, of in enumerate(features) if of.categories is not None}
    how: dict[str, Any] = {name: getattr(request, name) for name in ("categories", "missing_default", "name")}
    try:
        ensemble = parse(stored.model, [feature.name for feature in features], categories)
        return ExportedRanker(stored, features, ensemble, model_for(target, ensemble, **how))
    except (ValueError, KeyError, IndexError) as error:
        raise LogFormatError(f"{stored.path}: is no model that can be read: {error}. Train again.") from error
    except RecursionError as error:
        raise UsageError(
            f"a tree of the ranker is too deep for {request.engine}. Train with fewer leaves, "
            "for example --learner-options leaves=31."
        ) from error


def export(ranker: ExportedRanker, request: ServingOptions, result: Result) -> None:
    """Write the files of an export; verify its scores against LightGBM, and report the agreement."""
    model, engine = ranker.model, request.engine
    is_single = model.arithmetic.features is np.float32
    with result.progress.stage("scoring back"), ranker.scoring() as scored:
        rows = rows_at_limits(ranker.ensemble, _LIMIT_ROWS, _SEED, single=is_single, tiny=engine != "solr")
        checks, rounded = {"at_limits": _agreement(model, scored(rows), rows)}, 0
        if request.features:
            given = _read_features(request.features, ranker.features)[1]
            seen = given.astype(np.float32).astype(np.float64) if is_single else given
            checks["features"] = _agreement(model, expected := scored(seen), seen)
            rounded = int((np.abs(expected - scored(given)) > _TOLERANCE).sum()) if is_single else 0
    worst = max(checks.values(), key=lambda check: (not check.holds, check.largest_difference))
    names, text = model.ensemble.names, len(model.text.encode())
    figures = asdict(worst) | {"share_swapped": worst.swapped / max(worst.pairs, 1)}
    n_rows = sum(check.rows for check in checks.values())
    code = "engine-scores" if worst.holds else "engine-scores-differ"
    result.reasons.append(reason(code, figures, engine=engine, checked=n_rows, swapped_pairs=worst.swapped))
    if rounded:
        figures = {"rounded": rounded, "of": n_rows - _LIMIT_ROWS}
        result.reasons.append(reason("features-rounded", figures, engine=engine))
    if sets := sorted({model.original[number] for number in model.ensemble.sets}):
        text_features = first_names([ranker.features[number].name for number in sets])
        result.reasons.append(reason("text-as-sets", {"sets": len(model.ensemble.sets)}, names=text_features))
    if engine == "solr" and text > _LARGEST_OF_SOLR:
        result.reasons.append(reason("model-large-for-solr", {"bytes": text}))
    defaults = {name: value for name, value in model.defaults.items() if not isnan(value)}
    if defaults:
        values = {"features": len(defaults), "default": next(iter(defaults.values()))}
        result.reasons.append(reason("default-for-missing", values, names=first_names([*defaults])))
    given = {"--engine-version": request.engine_version, "--missing-default": request.missing_default}
    by_default = request.categories == "sets" or not ranker.ensemble.categories
    given |= {"--categories": None if by_default else request.categories}
    again = "".join(f" {flag} {value}" for flag, value in given.items() if value is not None)
    result.next = f"ENGINE=http://HOST:PORT INDEX=NAME sh {result.target}/send.sh"
    result.facts.append(f"put your fields in place of the marks first: {result.target}/README.md")
    words: dict[str, object] = {
        "n_trees": len(ranker.ensemble.trees),
        "n_features": len(names),
        "lift": f"{model.lift:.6g}",
        "again": again,
        "reasons": "\n".join(f"- {entry.sentence}" for entry in result.reasons),
    }
    write_export(model, ranker.features, result.folder, name=request.name, words=words)
    result.content["schema"] = "posbias.export"
    result.content["export"] = {
        "engine": engine,
        "since": model.target.since,
        "missing": model.target.missing,
        "name": request.name,
        "trees": len(ranker.ensemble.trees),
        "features": len(names),
        "defaults": defaults,
        "lift": model.lift,
        "bytes": text,
        "agreement": {name: {**asdict(check), "holds": check.holds} for name, check in checks.items()},
    }
    sizes = f"{plural(len(ranker.ensemble.trees), 'trees')} and {plural(len(names), 'features')}"
    result.headline = f"a ranker of {sizes} is written for {engine}"
    columns = (
        Column("feature there", first(names), label=True, text=True),
        Column("feature of the ranker", first(ranker.features[number].name for number in model.original), text=True),
    )
    result.printed += ["features", PrintedTable(columns, more(len(names), "features in features.json"))]


def _agreement(model: EngineModel, expected: Floats, rows: Floats) -> Agreement:
    scores, is_double = model.scores(model.rows(rows)), model.arithmetic.is_double
    return agreement(expected, scores, model.lift, is_double=is_double)


def _read_features(tables: Sequence[str], features: Sequence[Feature]) -> tuple[list[str], Floats]:
    """Documents and features, shape (n, F), of about the first `_MOST_TABLE_ROWS` rows of tables."""
    documents = open_new_documents(tables, (), (), features)
    docs, rows = list[str](), [np.zeros((0, len(features)))]
    for keys, values in documents.chunks(_MEMORY):
        docs += keys[DOC].cast(pl.String).to_list()
        rows.append(values)
        if len(docs) >= _MOST_TABLE_ROWS:
            break
    return docs, np.concatenate(rows)


def smoke(ranker: ExportedRanker, request: ServingOptions, result: Result, hits: list[Hit]) -> None:
    """Compare scores, features and order of an engine's response with the ranker.

    Args:
        ranker: the exported ranker.
        request: the options of its export.
        result: receives the comparison.
        hits: hits of the response.
    """
    model, engine = ranker.model, request.engine
    logged, scores = logged_features(model, hits), np.array([hit.score for hit in hits])
    with result.progress.stage("comparing"), ranker.scoring() as scored:
        expected = scored(ranker_rows(model, logged, len(ranker.features)))
    off = scores - model.lift - expected
    added = float(np.median(off))
    is_off = np.abs(off - added) > _TOLERANCE * max(1.0, float(np.abs(scores).max()) / 16)
    swapped = ((expected[:, np.newaxis] - expected) > _TOLERANCE) & (scores[:, np.newaxis] < scores)
    figures = {"hits": len(hits), "differ": int(is_off.sum())}
    figures |= {"largest_difference": float(np.abs(off - added).max()), "swapped": int(swapped.sum())}
    numbers = [number for number in range(len(model.ensemble.names)) if number not in model.ensemble.sets]
    never, lacking = (
        [ranker.label(number) for number in numbers if np.isnan(rows[:, number]).all()]
        for rows in (logged, logged[is_off])
    )
    code = "answer-agrees" if not is_off.any() else "answer-differs.missing" if lacking else "answer-differs"
    result.reasons.append(reason(code, figures, engine=engine, names=first_names(lacking)))
    if abs(added) > _TOLERANCE:
        result.reasons.append(reason("answer-shifted", {"added": added}, engine=engine))
    if never:
        values = {"never": len(never), "hits": len(hits)}
        result.reasons.append(reason("feature-never-there", values, names=first_names(never)))
    differing = _differing(ranker, request, hits, logged) if request.features else []
    if differing:
        names = first_names([str(row["feature"]) for row in differing])
        result.reasons.append(reason("features-differ", {"features": len(differing)}, names=names))
        gaps = ("missing" if row["largest"] is None else f"{row['largest']:.3g}" for row in differing)
        columns = (
            Column("feature", first(row["feature"] for row in differing), label=True, text=True),
            Column("differ", first(f"{row['differ']:,} of {row['of']:,}" for row in differing)),
            Column("largest difference", first(gaps)),
            Column("for example", first(row["doc"] for row in differing), text=True),
        )
        result.printed += ["features that are not those of the table", PrintedTable(columns)]
    result.content["schema"] = "posbias.smoke"
    comparison = {"added": added, "never_there": never, "features": differing}
    result.content["export"] = {"engine": engine, **figures, **comparison}
    order = f"{plural(figures['swapped'], 'pairs')} in another order" if swapped.any() else "in the ranker's order"
    result.headline = f"{plural(len(hits), 'hits')} of {engine}, {order}"


def _differing(
    ranker: ExportedRanker, request: ServingOptions, hits: list[Hit], logged: Floats
) -> list[dict[str, Any]]:
    """Features whose logged values differ from all rows of the document in the tables, most differences first."""
    docs, rows = _read_features(request.features or (), ranker.features)
    given = ranker.model.rows(rows)
    rows_by_doc = dict[str, list[int]]()
    for number, doc in enumerate(docs):
        rows_by_doc.setdefault(doc, []).append(number)
    known = [number for number, hit in enumerate(hits) if hit.doc in rows_by_doc]
    if not known:
        raise UsageError(
            f"--features: no document of the answer is in it; the first is {hits[0].doc!r}, and that of the table "
            f"{docs[0] if docs else ''!r}. Name a table with the ids of the index."
        )
    differing = list[dict[str, Any]]()
    for column in range(len(ranker.model.ensemble.names)):
        is_set, gaps = column in ranker.model.ensemble.sets, list[tuple[float, str]]()
        for number in known:
            values, value = given[rows_by_doc[hits[number].doc], column], logged[number, column]
            if is_set:  # without a match, missing or 0
                values, value = np.nan_to_num(values), np.nan_to_num(value)
            gap = np.where(np.isnan(values) & np.isnan(value), 0.0, np.abs(values - value))
            close = gap <= 1e-6 * np.maximum(1.0, np.abs(np.nan_to_num(values)))
            if not close.any():
                gaps.append((float(np.nan_to_num(gap, nan=np.inf).min()), hits[number].doc))
        if gaps:
            finite = [gap for gap, _ in gaps if np.isfinite(gap)]
            largest = max(finite, default=None)
            figures = {"differ": len(gaps), "of": len(known), "largest": largest, "doc": gaps[0][1]}
            differing.append({"feature": ranker.label(column), **figures})
    return sorted(differing, key=lambda row: -row["differ"])
