"""Gradient-boosted trees for losses of our own: LightGBM grows the trees, the caller gives gradients and Hessians.

    F_0 = s,  F_m = F_{m-1} + rate * tree_m,  tree_m the second-order fit to g = dL/dF and h = d2L/dF2 at F_{m-1}

A model of a custom loss lacks its start s and its objective in LightGBM's file. `ModelText` adds the start to the
leaves of the first tree and names the objective, so that the file predicts by itself, in any program that reads it.

Such a file is text, whose trees are joined, scaled, or without a feature that is held at one value. A child is the
number of an inner node, or -1 - the number of a leaf; node i sends a row to the left where its feature is at most the
threshold.

Source: Friedman 2001; Ke et al. 2017.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.errors import MissingExtraError, SchemaError

Gradients = Callable[[Floats], tuple[Floats, Floats]]
"""Maps the scores F of the rows to the gradient and the Hessian of the loss at each, shapes (n,)."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")

_NAMED = 5  # features, in messages
_ROWS_FOR_THREADS = 50_000  # with fewer, threads wait for one another longer than they work
_CHUNK = 1 << 16  # rows that are predicted at once


@dataclass(frozen=True)
class RowsBy:
    """Rows of features that a function reads by their numbers, so that they need not be in memory."""

    n_rows: int
    read: Callable[[slice | Integers], Floats]

    def __len__(self) -> int:
        """Number of rows n."""
        return self.n_rows

    def __getitem__(self, rows: slice | Integers, /) -> Floats:
        """Rows by number, shape (m, F); nan where a value is missing."""
        return self.read(rows)


Rows = Floats | RowsBy


def some_rows(rows: Rows, kept: Integers) -> Rows:
    """A selection of rows, by their numbers, shape (n,)."""
    return RowsBy(len(kept), lambda some: rows[kept[some]])


@dataclass(frozen=True)
class TreeOptions:
    """Options of growing trees."""

    trees: int = 100  # at most
    rate: float = 0.1  # of learning
    leaves: int = 15  # of a tree, at most
    leaf_rows: int = 10  # at least
    row_share: float = 1.0  # of the rows, drawn anew for each tree
    bins: int = 255  # of a feature, at most
    binned_by: int = 200_000  # rows at most, drawn at random, whose values say where bins end
    threads: int = 0  # 0: all, where there are rows enough
    seed: int = 0

    def parameters(self, n_rows: int) -> dict[str, Any]:
        """LightGBM's parameters. The same rows give the same trees, whatever the number of threads."""
        return {
            "objective": "none",
            "learning_rate": self.rate,
            "num_leaves": self.leaves,
            "min_data_in_leaf": self.leaf_rows,
            "max_bin": self.bins,
            "bagging_fraction": self.row_share,
            "bagging_freq": int(self.row_share < 1),
            "num_threads": self.threads or (1 if n_rows < _ROWS_FOR_THREADS else 0),
            "seed": self.seed % (1 << 31),  # LightGBM takes no larger one
            "bin_construct_sample_cnt": self.binned_by,
            "deterministic": True,
            "force_row_wise": True,
            "verbose": -1,
        }


