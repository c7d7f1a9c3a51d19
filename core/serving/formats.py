"""Models in the formats of search engines, and the scores of such a model by the engine's arithmetic.

| engine | goes left | a missing value | precision |
|---|---|---|---|
| vespa | x < t | in the split's direction | double; thresholds and leaves of large models single |
| elasticsearch | x <= t | in the split's direction | double; features single |
| opensearch, elasticsearch-ltr | x < t | in the split's direction, right, or as 0, by version | single |
| solr | x <= t + 1e-6 | in the split's direction, or as 0, by version | single |

Sources, read as text: vespa-engine/vespa 1f79d33d (LightGBMParser, vm_forest.cpp); elastic/elasticsearch
(TreeInferenceModel 00d1fd8, LearningToRankRescorer 0318f60); opensearch-learning-to-rank-base, tags 2.18 to 3.8 and
elasticsearch-learning-to-rank, tags v1.5.8 to v1.5.12 (XGBoostJsonParser, NaiveAdditiveDecisionTree); apache/solr
(MultipleAdditiveTreesModel 1a87471, and with null support SOLR-16596).
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, nan
from typing import Any, Literal, NamedTuple

import numpy as np

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.choices import CategoriesAs, ServingEngine
from posbias.core.errors import UsageError
from posbias.core.learners.boosting import model_names
from posbias.core.serving import splits

Missing = Literal["by split", "right", "zero"]

VERSIONS: Mapping[ServingEngine, tuple[tuple[str, Missing], ...]] = {
    "vespa": (("8", "by split"),),
    "elasticsearch": (("8.12", "by split"),),
    "opensearch": (("3.8", "by split"), ("3.2", "right"), ("2", "zero")),
    "elasticsearch-ltr": (("1.5.9", "by split"), ("1", "zero")),
    "solr": (("9.2", "by split"), ("7", "zero")),
}
"""(first version, treatment of missing values) by engine, the newest first."""

_NO_EARLIER = {
    "elasticsearch": "learning_to_rank came with it. --engine elasticsearch-ltr writes for the plugin",
    "elasticsearch-ltr": "give the version of the plugin, such as 1.5.9 of ltr-plugin-v1.5.9-es8.11.4.zip",
}
_FIRST_NO_PLUGIN = 2  # versions of the plugin begin with 1; larger numbers are versions of Elasticsearch
_NAMED = 5  # most features named in a message
_SLACK = np.float32(1e-6)  # Solr's
_LOWEST = 1.0  # least score of a rescored hit: other hits have the score 0
_MOST_FEATURES, _MOST_CHARACTERS = 10_000, 50_000_000  # of a feature set; of a text in a request
_VESPA_LEAVES, _VESPA_DEPTHS = 25_000, 2_400
"""Number of leaves, and sum of the trees' mean depths, above which Vespa may use singles (its depth limit is 2,500)."""


class Target(NamedTuple):
    """An engine and the treatment of missing values in its version."""

    engine: ServingEngine
    since: str  # first version with this treatment
    missing: Missing

    @classmethod
    def of(cls, engine: ServingEngine, version: str | None) -> "Target":
        """Return the target for a version, by default for the newest one.

        Raises:
            UsageError: the version is invalid, or cannot load trees.
        """
        known = VERSIONS[engine]
        if version is None:
            return cls(engine, *known[0])
        number = re.match(r"v?(\d{1,6}(\.\d{1,6})*)", version)
        if number is None:
            raise UsageError(f"--engine-version {version}: is no version. Give one such as {known[0][0]}.")
        parts = [int(part) for part in number[1].split(".")]
        too_late = engine == "elasticsearch-ltr" and parts[0] >= _FIRST_NO_PLUGIN
        chosen = next((entry for entry in known if [int(part) for part in entry[0].split(".")] <= parts), None)
        if chosen is None or too_late:
            why = _NO_EARLIER.get(engine, "earlier ones load no trees that are known here")
            raise UsageError(f"--engine-version {version}: of {engine}, {known[-1][0]} is the first: {why}.")
        return cls(engine, *chosen)


