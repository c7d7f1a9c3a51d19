"""Parse LightGBM's trees, and rewrite them for search engines that lack some kinds of splits.

    numeric split: x <= limit goes left, a missing value in the split's own direction      categories: the set goes left

LightGBM has three kinds of missing values (none: NaN is 0; zero: 0 and NaN; NaN), and treats |x| <= 1e-35 as 0. Here
each split has one direction for missing values instead. Further,

- a set of categories becomes an indicator feature, or runs of codes;
- for engines that send missing values right, or replace them by a number above all others, splits on missing values are
  added;
- the rounding error of sums in single precision grows with the partial sum: the mean of each tree is moved into a
  constant, which is added last, and the trees are sorted by the variance of their leaves.

Source: LightGBM's own predictor (`Tree::NumericalDecision`, `Tree::CategoricalDecision`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple, Union

import numpy as np

from posbias.core.arrays.count_table import Floats
from posbias.core.errors import UsageError
from posbias.core.learners.boosting import ModelText

ZERO = float(np.float32(1e-35))
"""LightGBM treats numbers up to this absolute value as 0."""

LARGEST_SINGLE = float(np.finfo(np.float32).max)

_DEEPEST = 200
"""Most levels of a tree: JSON parsers and Python's recursion are limited to 1,000, and a level of JSON counts twice."""

_MOST_CODES = 1 << 20
_LARGEST_LIMIT = 1e37  # its neighbours are finite in single precision
_ANY_NUMBER = 1e300  # LightGBM's limit, beside infinity, of a split between missing and all other values


class Leaf(NamedTuple):
    """A leaf with its contribution to the score."""

    value: float


class NumberSplit(NamedTuple):
    """x <= limit goes left."""

    feature: int
    limit: float
    missing_left: bool
    left: "Node"
    right: "Node"


class CategorySplit(NamedTuple):
    """A category of the set goes left, all other values right."""

    feature: int
    codes: frozenset[int]
    left: "Node"
    right: "Node"


Node = Union[Leaf, NumberSplit, CategorySplit]  # noqa: UP007 - the classes refer to it before it is defined


@dataclass(frozen=True)
class Ensemble:
    """The sum of a constant and trees."""

    names: tuple[str, ...]  # names of the features
    categories: Mapping[int, Sequence[str]]  # texts by categorical feature
    trees: tuple[Node, ...]
    constant: float = 0.0
    sets: Mapping[int, tuple[int, frozenset[int]]] = field(default_factory=dict[int, tuple[int, frozenset[int]]])
    """(number of the categorical feature, codes of the set) by indicator feature."""

    def splits(self) -> "Iterator[NumberSplit | CategorySplit]":
        """Yield all splits of all trees."""
        stack = [*self.trees]
        while stack:
            if not isinstance(node := stack.pop(), Leaf):
                yield node
                stack += [node.left, node.right]

    def map_nodes(self, function: Callable[[Node], Node]) -> "Ensemble":
        """Return the ensemble with a function applied to every node, children first."""
        return replace(self, trees=tuple(_map_nodes(tree, function) for tree in self.trees))


def _map_nodes(node: Node, function: Callable[[Node], Node]) -> Node:
    if not isinstance(node, Leaf):
        node = node._replace(left=_map_nodes(node.left, function), right=_map_nodes(node.right, function))
    return function(node)


def parse(model: ModelText, names: Sequence[str], categories: Mapping[int, Sequence[str]]) -> Ensemble:
    """Parse the trees of a model file, checked by `ModelText.check`.

    Raises:
        UsageError: a tree is too deep for the engines.
        ValueError: the model is no sum of trees with constant leaves, or splits categories by numbers.
    """
    if model.head.get("num_tree_per_iteration", "1") != "1" or "average_output" in model.head:
        raise ValueError("it has several scores of a row, or a mean of trees")
    trees = (_parse_tree(number, fields) for number, fields in enumerate(model.trees))
    ensemble = Ensemble(tuple(names), categories, tuple(trees))
    text = {node.feature for node in ensemble.splits() if isinstance(node, CategorySplit)} | set(categories)
    if any(node.feature in text for node in ensemble.splits() if isinstance(node, NumberSplit)):
        raise ValueError("it splits a feature that is text by numbers")
    return ensemble


