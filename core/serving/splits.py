"""Trees of LightGBM as leaves and splits, and the rewriting of what a search engine has no word for.

    split of numbers: x <= limit goes left; a missing value where the split says        of categories: the set goes left

LightGBM knows three kinds of missing value (none: NaN is 0; zero: 0 and NaN; NaN), and takes whatever is not further
from 0 than 1e-35 for 0. Here each split has one direction for missing values instead. Further,

- a set of categories becomes a feature of its own, 1 inside, or runs of codes;
- where an engine sends every missing value right, or reads a number above all others in its place, a split on that
  comes first;
- sums in single precision err by the size of the partial sum: so the mean of each tree is taken out and added last, and
  the flattest trees come first.

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
"""LightGBM takes what is not further from 0 for 0."""

LARGEST_SINGLE = float(np.finfo(np.float32).max)

_DEEPEST = 200
"""Levels of a tree: a parser of JSON takes 1,000, of which a level takes two, and Python's recursion as many."""

_MOST_CODES = 1 << 20
_LARGEST_LIMIT = 1e37  # of which a neighbour is still a single
_ANY_NUMBER = 1e300  # LightGBM parts missing values from all others here, or at infinity


class Leaf(NamedTuple):
    """The end of a path."""

    value: float


class NumberSplit(NamedTuple):
    """x <= limit goes left."""

    feature: int
    limit: float
    missing_left: bool
    left: "Node"
    right: "Node"


class CategorySplit(NamedTuple):
    """A category of the set goes left, everything else right."""

    feature: int
    codes: frozenset[int]
    left: "Node"
    right: "Node"


Node = Union[Leaf, NumberSplit, CategorySplit]  # noqa: UP007 - the classes name it before it is there


@dataclass(frozen=True)
class Ensemble:
    """The sum of a constant and trees."""

    names: tuple[str, ...]  # of the features
    categories: Mapping[int, Sequence[str]]  # by feature that is text
    trees: tuple[Node, ...]
    constant: float = 0.0
    sets: Mapping[int, tuple[int, frozenset[int]]] = field(default_factory=dict[int, tuple[int, frozenset[int]]])
    """By feature that stands for a set: the number of the feature that was split, and the codes of its set."""

    def splits(self) -> "Iterator[NumberSplit | CategorySplit]":
        """All splits of all trees."""
        waiting = [*self.trees]
        while waiting:
            if not isinstance(node := waiting.pop(), Leaf):
                yield node
                waiting += [node.left, node.right]

    def changed(self, change: Callable[[Node], Node]) -> "Ensemble":
        """The ensemble with every node changed, children first."""
        return replace(self, trees=tuple(_changed(tree, change) for tree in self.trees))


def _changed(node: Node, change: Callable[[Node], Node]) -> Node:
    if not isinstance(node, Leaf):
        node = node._replace(left=_changed(node.left, change), right=_changed(node.right, change))
    return change(node)


def parse(model: ModelText, names: Sequence[str], categories: Mapping[int, Sequence[str]]) -> Ensemble:
    """The trees of a model file that `ModelText.check` has passed.

    Raises:
        UsageError: a tree is too deep for the engines.
        ValueError: the file holds no plain sum of trees.
    """
    if model.head.get("num_tree_per_iteration", "1") != "1" or "average_output" in model.head:
        raise ValueError("it has several scores of a row, or a mean of trees")
    trees = (_tree(number, fields) for number, fields in enumerate(model.trees))
    ensemble = Ensemble(tuple(names), categories, tuple(trees))
    text = {node.feature for node in ensemble.splits() if isinstance(node, CategorySplit)} | set(categories)
    if any(node.feature in text for node in ensemble.splits() if isinstance(node, NumberSplit)):
        raise ValueError("it splits a feature that is text by numbers")
    return ensemble


