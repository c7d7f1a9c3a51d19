"""Models as arrays: forests read from text, networks and factors; and Adam, which trains those.

    m <- .9 m + .1 g,   v <- .999 v + .001 g^2,   x <- x - rate (m / (1 - .9^t)) / (sqrt(v / (1 - .999^t)) + 1e-8)

    x <= threshold                      for numbers
    x is among the node's categories    for categories

and a missing value where the node sends it. A child is the number of an inner node, or -1 - the number of a leaf. The
score is the sum of the values of the leaves, tree by tree. The sums are those of LightGBM, bit for bit; but LightGBM
believes what a file says, and one wrong child ends or hangs the process.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.arrays.threads import at_once
from posbias.core.learners.boosting import Rows, runs

Parameters = Mapping[str, NDArray[np.floating[Any]]]
"""Arrays of whatever precision, by name."""

_FIRST, _SECOND, _TINY = 0.9, 0.999, 1e-8


class Adam:
    """Adam's steps down a gradient."""

    def __init__(self, parameters: Parameters, rate: float, rates: Mapping[str, float] | None = None) -> None:
        """Begin at parameters, which every step changes in place, at one rate; some may have rates of their own."""
        self._steps = 0
        self._state = {
            name: (values, np.zeros_like(values), np.zeros_like(values), (rates or {}).get(name, rate))
            for name, values in parameters.items()
        }

    def step(self, gradients: Parameters) -> None:
        """Take a step against gradients."""
        self._steps += 1
        for name, gradient in gradients.items():
            parameter, mean, square, rate = self._state[name]
            mean += (1 - _FIRST) * (gradient - mean)
            square += (1 - _SECOND) * (gradient**2 - square)
            spread = np.sqrt(square / (1 - _SECOND**self._steps)) + _TINY
            parameter -= rate * (mean / (1 - _FIRST**self._steps)) / spread


_ONE_SCORE = {"version": "v4", "num_class": "1", "num_tree_per_iteration": "1", "label_index": "0"}
_OF_HEAD = {
    *("tree", *_ONE_SCORE, "max_feature_idx", "objective", "feature_names", "feature_infos"),
    *("monotone_constraints", "tree_sizes"),
}
_OF_SPLITS, _OF_LEAVES = (
    ("split_gain", "internal_value", "internal_weight", "internal_count"),
    ("leaf_weight", "leaf_count"),
)
_OF_TREES = {
    *("num_leaves", "num_cat", "split_feature", "decision_type", "threshold", "left_child", "right_child"),
    *("leaf_value", "cat_boundaries", "cat_threshold", "is_linear", "shrinkage", *_OF_SPLITS, *_OF_LEAVES),
}
_INTEGERS, _FLOATS = re.compile(r"-?[0-9]{1,10}"), re.compile(r"-?[0-9]*\.?[0-9]*(e[+-]?[0-9]+)?|-?inf")
_LARGEST = 2**31 - 1

_CATEGORICAL, _MISSING_LEFT = 1, 2  # bits of decision_type; the two above them say what counts as missing
_MISSING_AT = 2
_NOTHING, _ZERO, _NAN = 0, 1, 2  # NaN is 0, zero and NaN are missing, NaN is missing
_FOREST_TINY = float(np.float32(1e-35))  # LightGBM takes what is not larger for 0
_WORD = 32  # bits of a word of cat_threshold
_BLOCK = 1 << 15  # rows that go down the trees together: their columns stay in the processor's cache