def import_lightgbm() -> Any:  # noqa: ANN401 - a module, imported late
    """Import LightGBM.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import lightgbm  # noqa: PLC0415 - only learners need it
    except ImportError as error:
        raise MissingExtraError.of("a ranker of trees", "lightgbm") from error

    def ignore(_: str) -> None: ...

    lightgbm.register_logger(SimpleNamespace(info=ignore, warning=ignore))  # what a user must know, we say ourselves
    return lightgbm


@dataclass(frozen=True)
class BinnedRows:
    """Rows of features as LightGBM keeps them, one byte or two a value, and how trees are grown on them."""

    dataset: Any
    options: TreeOptions
    n_rows: int

    def subset(self, rows: Integers) -> "BinnedRows":
        """Rows by ascending number, with the same bins."""
        subset = self.dataset.subset(rows.tolist(), params=self.options.parameters(self.n_rows))
        return replace(self, dataset=subset, n_rows=len(rows))


def bin_rows(rows: Rows, names: Sequence[str], categorical: Sequence[int], options: TreeOptions) -> BinnedRows:
    """Bin rows, a run of them at a time.

    Args:
        rows: them, shape (n, F).
        names: of the features.
        categorical: which features are numbers of categories.
        options: how trees will be grown.

    Raises:
        MissingExtraError: LightGBM is not installed.
        SchemaError: LightGBM does not take the features.
    """
    lightgbm = import_lightgbm()

    class Batches(lightgbm.Sequence):  # type: ignore[name-defined, misc]
        """Rows in the form that LightGBM reads."""

        batch_size = _CHUNK

        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: int | slice | list[int]) -> Floats:
            if isinstance(index, slice):
                return rows[index]
            chosen = rows[np.atleast_1d(np.asarray(index, np.int64))]
            return chosen if isinstance(index, list) else chosen[0]

    dataset = lightgbm.Dataset(
        Batches(),
        label=np.zeros(len(rows)),
        feature_name=model_names(names),
        categorical_feature=list(categorical),
        params=options.parameters(len(rows)),
        free_raw_data=True,
    )
    try:
        dataset.construct()
    except lightgbm.basic.LightGBMError as error:
        raise SchemaError(f"LightGBM does not take these features: {error}") from error
    if not any(dataset.feature_num_bin(number) > 1 for number in range(len(names))):
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        raise SchemaError(
            f"none of the features {', '.join(names[:_NAMED])}{more} splits the {len(rows):,} rows into leaves of "
            f"{options.leaf_rows} or more. Name features that differ between rows, or allow smaller leaves."
        )
    return BinnedRows(dataset, options, len(rows))


def model_names(names: Sequence[str]) -> list[str]:
    """Names of features in LightGBM's file, which takes plain ones only; others stand there by number."""
    chosen = list[str]()
    for number, name in enumerate(names):
        plain = name if _PLAIN.fullmatch(name) else f"f{number}"
        while plain != name and plain in names:
            plain += "_"
        chosen.append(plain)
    return chosen