def _parse_tree(number: int, fields: Mapping[str, str]) -> Node:
    if fields.get("is_linear", "0") != "0":
        raise ValueError(f"tree {number}: its leaves are linear models")
    left, right, features, decisions, bounds, words = (
        [int(word) for word in fields.get(name, "").split()]
        for name in ("left_child", "right_child", "split_feature", "decision_type", "cat_boundaries", "cat_threshold")
    )
    limits, values = ([float(word) for word in fields.get(name, "").split()] for name in ("threshold", "leaf_value"))
    nodes: dict[int, Node] = {-1 - leaf: Leaf(value) for leaf, value in enumerate(values)}
    height = dict.fromkeys(nodes, 0)
    for node in reversed(range(len(left))):  # children have larger numbers than their parent
        children, feature, kind = (nodes[left[node]], nodes[right[node]]), features[node], decisions[node]
        height[node] = 1 + max(height[left[node]], height[right[node]])
        if kind & 1:
            first, end = bounds[int(limits[node]) :][:2]
            bits = [32 * i + bit for i, word in enumerate(words[first:end]) for bit in range(32) if word >> bit & 1]
            if bits and bits[-1] > _MOST_CODES:
                raise ValueError(f"tree {number}: it splits on category {bits[-1]:,}")
            nodes[node] = CategorySplit(feature, frozenset(bits), *children)
        else:
            nodes[node] = _number_split(feature, limits[node], kind >> 2, bool(kind & 2), *children)
    root = 0 if left else -1
    if height[root] > _DEEPEST:
        raise UsageError(
            f"tree {number} of the ranker is {height[root]} levels deep, and search engines read {_DEEPEST} at most. "
            "Train with fewer leaves, for example --learner-options leaves=31."
        )
    return nodes[root]


def _number_split(feature: int, limit: float, kind: int, default_left: bool, left: Node, right: Node) -> Node:  # noqa: FBT001 - of the file
    """Return numeric splits for LightGBM's `kind` of missing values: none (0), zero (1) or NaN (2)."""
    limit = min(max(limit, -_ANY_NUMBER), _ANY_NUMBER)  # JSON has no infinity
    below_zero, zero_left = float(np.nextafter(-ZERO, -inf)), limit >= 0
    if -ZERO <= limit <= ZERO:
        limit = ZERO if zero_left else below_zero
    if kind == 0:
        return NumberSplit(feature, limit, zero_left, left, right)
    if kind == 2 or zero_left == default_left:  # noqa: PLR2004 - NaN
        return NumberSplit(feature, limit, default_left, left, right)
    if default_left:  # limit < 0, and 0 goes left
        above = NumberSplit(feature, ZERO, False, left, right)
        return NumberSplit(feature, limit, True, left, NumberSplit(feature, below_zero, False, right, above))
    above = NumberSplit(feature, limit, False, left, right)
    return NumberSplit(feature, below_zero, False, left, NumberSplit(feature, ZERO, False, right, above))


# --- rewriting ---


def codes_as_numbers(ensemble: Ensemble) -> Ensemble:
    """Replace sets of categories by runs of codes: the feature is the code of its category, missing if unknown."""

    def change(node: Node) -> Node:
        if not isinstance(node, CategorySplit):
            return node
        chain = node.right
        for code in sorted(node.codes, reverse=True):
            for end, inside in ((code + 1, node.left), (code, node.right)):  # last and first code of a run
                if (end if end > code else code - 1) not in node.codes:
                    # The largest number below code `end`: LightGBM truncates towards 0, so that code 0 begins above -1
                    limit = float(np.nextafter(end, -inf)) if end else -1.0
                    chain = NumberSplit(node.feature, limit, False, inside, chain)
        return chain

    return replace(ensemble.map_nodes(change), categories={})


def sets_as_features(ensemble: Ensemble) -> Ensemble:
    """Replace each set of categories by an indicator feature: 1 for values in the set, 0 or missing for others.

    Categorical features are removed, and the others renumbered.
    """
    categorical = {node.feature for node in ensemble.splits() if isinstance(node, CategorySplit)}
    kept = [i for i in range(len(ensemble.names)) if i not in categorical | set(ensemble.categories)]
    place = {feature: number for number, feature in enumerate(kept)}
    numbers = dict[tuple[int, frozenset[int]], int]()

    def change(node: Node) -> Node:
        if isinstance(node, CategorySplit):
            number = numbers.setdefault((node.feature, node.codes), len(kept) + len(numbers))
            return NumberSplit(number, 0.5, True, node.right, node.left)
        return node if isinstance(node, Leaf) else node._replace(feature=place[node.feature])

    changed = ensemble.map_nodes(change)
    names = [ensemble.names[i] for i in kept]
    for feature, _ in numbers:
        name = f"{ensemble.names[feature]}_in_{len(names) - len(kept)}"
        while name in names:
            name += "_"
        names.append(name)
    return replace(changed, names=tuple(names), categories={}, sets={number: key for key, number in numbers.items()})


def not_as_zero(ensemble: Ensemble) -> list[int]:
    """Return the features with a split that sends missing values in another direction than 0."""
    numeric = (node for node in ensemble.splits() if isinstance(node, NumberSplit))
    return sorted({node.feature for node in numeric if node.missing_left != (node.limit >= 0)})