@dataclass(frozen=True)
class Tree:
    """A tree with L leaves, whose children are numbered after their parents."""

    feature: Integers  # which feature each inner node splits, shape (L - 1,)
    threshold: Floats  # where; of a split by category, which of `categories`, shape (L - 1,)
    decision: Integers  # LightGBM's bits, shape (L - 1,)
    left: Integers  # left child of each, shape (L - 1,)
    right: Integers  # right child of each, shape (L - 1,)
    value: Floats  # of each leaf, shape (L,)
    # whether category 0, 1, ... goes to the left; the last entry is for what is none of them: False
    categories: tuple[NDArray[np.bool_], ...]

    @classmethod
    def parse(cls, fields: Mapping[str, str], n_features: int) -> "Tree":
        """The tree of the fields of a section.

        Raises:
            ValueError: they hold none.
        """
        if fields.get("is_linear", "0") != "0":
            raise ValueError("is_linear is not 0")
        (leaves,), (n_sets,) = _integers(fields, "num_leaves", 1), _integers(fields, "num_cat", 1)
        splits = leaves - 1
        for names, number in ((_OF_SPLITS, splits), (_OF_LEAVES, leaves), (("shrinkage",), 1)):  # LightGBM reads them
            for name in names:
                _floats(fields, name, number if fields.get(name) else 0)
        tree = cls(
            np.array(_integers(fields, "split_feature", splits), np.int64),
            np.array(_floats(fields, "threshold", splits)),
            np.array(_integers(fields, "decision_type", splits), np.int64),
            np.array(_integers(fields, "left_child", splits), np.int64),
            np.array(_integers(fields, "right_child", splits), np.int64),
            np.array(_floats(fields, "leaf_value", leaves)),
            _categories(fields, n_sets),
        )
        tree.check(n_features)
        return tree

    def check(self, n_features: int) -> None:
        """Raise ValueError where a row could not go from the root to a leaf."""
        splits = len(self.feature)
        if ((self.feature < 0) | (self.feature >= n_features)).any():
            raise ValueError(f"split_feature is not between 0 and {n_features - 1}")
        if ((self.decision < 0) | (self.decision >> _MISSING_AT > _NAN)).any():
            raise ValueError("decision_type is not known")
        if not np.isfinite(self.value).all():
            raise ValueError("leaf_value holds a number that is not finite")
        children = np.concatenate([self.left, self.right])
        if not np.array_equal(np.sort(children), np.setdiff1d(np.arange(-splits - 1, splits), [0] if splits else [-1])):
            raise ValueError("its nodes form no tree: each but the first must be the child of exactly one other")
        nodes = np.arange(splits)
        if (((self.left >= 0) & (self.left <= nodes)) | ((self.right >= 0) & (self.right <= nodes))).any():
            raise ValueError("its nodes form no tree: a child comes before its parent")
        sets = self.threshold[self.decision & _CATEGORICAL == 1]
        if not np.isin(sets, np.arange(len(self.categories))).all():
            raise ValueError("a threshold names no set of categories")

    def add_scores(self, columns: Floats, scores: Floats) -> None:
        """Add the values of the leaves that rows reach.

        Args:
            columns: features by row, NaN where missing and no number nearer to 0 than 1e-35, shape (F, n).
            scores: are added to, shape (n,).
        """
        waiting = [(0 if len(self.feature) else -1, np.arange(len(scores)))]
        while waiting:
            node, rows = waiting.pop()
            if node < 0:
                scores[rows] += self.value[-1 - node]
                continue
            goes_left = self._goes_left(node, columns[self.feature[node]].take(rows))
            waiting += [(int(self.right[node]), rows[~goes_left]), (int(self.left[node]), rows[goes_left])]

    def _goes_left(self, node: int, values: Floats) -> NDArray[np.bool_]:
        decision, threshold = int(self.decision[node]), self.threshold[node]
        if decision & _CATEGORICAL:
            known = self.categories[int(threshold)]
            none = len(known) - 1
            return known[np.where((values > -1) & (values < none), values, none).astype(np.int64)]
        below: NDArray[np.bool_] = values <= threshold
        missing = np.isnan(values)
        kind = decision >> _MISSING_AT
        if kind == _NOTHING:
            return below | missing if threshold >= 0 else below
        if kind == _ZERO:
            missing |= values == 0
        return below | missing if decision & _MISSING_LEFT else below & ~missing


@dataclass(frozen=True)
class Forest:
    """A LightGBM model file, for predictions."""

    text: str  # the file's content

    @cached_property
    def n_features(self) -> int:
        """Number of features F that rows have.

        Raises:
            ValueError: the file does not say it.
        """
        (last,) = _integers(self._sections[0], "max_feature_idx", 1)
        return last + 1

    @cached_property
    def trees(self) -> tuple[Tree, ...]:
        """The trees, with all numbers in range.

        Raises:
            ValueError: the file is not one that LightGBM writes for one score per row.
        """
        head, *sections = self._sections
        for name, value in _ONE_SCORE.items():
            if head.get(name) != value:
                raise ValueError(f"{name} is not {value}")
        for name in ("feature_names", "feature_infos"):
            if len(head.get(name, "").split()) != self.n_features:
                raise ValueError(f"{name} and max_feature_idx are of other features")
        trees = list[Tree]()
        for number, fields in enumerate(sections):
            try:
                trees.append(Tree.parse(fields, self.n_features))
            except ValueError as error:
                raise ValueError(f"tree {number}: {error}") from error
        return tuple(trees)

    @cached_property
    def _sections(self) -> list[dict[str, str]]:
        """The fields of the head, and of each tree."""
        body, end, _ = self.text.partition("\nend of trees\n")
        head, *trees = body.split("\nTree=")
        sections = [_fields(head, _OF_HEAD)]
        if [tree.partition("\n")[0] for tree in trees] != list(map(str, range(len(trees)))) or not end:
            raise ValueError("its trees are not numbered from 0 to the end")
        if not all(tree.endswith("\n\n") for tree in trees):  # LightGBM would read on into the next one
            raise ValueError("a tree does not end with two empty lines")
        if [str(len(f"Tree={tree}\n")) for tree in trees] != sections[0].get("tree_sizes", "").split():
            raise ValueError("its trees have not the sizes in tree_sizes")
        return [*sections, *(_fields(tree.partition("\n")[2], _OF_TREES) for tree in trees)]

    def scores(self, rows: Rows, threads: int | None = None) -> Floats:
        """The raw scores of rows, shape (n,).

        Args:
            rows: features, NaN where missing, shape (n, F).
            threads: how many work; all by default.

        Raises:
            ValueError: the text is no model, or rows have other features.
        """
        trees = self.trees

        def of_block(block: slice) -> Floats:
            values = np.asarray(rows[block], np.float64)
            if values.shape[1:] != (self.n_features,):
                raise ValueError(f"rows have {values.shape[1:]} features, and the model {self.n_features}")
            columns = np.where(np.abs(values.T) <= _FOREST_TINY, 0.0, values.T)
            columns, scores = np.ascontiguousarray(columns), np.zeros(len(values))
            for tree in trees:
                tree.add_scores(columns, scores)
            return scores

        with np.errstate(over="ignore", invalid="ignore"):
            parts = list(at_once(of_block, runs(len(rows), _BLOCK), threads))
        return np.concatenate(parts) if parts else np.zeros(0)