@dataclass(frozen=True)
class Arithmetic:
    """Precision and comparisons of an engine."""

    features: type[np.float32] | type[np.float64]
    limits: type[np.float32] | type[np.float64]  # type of limits and leaves
    sums: type[np.float32] | type[np.float64]
    at_most: bool = False  # whether x <= t goes left; else x < t
    slack: np.float32 | float = 0.0  # added to t

    @property
    def is_double(self) -> bool:
        """Whether scores should equal those of LightGBM exactly."""
        return self.limits is np.float64


class EngineModel(NamedTuple):
    """A ranker in the format of an engine."""

    target: Target
    text: str
    ensemble: splits.Ensemble  # the rewritten trees; its names are the features of the engine
    original: tuple[int, ...]  # number of the ranker's feature for each feature of the engine
    defaults: Mapping[str, float]  # replacement of missing values by feature of the engine
    lift: float  # constant that is added to the ranker's scores
    arithmetic: Arithmetic

    def rows(self, rows: Floats) -> Floats:
        """Convert the ranker's features, shape (n, F), to the engine's, shape (n, number of the engine's features)."""
        columns = list[Floats]()
        for number, (name, feature) in enumerate(zip(self.ensemble.names, self.original, strict=True)):
            column = rows[:, feature]
            if number in self.ensemble.sets:  # outside: 0 of a function, missing for a query that does not match
                inside = np.isin(np.trunc(column), list(self.ensemble.sets[number][1]))
                column = np.where(inside, 1.0, 0.0 if self.target.engine in {"vespa", "solr"} else nan)
            column = np.where(np.isnan(column), self.defaults.get(name, nan), column)
            columns.append(np.nan_to_num(column) if self.target.missing == "zero" else column)
        return np.column_stack(columns) if columns else np.zeros((len(rows), 0))

    def scores(self, rows: Floats) -> Floats:
        """Return the engine's scores of its features, shape (n,), without the lift, from the parsed text."""
        how, total = self.arithmetic, np.zeros(len(rows), self.arithmetic.sums)
        with np.errstate(over="ignore"):
            seen = rows.astype(np.float32 if how.features is np.float32 else np.float64)
        if how.limits is np.float64:
            seen = seen.astype(np.float64)
        if not seen.shape[1]:
            seen = np.zeros((len(rows), 1), seen.dtype)
        every, missing = np.arange(len(rows)), np.isnan(seen)
        tree: tuple[Integers, Floats, Flags, Integers, Integers]
        for tree in _parse_text(self):
            feature, number, missing_left, left, right = tree
            limit = number.astype(how.limits) + how.limits(how.slack)
            at = np.zeros(len(rows), np.int64)
            while (inner := left[at] != at).any():
                values = seen[every, feature[at]]
                below: Flags = values <= limit[at] if how.at_most else values < limit[at]
                goes = np.where(missing[every, feature[at]], missing_left[at], below)
                at = np.where(inner, np.where(goes, left[at], right[at]), at)
            total += number.astype(how.limits)[at].astype(how.sums)
        return total.astype(np.float64) - self.lift