def _tree(number: int, fields: Mapping[str, str]) -> Node:
    if fields.get("is_linear", "0") != "0":
        raise ValueError(f"tree {number}: its leaves are linear models")
    left, right, features, decisions, bounds, words = (
        [int(word) for word in fields.get(name, "").split()]
        for name in ("left_child", "right_child", "split_feature", "decision_type", "cat_boundaries", "cat_threshold")
    )
    limits, values = ([float(word) for word in fields.get(name, "").split()] for name in ("threshold", "leaf_value"))
    made, height = dict[int, Node](), dict[int, int]()
    for leaf, value in enumerate(values):
        made[-1 - leaf], height[-1 - leaf] = Leaf(value), 0
    for node in reversed(range(len(left))):  # LightGBM numbers a child after its parent
        below, beside, feature, kind = made[left[node]], made[right[node]], features[node], decisions[node]
        height[node] = 1 + max(height[left[node]], height[right[node]])
        if kind & 1:
            first, end = bounds[int(limits[node]) :][:2]
            bits = [32 * i + bit for i, word in enumerate(words[first:end]) for bit in range(32) if word >> bit & 1]
            if bits and bits[-1] > _MOST_CODES:
                raise ValueError(f"tree {number}: it splits on category {bits[-1]:,}")
            made[node] = CategorySplit(feature, frozenset(bits), below, beside)
        else:
            made[node] = _numeric(feature, limits[node], kind >> 2, bool(kind & 2), below, beside)
    root = 0 if left else -1
    if height[root] > _DEEPEST:
        raise UsageError(
            f"tree {number} of the ranker is {height[root]} levels deep, and search engines read {_DEEPEST} at most. "
            "Train with fewer leaves, for example --learner-options leaves=31."
        )
    return made[root]


def _numeric(feature: int, limit: float, kind: int, default_left: bool, left: Node, right: Node) -> Node:  # noqa: FBT001 - of the file
    """A split of numbers, whatever LightGBM takes for missing: nothing (0), what is 0 (1), or NaN (2)."""
    limit = min(max(limit, -_ANY_NUMBER), _ANY_NUMBER)  # no JSON has infinity
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
    """Sets of categories as runs of codes: the feature is the number of its category, missing where it has none."""

    def change(node: Node) -> Node:
        if not isinstance(node, CategorySplit):
            return node
        chain = node.right
        for code in sorted(node.codes, reverse=True):
            for end, inside in ((code + 1, node.left), (code, node.right)):  # the last of a run; the first
                if (end if end > code else code - 1) not in node.codes:
                    # the largest number that is no such code: LightGBM rounds towards 0, so that 0 begins above -1
                    limit = float(np.nextafter(end, -inf)) if end else -1.0
                    chain = NumberSplit(node.feature, limit, False, inside, chain)
        return chain

    return replace(ensemble.changed(change), categories={})


def sets_as_features(ensemble: Ensemble) -> Ensemble:
    """Each set of categories as a feature of its own: 1 where the value is inside, 0 or missing elsewhere.

    Features of categories are left out, so that those behind them have other numbers.
    """
    of_categories = {node.feature for node in ensemble.splits() if isinstance(node, CategorySplit)}
    kept = [i for i in range(len(ensemble.names)) if i not in of_categories | set(ensemble.categories)]
    place = {feature: number for number, feature in enumerate(kept)}
    numbers = dict[tuple[int, frozenset[int]], int]()

    def change(node: Node) -> Node:
        if isinstance(node, CategorySplit):
            number = numbers.setdefault((node.feature, node.codes), len(kept) + len(numbers))
            return NumberSplit(number, 0.5, True, node.right, node.left)
        # a set has been given its number by now, and is not looked up again
        return node if isinstance(node, Leaf) else node._replace(feature=place[node.feature])

    changed = ensemble.changed(change)
    names = [ensemble.names[i] for i in kept]
    for feature, _ in numbers:
        name = f"{ensemble.names[feature]}_in_{len(names) - len(kept)}"
        while name in names:
            name += "_"
        names.append(name)
    return replace(changed, names=tuple(names), categories={}, sets={number: of for of, number in numbers.items()})