def _fields(section: str, known: Collection[str]) -> dict[str, str]:
    """The fields of lines `name=value`, each of which is known and stands there once; empty lines end a section."""
    fields = dict[str, str]()
    for line in section.rstrip("\n").split("\n"):
        name, _, value = line.partition("=")
        if name not in known or name in fields:
            raise ValueError(f"{name[:40]!r} is unknown, or appears twice")
        fields[name] = value
    return fields


def _integers(fields: Mapping[str, str], name: str, number: int) -> list[int]:
    """Whole numbers of 32 bits, with a sign or without."""
    numbers = list(map(int, _words(fields, name, number, _INTEGERS)))
    if numbers and not -_LARGEST <= min(numbers) <= max(numbers) <= 2 * _LARGEST + 1:
        raise ValueError(f"{name} holds a number of more than 32 bits")
    return numbers


def _floats(fields: Mapping[str, str], name: str, number: int) -> list[float]:
    """Numbers, of which some may be infinite: a threshold is where only missing values go to the right."""
    return list(map(float, _words(fields, name, number, _FLOATS)))


def _words(fields: Mapping[str, str], name: str, number: int, one: "re.Pattern[str]") -> list[str]:
    words = fields.get(name, "").split(" ") if fields.get(name) else []
    if len(words) != number or not all(map(one.fullmatch, words)):
        raise ValueError(f"{name} does not hold {number:,} numbers")
    return words


def _categories(fields: Mapping[str, str], number: int) -> tuple[NDArray[np.bool_], ...]:
    """The sets of categories: the bits of the words from one boundary to the next."""
    if number == 0:
        return ()
    ends = _integers(fields, "cat_boundaries", number + 1)
    if ends[0] != 0 or any(after < before for before, after in pairwise(ends)):
        raise ValueError("cat_boundaries do not ascend from 0")
    words = _integers(fields, "cat_threshold", ends[-1])
    if min(words, default=0) < 0:
        raise ValueError("cat_threshold holds a negative number")
    bits = np.unpackbits(np.array(words, "<u4").view(np.uint8), bitorder="little").astype(np.bool_)
    return tuple(np.append(bits[_WORD * first : _WORD * end], False) for first, end in pairwise(ends))


Arrays = Mapping[str, NDArray[np.generic]]
_Reals = TypeVar("_Reals", bound=NDArray[np.floating[Any]])

LARGEST_INPUT = 5.0
"""Standard deviations: a feature further out is taken for this far out, so that one value does not run a network."""


def standardized(rows: Floats, mean: Floats, scale: Floats) -> Floats:
    """Rows of shape (n, F) as networks see them: x' = clip((x - mean) / scale, -5, 5), 0 where missing."""
    return np.nan_to_num(np.clip((rows - mean) / scale, -LARGEST_INPUT, LARGEST_INPUT))


def layers_of(rows: _Reals, weights: Sequence[_Reals], biases: Sequence[_Reals]) -> list[_Reals]:
    """The layers of a perceptron, h_0 = x', h_i = relu(h_{i-1} W_i + b_i), and f = h W + b of shape (n, 1)."""
    layers: list[Any] = [rows]
    for weight, bias in zip(weights, biases, strict=True):
        hidden = layers[-1] @ weight + bias
        layers.append(np.maximum(hidden, 0) if len(layers) < len(weights) else hidden)
    return layers