def model_for(
    target: Target, ensemble: splits.Ensemble, *, categories: CategoriesAs, missing_default: float | None, name: str
) -> EngineModel:
    """Convert a ranker to the format of an engine.

    Args:
        target: the engine.
        ensemble: the ranker's trees.
        categories: representation of categorical features.
        missing_default: replacement of missing values by the engine, if it would read them as 0.
        name: name of the model and of its features in the engine.

    Raises:
        UsageError: the model is too large for the engine, or `missing_default` is needed, useless or out of range.
    """
    engine = target.engine
    changed = splits.codes_as_numbers(ensemble) if categories == "codes" else splits.sets_as_features(ensemble)
    if len(changed.names) > _MOST_FEATURES:
        raise UsageError(
            f"the ranker needs {len(changed.names):,} features in {engine}, {len(changed.sets):,} of them for sets of "
            f"texts, and a feature set has {_MOST_FEATURES:,} at most. Give texts as numbers: --categories codes."
        )
    original = tuple(
        changed.sets[number][0] if number in changed.sets else ensemble.names.index(name)
        for number, name in enumerate(changed.names)
    )
    if engine == "vespa":  # it would read `dwell-time` as a difference
        changed = replace(changed, names=tuple(f"lgb_{number}" for number in range(len(changed.names))))
    else:
        changed = replace(changed, names=tuple(model_names(changed.names)))
    lift, needing = 0.0, splits.not_as_zero(changed) if target.missing == "zero" else []
    if missing_default is not None and not needing:
        raise UsageError(
            f"--missing-default {missing_default:g}: has no effect here: {engine} of this version reads missing values "
            "as the ranker does. Leave it out."
        )
    if engine in {"opensearch", "elasticsearch-ltr", "solr"}:
        changed, lift = splits.centred(changed, None if engine == "solr" else _LOWEST)
    defaults = dict[str, float]()
    if target.missing == "right":
        every = frozenset(range(len(changed.names)))
        changed = replace(
            changed, trees=tuple(splits.guarded(tree, every, splits.LARGEST_SINGLE) for tree in changed.trees)
        )
    elif needing:
        limits = [abs(node.limit) for node in changed.splits() if isinstance(node, splits.NumberSplit)]
        # Larger limits only split missing from other values
        largest = max((limit for limit in limits if limit < splits.LARGEST_SINGLE), default=0.0)
        least, most, apart = max(1000 * largest, 1.0), 1e38, [ensemble.names[original[number]] for number in needing]
        if missing_default is None:
            raise UsageError(
                f"{engine} of this version reads a missing value as 0, and the ranker tells them apart for "
                f"{first_names(apart)}. Let the queries of these features give a number above all values where there "
                f"is none, and name it: --missing-default {max(least, 1e30):g}. Or train with 0 for missing values."
            )
        if not least <= missing_default <= most:
            raise UsageError(
                f"--missing-default {missing_default:g}: must be from {least:g}, which is 1000 times the largest limit "
                f"of a split, to {most:g}."
            )
        single, ceiling = float(np.float32(missing_default)), missing_default / 10
        changed = replace(
            changed, trees=tuple(splits.guarded(tree, frozenset(needing), ceiling) for tree in changed.trees)
        )
        defaults = {changed.names[i]: single for i in needing}
    if engine == "solr" and target.missing == "by split":  # Solr's default is 0, as outside a set
        defaults = {feature: nan for i, feature in enumerate(changed.names) if i not in changed.sets}
    text, arithmetic = _WRITERS[engine](changed, target, name)
    if engine != "vespa" and len(text) > _MOST_CHARACTERS:
        raise UsageError(
            f"the model has {len(text):,} characters, and {engine} reads {_MOST_CHARACTERS:,}. Train fewer or smaller "
            "trees: --learner-options trees=200 --learner-options leaves=15."
        )
    return EngineModel(target, text, changed, original, defaults, lift, arithmetic)


# --- numbers ---


def single_below(number: float) -> np.float32:
    """Return the largest finite single <= number, or the smallest one if there is none."""
    single = np.float32(min(max(number, -splits.LARGEST_SINGLE), splits.LARGEST_SINGLE))
    return single if float(single) <= number else np.nextafter(single, np.float32(-inf))


def single_above(number: float) -> np.float32:
    """Return the smallest finite single > number, if there is one: x < it if and only if x <= number, for singles x."""
    below = single_below(number)
    return below if float(below) == splits.LARGEST_SINGLE else np.nextafter(below, np.float32(inf))