class BoostedTrees:
    """Trees that grow one at a time, on gradients that the caller gives."""

    def __init__(
        self,
        rows: BinnedRows,
        start: float,
        apart: Sequence[BinnedRows] = (),
        objective: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin without a tree.

        Args:
            rows: to learn from.
            start: s, the score of every row before the first tree.
            apart: further rows to follow, with the bins of `rows`.
            objective: one of LightGBM's own, with its parameters, for rows that have its labels.
        """
        self.start = start
        self.n_trees = 0
        parameters = rows.options.parameters(rows.n_rows) | dict(objective or {})
        self._booster: Any = import_lightgbm().Booster(parameters, rows.dataset)
        for number, more in enumerate(apart):
            self._booster.add_valid(more.dataset, str(number))

    def grow(self, gradients: Gradients | None = None) -> bool:
        """Add a tree, on LightGBM's own objective without gradients; return whether one splits the rows."""

        def at(scores: Floats, _: object) -> tuple[Floats, Floats]:
            return gradients(scores + self.start) if gradients is not None else (scores, scores)

        stopped: bool = self._booster.update(fobj=None if gradients is None else at)
        self.n_trees = int(self._booster.num_trees())
        return not stopped

    def scores_apart(self) -> list[Floats]:
        """The scores of each set of further rows."""
        return self._evaluated(self._booster.eval_valid)

    def scores(self) -> Floats:
        """The scores of the rows to learn from."""
        return self._evaluated(self._booster.eval_train)[0]

    def _evaluated(self, evaluate: Callable[[Callable[..., object]], object]) -> list[Floats]:
        evaluated: list[Floats] = []

        def keep(scores: Floats, _: object) -> tuple[str, float, bool]:
            evaluated.append(scores + self.start)
            return "", 0.0, True

        evaluate(keep)
        return evaluated

    def gain_and_splits(self, trees: int | None = None) -> tuple[Floats, Integers]:
        """Gain and number of splits of each feature in the first trees, shapes (F,)."""
        gain: Floats = self._booster.feature_importance("gain", trees)
        splits: Integers = self._booster.feature_importance("split", trees)
        return gain.astype(np.float64), splits.astype(np.int64)

    def model_text(self, trees: int | None = None, objective: str = "regression") -> str:
        """LightGBM's model file, with the start in the first tree.

        Args:
            trees: how many of them; all if None.
            objective: what turns scores into predictions: `binary sigmoid:1` or `regression` (the score itself).
        """
        text: str = self._booster.model_to_string(num_iteration=trees or self.n_trees)
        whole = import_lightgbm().Booster(model_str=text)
        if whole.num_trees():
            for leaf in range(whole.dump_model(num_iteration=1)["tree_info"][0]["num_leaves"]):
                whole.set_leaf_output(0, leaf, whole.get_leaf_output(0, leaf) + self.start)
        return _with_objective(whole.model_to_string(), objective)


def _with_objective(text: str, objective: str) -> str:
    """A model file that names its objective; one of a custom loss has none."""
    lines = [line for line in text.split("\n") if not line.startswith("objective=")]
    place = next(number for number, line in enumerate(lines) if line.startswith("feature_names="))
    return "\n".join([*lines[:place], f"objective={objective}", *lines[place:]])


def runs(length: int, size: int = _CHUNK) -> Iterator[slice]:
    """Runs of rows that are worked on at once."""
    return (slice(first, min(first + size, length)) for first in range(0, length, size))


_SPLITS = ("split_feature", "split_gain", "threshold", "decision_type")
_INNER = ("internal_value", "internal_weight", "internal_count")
_LEAVES = ("leaf_value", "leaf_weight", "leaf_count")
_TREE, _END = "Tree=", "end of trees"


@dataclass(frozen=True)
class ModelText:
    """A model file that LightGBM wrote: the fields before its trees, and those of each tree, in their order."""

    head: dict[str, str]
    trees: tuple[dict[str, str], ...]

    @classmethod
    def parse(cls, text: str) -> "ModelText":
        """The model of a file.

        Raises:
            ValueError: it is not whole.
        """
        body, end, _ = text.partition(f"\n{_END}\n")
        if not end:
            raise ValueError("it ends before its trees do")
        head, *sections = body.split(f"\n{_TREE}")
        trees = (_fields(section.partition("\n")[2]) for section in sections)
        return cls({name: value for name, value in _fields(head).items() if name != "tree_sizes"}, tuple(trees))

    def check(self) -> None:
        """Raise ValueError where a row could not go from a root to a leaf.

        LightGBM would read what is not there, or go round for ever.
        """
        names = ("split_feature", "left_child", "right_child", "leaf_value", "cat_boundaries", "cat_threshold")
        for number, tree in enumerate(self.trees):
            feature, left, right, values, ends, words = (tree.get(name, "").split() for name in names)
            n_leaves, n_sets = (int(tree.get(name, "-1")) for name in ("num_leaves", "num_cat"))
            nodes, children = np.arange(len(left)), np.array([left, right], np.int64)
            others = np.setdiff1d(np.arange(-len(left) - 1, len(left)), [0 if left else -1])  # all but the root
            decisions = zip(tree.get("decision_type", "").split(), tree.get("threshold", "").split(), strict=True)
            if (
                not np.array_equal(np.sort(children, axis=None), others)
                or ((children >= 0) & (children <= nodes)).any()  # LightGBM numbers a child after its parent
                or not n_leaves == len(values) == len(left) + 1
                or not {int(word) for word in feature} <= set(range(self.n_features))
                or any(int(kind) & 1 and not 0 <= float(which) < n_sets for kind, which in decisions)
                or len(ends) != n_sets + bool(n_sets)
                or [0, *sorted(map(int, ends))] != [0, *map(int, ends)]
                or (ends and int(ends[-1]) != len(words))
            ):
                raise ValueError(f"tree {number}: its nodes form no tree")

    def without_last_feature(self, value: float) -> "ModelText":
        """The model of the features before the last, one of numbers, for rows in which that one has a value."""
        last = int(self.head["max_feature_idx"])
        head = self.head | {"max_feature_idx": str(last - 1)}
        for name in ("feature_names", "feature_infos"):
            head[name] = _joined(head[name].split(" ")[:-1])
        return ModelText(head, tuple(_without(tree, last, value) for tree in self.trees))

    @property
    def n_features(self) -> int:
        """Number of features F that rows have."""
        return int(self.head.get("max_feature_idx", "-1")) + 1

    def complete(self) -> str:
        """The file as LightGBM itself would write it: with the sizes of trees, by which other programs may read it."""
        written = import_lightgbm().Booster(model_str=self.text()).model_to_string()
        return _with_objective(written, self.head["objective"])

    def text(self) -> str:
        """A file that LightGBM reads."""
        lines = [f"{name}={value}" if value else name for name, value in self.head.items()]
        for number, tree in enumerate(self.trees):
            lines += ["", f"{_TREE}{number}", *(f"{name}={value}" for name, value in tree.items()), ""]
        return "\n".join([*lines, "", _END, ""])


def scaled_sum(models: Sequence[ModelText], factors: Sequence[float], constant: float = 0.0) -> ModelText:
    """A constant and the sum of models of the same features, each times a factor."""

    def scaled(tree: dict[str, str], factor: float, more: float) -> dict[str, str]:
        values = {name: tree[name].split() for name in ("leaf_value", "internal_value") if name in tree}
        return tree | {name: _joined(factor * float(word) + more for word in words) for name, words in values.items()}

    trees = [(tree, factor) for model, factor in zip(models, factors, strict=True) for tree in model.trees]
    summed = (scaled(tree, factor, 0.0 if number else constant) for number, (tree, factor) in enumerate(trees))
    return ModelText(models[0].head, tuple(summed))


def _without(tree: dict[str, str], feature: int, value: float) -> dict[str, str]:
    """A tree for rows in which a feature of numbers has one value: its splits are gone, with what lies behind."""
    words = {name: text.split() for name, text in tree.items()}
    left, right = ([int(word) for word in words.get(name, [])] for name in ("left_child", "right_child"))
    onward = {
        node: left[node] if value <= float(words["threshold"][node]) else right[node]
        for node, split in enumerate(words.get("split_feature", []))
        if int(split) == feature
    }

    def reached(node: int) -> int:
        while node in onward:
            node = onward[node]
        return node

    inner, leaves, waiting = list[int](), list[int](), [0 if left else -1]
    while waiting:
        node = reached(waiting.pop())
        if node < 0:
            leaves.append(-1 - node)
        else:
            inner.append(node)
            waiting += [right[node], left[node]]
    if not inner:
        kept = {name: tree[name] for name in ("is_linear", "shrinkage") if name in tree}
        return {"num_leaves": "1", "num_cat": "0", "leaf_value": words["leaf_value"][leaves[0]], **kept}
    numbers = {node: number for number, node in enumerate(inner)}
    numbers |= {-1 - leaf: -1 - number for number, leaf in enumerate(leaves)}
    fields = {"num_leaves": str(len(leaves))}
    for names, kept in (((*_SPLITS, *_INNER), inner), (_LEAVES, leaves)):
        fields |= {name: _joined(words[name][number] for number in kept) for name in names if words.get(name)}
    for name, children in (("left_child", left), ("right_child", right)):
        fields[name] = _joined(numbers[reached(children[node])] for node in inner)
    return tree | fields


def _fields(section: str) -> dict[str, str]:
    lines = (line.partition("=") for line in section.splitlines())
    return {name: value for name, _, value in lines if name}


def _joined(words: Iterable[object]) -> str:
    return " ".join(map(str, words))