@dataclass(frozen=True)
class NetworkModel:
    """A multilayer perceptron on standardised features: relu between layers, one number at the end.

    One layer is a linear model.
    """

    mean: Floats  # of each feature, shape (F,)
    scale: Floats  # its standard deviation, 1 where it is constant, shape (F,)
    weights: tuple[Floats, ...]  # of each layer
    biases: tuple[Floats, ...]

    @property
    def n_features(self) -> int:
        """Number of features, F."""
        return len(self.mean)

    def scores(self, rows: Rows) -> Floats:
        """The score f of each row, shape (n,)."""
        scores = [
            layers_of(standardized(rows[chunk], self.mean, self.scale), self.weights, self.biases)[-1][:, 0]
            for chunk in runs(len(rows))
        ]
        return np.concatenate(scores) if scores else np.zeros(0)

    def arrays(self) -> dict[str, Floats]:
        """The arrays of `model.npz`, by name."""
        layers = {f"weight_{number}": weight for number, weight in enumerate(self.weights)}
        layers |= {f"bias_{number}": bias for number, bias in enumerate(self.biases)}
        return {"mean": self.mean, "scale": self.scale, **layers}

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> "NetworkModel":
        """The network that arrays hold.

        Raises:
            ValueError: they hold none.
        """
        n_layers = (len(arrays) - 2) // 2
        names = [f"{sort}_{number}" for sort in ("weight", "bias") for number in range(n_layers)]
        mean, scale, *layers = _finite(arrays, "mean", "scale", *names)
        weights, biases = tuple(layers[:n_layers]), tuple(layers[n_layers:])
        widths = [mean.size, *(bias.size for bias in biases)]
        shapes = [shape for above, below in pairwise(widths) for shape in ((above, below), (below,))]
        fits = [array.shape for layer in zip(weights, biases, strict=True) for array in layer] == shapes
        if not (fits and layers and widths[-1] == 1 and mean.shape == scale.shape == (mean.size,)):
            raise ValueError("its layers do not fit together")
        if (scale <= 0).any():
            raise ValueError("scale holds a number that is not above 0")
        return cls(mean, scale, weights, biases)


RowModel = Forest | NetworkModel
"""A model that scores documents by their features; the larger the score f, the more relevant."""


@dataclass(frozen=True)
class FactorModel:
    """Factors of queries (users) and documents (items), where there are no features.

    f(q, d) = m + b_q + b_d + u_q . v_d;   what was never seen has bias and factors 0
    """

    mean: float  # m
    query_bias: Floats  # b, shape (Q,)
    item_bias: Floats  # b, shape (I,)
    query_factors: Floats  # u, shape (Q, R)
    item_factors: Floats  # v, shape (I, R)

    def scores(self, query: Integers, item: Integers) -> Floats:
        """The score of queries and documents by their numbers, -1 for what was never seen, shape (n,)."""
        scores: Floats = self.mean + (_of(self.query_bias, query) + _of(self.item_bias, item))
        for of_query, of_item in zip(self.query_factors.T, self.item_factors.T, strict=True):
            scores = scores + _of(of_query, query) * _of(of_item, item)
        return scores

    def arrays(self) -> dict[str, Floats]:
        """The arrays of `model.npz`, by name."""
        return {name: np.asarray(values) for name, values in vars(self).items()}

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> "FactorModel":
        """The factors that arrays hold.

        Raises:
            ValueError: they hold none.
        """
        mean, of_queries, of_items, queries, items = finite = _finite(arrays, *cls.__dataclass_fields__)
        n_factors = queries.shape[-1] if queries.shape else 0
        shapes = [(), (of_queries.size,), (of_items.size,), (of_queries.size, n_factors), (of_items.size, n_factors)]
        if [array.shape for array in finite] != shapes:
            raise ValueError("its factors do not fit together")
        return cls(float(mean), of_queries, of_items, queries, items)


def _finite(arrays: Arrays, *names: str) -> list[Floats]:
    """The arrays of the names, and no others.

    Raises:
        ValueError: one is missing, one is there that is not named, or one holds a number that is not finite.
    """
    if set(arrays) != set(names):
        raise ValueError(f"it holds {', '.join(sorted(arrays)) or 'nothing'}, and should hold {', '.join(names)}")
    finite = [np.asarray(arrays[name], np.float64) for name in names]
    wrong = [name for name, array in zip(names, finite, strict=True) if not np.isfinite(array).all()]
    if wrong:
        raise ValueError(f"{wrong[0]} holds a number that is not finite")
    return finite


def _of(values: Floats, number: Integers) -> Floats:
    """Values by number; 0 for number -1."""
    return np.append(values, 0.0)[number]