def before_slack(limit: np.float32) -> np.float32:
    """Return the threshold t whose sum t + 1e-6 in single precision is the largest one <= limit, for Solr."""
    if float(limit) >= splits.LARGEST_SINGLE:  # a split on missing values: 1e-6 changes nothing
        return limit
    threshold = np.float32(limit - _SLACK)
    while np.float32(threshold + _SLACK) > limit:
        threshold = np.nextafter(threshold, np.float32(-inf))
    above = np.nextafter(threshold, np.float32(inf))
    while np.float32(threshold + _SLACK) < limit and np.float32(above + _SLACK) <= limit:
        threshold, above = above, np.nextafter(above, np.float32(inf))
    return threshold


def _short(single: np.float32) -> str:
    """Format a single with the fewest digits that parse to it, as a single or via a double."""
    text = str(single)
    return text if np.float32(float(text)) == single else repr(float(single))


# --- formats ---


def _with_constant(ensemble: splits.Ensemble) -> tuple[splits.Node, ...]:
    return (*ensemble.trees, splits.Leaf(ensemble.constant)) if ensemble.constant else ensemble.trees


def _vespa(ensemble: splits.Ensemble, _: Target, __: str) -> tuple[str, Arithmetic]:
    """Return LightGBM's JSON for Vespa, which reads `<=` as `<`, and has one kind of missing values."""
    depths = [_depths(tree) for tree in ensemble.trees]
    means = sum(float(np.mean(depths_of_tree)) for depths_of_tree in depths)
    is_large = sum(map(len, depths)) > _VESPA_LEAVES or means > _VESPA_DEPTHS

    def node(of: splits.Node) -> dict[str, Any]:
        if not isinstance(of, splits.NumberSplit):
            return {"leaf_value": _value(of)}
        above = float(single_above(of.limit)) if is_large else float(np.nextafter(of.limit, inf))
        split = {"split_feature": of.feature, "threshold": above, "decision_type": "<=", "missing_type": "NaN"}
        return {**split, "default_left": of.missing_left, "left_child": node(of.left), "right_child": node(of.right)}

    content = {
        "name": "tree",
        "objective": "regression",  # scores are not transformed
        "feature_names": ensemble.names,
        "feature_infos": dict[str, Any](),
        "tree_info": [{"tree_structure": node(tree)} for tree in _with_constant(ensemble)],
        "pandas_categorical": [],
    }
    limits = np.float32 if is_large else np.float64
    return json.dumps(content, separators=(",", ":"), allow_nan=False), Arithmetic(np.float64, limits, np.float64)


def _elasticsearch(ensemble: splits.Ensemble, _: Target, __: str) -> tuple[str, Arithmetic]:
    """Return the definition of a trained model: a flat list of nodes for each tree."""
    about = {"target_type": "regression", "feature_names": ensemble.names}

    def tree(root: splits.Node) -> dict[str, Any]:
        nodes, queue = list[dict[str, Any]](), [root]
        for number, of in enumerate(queue):  # breadth first: the loop appends to the queue
            if isinstance(of, splits.NumberSplit):
                split = {"decision_type": "lte", "split_feature": of.feature, "threshold": of.limit}
                children = {"left_child": len(queue), "right_child": len(queue) + 1}
                nodes.append({"node_index": number, **split, "default_left": of.missing_left, **children})
                queue += [of.left, of.right]
            else:
                nodes.append({"node_index": number, "leaf_value": _value(of)})
        return {"tree": {**about, "tree_structure": nodes}}

    trees = [tree(root) for root in _with_constant(ensemble)]
    content = {"ensemble": {**about, "trained_models": trees, "aggregate_output": {"weighted_sum": dict[str, Any]()}}}
    arithmetic = Arithmetic(np.float32, np.float64, np.float64, at_most=True)
    return json.dumps({"trained_model": content}, separators=(",", ":"), allow_nan=False), arithmetic