def not_as_zero(ensemble: Ensemble) -> list[int]:
    """The features whose missing values go another way than 0 does, somewhere."""
    numeric = (node for node in ensemble.splits() if isinstance(node, NumberSplit))
    return sorted({node.feature for node in numeric if node.missing_left != (node.limit >= 0)})


def guarded(node: Node, features: frozenset[int], ceiling: float, known: Mapping[int, bool] | None = None) -> Node:
    """A tree for engines in which a missing value, or a number above the ceiling in its place, always goes right.

    Args:
        node: of the tree, without sets of categories.
        features: which may be missing.
        ceiling: above every number, and below what stands for a missing value.
        known: whether a feature is missing, where a split above decides it.
    """
    known = known or {}
    if isinstance(node, Leaf):
        return node

    def both(of: NumberSplit | CategorySplit, known_now: Mapping[int, bool]) -> NumberSplit | CategorySplit:
        left, right = (guarded(child, features, ceiling, known_now) for child in (of.left, of.right))
        return of._replace(left=left, right=right)

    feature = node.feature
    if isinstance(node, CategorySplit) or feature not in features:
        return both(node, known)
    if known.get(feature):
        return guarded(node.left if node.missing_left else node.right, features, ceiling, known)
    node = node._replace(limit=min(node.limit, ceiling))  # LightGBM parts missing from all else at 1e300
    present = {**known, feature: False}
    if node.missing_left and feature not in known:
        absent = guarded(node.left, features, ceiling, {**known, feature: True})
        return NumberSplit(feature, ceiling, False, both(node, present), absent)
    # a value that is not known to be there may still be missing on the right, and is present on the left
    left = guarded(node.left, features, ceiling, present)
    right = guarded(node.right, features, ceiling, present if feature in known else known)
    return node._replace(missing_left=False, left=left, right=right)


def centred(ensemble: Ensemble, lowest: float | None = None) -> tuple[Ensemble, float]:
    """The ensemble with the mean of each tree in its constant, and what was added to keep all scores above `lowest`."""
    values = [_values(tree) for tree in ensemble.trees]
    means = [float(np.mean(of_tree)) for of_tree in values]

    def less(tree: Node, mean: float) -> Node:
        return _changed(tree, lambda node: Leaf(node.value - mean) if isinstance(node, Leaf) else node)

    trees = [less(tree, mean) for tree, mean in zip(ensemble.trees, means, strict=True)]
    flattest_first = sorted(range(len(trees)), key=lambda tree: float(np.std(values[tree])))
    constant, lift = ensemble.constant + sum(means), 0.0
    if lowest is not None:
        lift = max(lowest - constant - sum(min(of) - mean for of, mean in zip(values, means, strict=True)), 0.0)
    return replace(ensemble, trees=tuple(trees[i] for i in flattest_first), constant=constant + lift), lift


def _values(node: Node) -> list[float]:
    return [node.value] if isinstance(node, Leaf) else _values(node.left) + _values(node.right)


# --- rows that are hard to score alike ---


def rows_at_limits(ensemble: Ensemble, n: int, seed: int, *, single: bool, tiny: bool = True) -> Floats:
    """Rows of which 60 % of values are at a limit or one step beside it, 20 % are missing, and some are near 0.

    Args:
        ensemble: as LightGBM has it.
        n: number of rows.
        seed: of what is drawn.
        single: whether all values are of single precision.
        tiny: whether values may be within 1e-12 of a limit or of 0, and not be it.

    Returns:
        Features, shape (n, F); a category that was not seen in training is a code beyond the others.
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
    for i, of_feature in enumerate(limits):
        if i in ensemble.categories or codes[i]:
            n_codes = max(len(ensemble.categories.get(i, ())), int(max(codes[i], default=0)) + 1)
            rows[:, i] = rng.integers(0, n_codes + 2, n)
            continue
        at = np.array([one for one in of_feature if abs(one) < _LARGEST_LIMIT] or [0.0]).astype(kind)
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