def guarded(node: Node, features: frozenset[int], ceiling: float, known: Mapping[int, bool] | None = None) -> Node:
    """Rewrite a tree for engines that send missing values, or numbers above `ceiling` in their place, right.

    Args:
        node: root of the tree, without sets of categories.
        features: features that may be missing.
        ceiling: above all numbers, and below the replacement of missing values.
        known: whether a feature is missing, if a split above implies it.
    """
    known = known or {}
    if isinstance(node, Leaf):
        return node

    def rewrite_children(
        split: NumberSplit | CategorySplit, known_below: Mapping[int, bool]
    ) -> NumberSplit | CategorySplit:
        left, right = (guarded(child, features, ceiling, known_below) for child in (split.left, split.right))
        return split._replace(left=left, right=right)

    feature = node.feature
    if isinstance(node, CategorySplit) or feature not in features:
        return rewrite_children(node, known)
    if known.get(feature):
        return guarded(node.left if node.missing_left else node.right, features, ceiling, known)
    node = node._replace(limit=min(node.limit, ceiling))  # LightGBM splits missing from other values at 1e300
    present = {**known, feature: False}
    if node.missing_left and feature not in known:
        absent = guarded(node.left, features, ceiling, {**known, feature: True})
        return NumberSplit(feature, ceiling, False, rewrite_children(node, present), absent)
    # Values on the left are present; on the right, they may be missing
    left = guarded(node.left, features, ceiling, present)
    right = guarded(node.right, features, ceiling, present if feature in known else known)
    return node._replace(missing_left=False, left=left, right=right)


def centred(ensemble: Ensemble, lowest: float | None = None) -> tuple[Ensemble, float]:
    """Move the mean of each tree into the constant, and add a lift so that all scores are at least `lowest`.

    Returns:
        The ensemble, its trees sorted by the standard deviation of their leaves, and the lift.
    """
    values = [_values(tree) for tree in ensemble.trees]
    means = [float(np.mean(leaves)) for leaves in values]

    def subtract(tree: Node, mean: float) -> Node:
        return _map_nodes(tree, lambda node: Leaf(node.value - mean) if isinstance(node, Leaf) else node)

    trees = [subtract(tree, mean) for tree, mean in zip(ensemble.trees, means, strict=True)]
    flattest_first = sorted(range(len(trees)), key=lambda tree: float(np.std(values[tree])))
    constant, lift = ensemble.constant + sum(means), 0.0
    if lowest is not None:
        lift = max(lowest - constant - sum(min(leaves) - mean for leaves, mean in zip(values, means, strict=True)), 0.0)
    return replace(ensemble, trees=tuple(trees[i] for i in flattest_first), constant=constant + lift), lift


def _values(node: Node) -> list[float]:
    return [node.value] if isinstance(node, Leaf) else _values(node.left) + _values(node.right)


# --- test rows ---


def rows_at_limits(ensemble: Ensemble, n: int, seed: int, *, single: bool, tiny: bool = True) -> Floats:
    """Draw rows that engines may score differently: 20 % of values are missing, 60 % of others at or next to a limit.

    Args:
        ensemble: LightGBM's trees.
        n: number of rows.
        seed: seed of the random numbers.
        single: whether all values are in single precision.
        tiny: whether values may differ from a limit or 0 by less than 1e-12.

    Returns:
        Features, shape (n, F); a category that is unknown in training is a code above the others.
    """
    rng = np.random.default_rng(seed)
    limits, codes = ([set[float]() for _ in ensemble.names] for _ in range(2))
    for node in ensemble.splits():
        if isinstance(node, NumberSplit):
            limits[node.feature].add(node.limit)
        else:
            codes[node.feature] |= node.codes
    kind = np.float32 if single else np.float64
    low, high = kind(-inf), kind(inf)
    near_zero = np.array([0.0, -0.0, *([1e-36, -1e-36, 1e-35, -1e-35] if tiny else [1e-12, -1e-12])], kind)
    rows = np.empty((n, len(ensemble.names)))
    for i, limits_of_feature in enumerate(limits):
        if i in ensemble.categories or codes[i]:
            n_codes = max(len(ensemble.categories.get(i, ())), int(max(codes[i], default=0)) + 1)
            rows[:, i] = rng.integers(0, n_codes + 2, n)
            continue
        at = np.array([limit for limit in limits_of_feature if abs(limit) < _LARGEST_LIMIT] or [0.0]).astype(kind)
        below, above = np.nextafter(at, low), np.nextafter(at, high)
        if not tiny:
            at = below = np.minimum(below, at - near_zero[2])
            above = np.maximum(above, at + 2 * near_zero[2])
        beside = np.concatenate([at, below, above])
        spread = (rng.normal(size=n) * (np.abs(at).max() + 1)).astype(kind)
        kinds = np.column_stack([rng.choice(beside, n), rng.choice(near_zero, n), spread])
        rows[:, i] = kinds[np.arange(n), rng.choice(3, n, p=[0.6, 0.1, 0.3])]
    rows[rng.random(rows.shape) < 0.2] = np.nan  # noqa: PLR2004 - a fifth
    return rows