def _xgboost(ensemble: splits.Ensemble, _: Target, __: str) -> tuple[str, Arithmetic]:
    """Return XGBoost's JSON for the plugins (`model/xgboost+json`): every split has a depth, `yes` comes first."""

    def node(of: splits.Node, number: int, depth: int) -> tuple[str, int]:
        if not isinstance(of, splits.NumberSplit):
            return f'{{"nodeid":{number},"leaf":{_short(np.float32(_value(of)))}}}', number + 1
        left, no = node(of.left, number + 1, depth + 1)
        right, end = node(of.right, no, depth + 1)
        text = (
            f'{{"nodeid":{number},"depth":{depth},"split":{json.dumps(ensemble.names[of.feature])},'
            f'"split_condition":{_short(single_above(of.limit))},"yes":{number + 1},"no":{no},'
            f'"missing":{number + 1 if of.missing_left else no},"children":[{left},{right}]}}'
        )
        return text, end

    trees = ",\n".join(node(tree, 0, 0)[0] for tree in _with_constant(ensemble))
    arithmetic = Arithmetic(np.float32, np.float32, np.float32)
    return f'{{"objective":"rank:pairwise","splits":[{trees}]}}', arithmetic


def _solr(ensemble: splits.Ensemble, target: Target, name: str) -> tuple[str, Arithmetic]:
    """Return a MultipleAdditiveTreesModel, with numbers as strings: it has no setters for JSON numbers."""

    def node(of: splits.Node) -> dict[str, Any]:
        if not isinstance(of, splits.NumberSplit):
            return {"value": _short(np.float32(_value(of)))}
        way = {"missing": "left" if of.missing_left else "right"} if target.missing == "by split" else {}
        split = {"feature": ensemble.names[of.feature], "threshold": _short(before_slack(single_below(of.limit)))}
        return {**split, **way, "left": node(of.left), "right": node(of.right)}

    content = {
        "class": "org.apache.solr.ltr.model.MultipleAdditiveTreesModel",
        "name": name,
        "store": name,
        "features": [{"name": feature} for feature in ensemble.names],
        "params": {
            **({"isNullSameAsZero": False} if target.missing == "by split" else {}),
            "trees": [{"weight": "1", "root": node(tree)} for tree in _with_constant(ensemble)],
        },
    }
    arithmetic = Arithmetic(np.float32, np.float32, np.float32, at_most=True, slack=_SLACK)
    return json.dumps(content, separators=(",", ":"), allow_nan=False), arithmetic


def first_names(names: Sequence[str]) -> str:
    """Return the first five names, quoted, and the number of the others."""
    more = len(names) - _NAMED
    return ", ".join(map(repr, names[:_NAMED])) + (f" and {more:,} more" if more > 0 else "")


def _value(leaf: splits.Node) -> float:
    """Return the value of a leaf; raise TypeError for a split on categories, which must have been rewritten."""
    if not isinstance(leaf, splits.Leaf):
        raise TypeError(leaf)
    return leaf.value


def _depths(node: splits.Node, depth: int = 0) -> list[int]:
    return [depth] if isinstance(node, splits.Leaf) else _depths(node.left, depth + 1) + _depths(node.right, depth + 1)


_Writer = Callable[[splits.Ensemble, Target, str], tuple[str, Arithmetic]]
_WRITERS: Mapping[ServingEngine, _Writer] = {
    "vespa": _vespa,
    "elasticsearch": _elasticsearch,
    "opensearch": _xgboost,
    "elasticsearch-ltr": _xgboost,
    "solr": _solr,
}


# --- parsing of the text ---

_FIELDS: Mapping[ServingEngine, tuple[str, str, str, tuple[str, str]]] = {
    "vespa": ("leaf_value", "split_feature", "threshold", ("left_child", "right_child")),
    "elasticsearch": ("leaf_value", "split_feature", "threshold", ("left_child", "right_child")),
    "opensearch": ("leaf", "split", "split_condition", ("", "")),
    "elasticsearch-ltr": ("leaf", "split", "split_condition", ("", "")),
    "solr": ("value", "feature", "threshold", ("left", "right")),
}
"""Names of the fields: value of a leaf; feature, limit and children of a split."""


def _parse_text(model: EngineModel) -> Iterator[Any]:
    """Yield each tree of the text as arrays by node: feature, limit or value, missing_left, left and right child.

    The children of a leaf are the leaf itself.
    """
    content = json.loads(model.text)
    place = {name: number for number, name in enumerate(model.ensemble.names)}
    value_of, feature_of, limit_of, children_of = _FIELDS[model.target.engine]
    match model.target.engine:
        case "vespa":
            trees = [[tree["tree_structure"]] for tree in content["tree_info"]]
        case "elasticsearch":
            forest = content["trained_model"]["ensemble"]["trained_models"]
            trees = [tree["tree"]["tree_structure"] for tree in forest]
        case "solr":
            trees = [[tree["root"]] for tree in content["params"]["trees"]]
        case _:
            trees = [[tree] for tree in content["splits"]]
    for nodes in trees:
        queue, rows = [nodes[0]], list[tuple[int, float, bool, int, int]]()
        for number, node in enumerate(queue):  # breadth first: the loop appends to the queue
            if value_of in node:
                rows.append((0, float(node[value_of]), False, number, number))
                continue
            left = node["default_left"] if "default_left" in node else node.get("missing") == node.get("yes", "left")
            feature = place[node[feature_of]] if isinstance(node[feature_of], str) else node[feature_of]
            by_split = left and model.target.missing == "by split"
            rows.append((feature, float(node[limit_of]), by_split, len(queue), len(queue) + 1))
            children = node["children"] if "children" in node else [node[name] for name in children_of]
            queue += [nodes[child] if isinstance(child, int) else child for child in children]
        yield tuple(np.array(column) for column in zip(*rows, strict=True))


# --- agreement ---

_EXPLAINED, _FURTHER = 3e-6, 1e-5
"""For scores up to 16: largest rounding error of a sum of singles; least difference of pairs that keep their order."""


@dataclass(frozen=True)
class Agreement:
    """Differences between an engine's scores and the ranker's."""

    rows: int
    largest_difference: float
    explained: float  # the largest difference that the engine's precision explains
    other_leaves: int  # number of rows with larger differences, which took another path through a tree
    pairs: int  # number of pairs with different scores by the ranker
    swapped: int  # number of these that the engine reverses
    swapped_apart: int  # number of reversed pairs whose scores differ by more than 1e-5 (for scores up to 16)

    @property
    def holds(self) -> bool:
        """Whether the engine's precision explains all differences."""
        return not self.other_leaves and not self.swapped_apart


_BLOCK = 500
_MOST_COMPARED = 4000  # rows, evenly spaced, of which all pairs are compared


def agreement(expected: Floats, scores: Floats, lift: float, *, is_double: bool) -> Agreement:
    """Compare an engine's scores with the ranker's, shapes (n,).

    The rounding error of sums of singles is proportional to their size, including the lift: 1e-6 at 16.

    Args:
        expected: scores of the ranker.
        scores: scores of the engine, without the lift.
        lift: constant that the engine's scores include.
        is_double: whether scores should be equal.
    """
    scale = max(1.0, float(np.abs(scores + lift).max(initial=0.0)) / 16)
    explained, apart = (0.0, 0.0) if is_double else (_EXPLAINED * scale, _FURTHER * scale)
    off, pairs, swapped, further = np.abs(scores - expected), 0, 0, 0
    sample = np.unique(np.linspace(0, max(len(expected) - 1, 0), _MOST_COMPARED).astype(np.int64))[: len(expected)]
    ours, theirs = expected[sample], scores[sample]
    for first in range(0, len(sample), _BLOCK):
        ahead = ours[first : first + _BLOCK, np.newaxis] - ours
        reversed_ = theirs[first : first + _BLOCK, np.newaxis] < theirs
        pairs += int((ahead > 0).sum())
        swapped += int(((ahead > 0) & reversed_).sum())
        further += int(((ahead > apart) & reversed_).sum())
    largest = float(off.max(initial=0.0))
    return Agreement(len(off), largest, explained, int((off > explained).sum()), pairs, swapped, further)
