"""Gradient-boosted trees for custom losses: LightGBM grows the trees on gradients and Hessians of the caller.

    F_0 = s,  F_m = F_{m-1} + rate * tree_m,  tree_m the second-order fit to g = dL/dF and h = d2L/dF2 at F_{m-1}

LightGBM's model file of a custom loss lacks the start s and the objective. `BoostedTrees.model_text` adds the start to
the leaves of the first tree, and names the objective, so that any program that reads the file predicts the same.

`ModelText` edits model files: it scales and joins trees, and fixes the value of a feature. A child is the number of an
inner node, or -1 - the number of a leaf; node i sends a row to the left if its feature is at most the threshold.

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
"""Map scores F to the gradient and the diagonal of the Hessian of the loss, shape (n,) each."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")

_NAMED = 5  # features named in messages
_ROWS_FOR_THREADS = 50_000  # with fewer, synchronising threads takes longer than their work
_CHUNK = 1 << 16  # rows per chunk


@dataclass(frozen=True)
class RowsBy:
    """Rows of features that are read on demand."""

    n_rows: int
    read: Callable[[slice | Integers], Floats]

    def __len__(self) -> int:
        """Number of rows n."""
        return self.n_rows

    def __getitem__(self, rows: slice | Integers, /) -> Floats:
        """Read rows by number, shape (m, F); NaN where missing."""
        return self.read(rows)


Rows = Floats | RowsBy


def select_rows(rows: Rows, numbers: Integers) -> Rows:
    """Select rows by number, shape (n,), without reading them."""
    return RowsBy(len(numbers), lambda index: rows[numbers[index]])


@dataclass(frozen=True)
class TreeOptions:
    """Options of growing trees."""

    trees: int = 100  # at most
    rate: float = 0.1  # learning rate
    leaves: int = 15  # per tree, at most
    leaf_rows: int = 10  # rows per leaf, at least
    row_share: float = 1.0  # sampled anew for each tree
    bins: int = 255  # per feature, at most
    binned_by: int = 200_000  # rows, at most, sampled to determine the bins
    threads: int = 0  # 0: all, or one if there are few rows
    seed: int = 0

    def parameters(self, n_rows: int) -> dict[str, Any]:
        """LightGBM's parameters. The trees do not depend on the number of threads."""
        return {
            "objective": "none",
            "learning_rate": self.rate,
            "num_leaves": self.leaves,
            "min_data_in_leaf": self.leaf_rows,
            "max_bin": self.bins,
            "bagging_fraction": self.row_share,
            "bagging_freq": int(self.row_share < 1),
            "num_threads": self.threads or (1 if n_rows < _ROWS_FOR_THREADS else 0),
            "seed": self.seed % (1 << 31),  # a 32-bit integer in LightGBM
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

    lightgbm.register_logger(SimpleNamespace(info=ignore, warning=ignore))  # posbias writes its own messages
    return lightgbm


@dataclass(frozen=True)
class BinnedRows:
    """Rows of features in LightGBM's bins, one or two bytes per value."""

    dataset: Any  # a LightGBM Dataset
    options: TreeOptions  # with which it was binned, and trees are grown
    n_rows: int

    def subset(self, rows: Integers) -> "BinnedRows":
        """Select rows by ascending number, with the same bins."""
        subset = self.dataset.subset(rows.tolist(), params=self.options.parameters(self.n_rows))
        return replace(self, dataset=subset, n_rows=len(rows))


def bin_rows(rows: Rows, names: Sequence[str], categorical: Sequence[int], options: TreeOptions) -> BinnedRows:
    """Bin rows, a chunk at a time.

    Args:
        rows: shape (n, F).
        names: of the features.
        categorical: numbers of the categorical features.
        options: of binning and of growing trees.

    Raises:
        MissingExtraError: LightGBM is not installed.
        SchemaError: LightGBM rejects the features, or none of them can split the rows.
    """
    lightgbm = import_lightgbm()

    class Batches(lightgbm.Sequence):  # type: ignore[name-defined, misc]
        """Rows as a LightGBM Sequence."""

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
    """Names of features in LightGBM's file: plain names unchanged, others replaced by `f` and their number."""
    plain_names = list[str]()
    for number, name in enumerate(names):
        plain = name if _PLAIN.fullmatch(name) else f"f{number}"
        while plain != name and plain in names:
            plain += "_"
        plain_names.append(plain)
    return plain_names


class BoostedTrees:
    """Boosted trees, grown one at a time."""

    def __init__(
        self,
        rows: BinnedRows,
        start: float,
        validation: Sequence[BinnedRows] = (),
        objective: Mapping[str, Any] | None = None,
    ) -> None:
        """Start without trees.

        Args:
            rows: to learn from.
            start: s, the score of every row before the first tree.
            validation: further sets of rows to score, with the bins of `rows`.
            objective: parameters of an objective of LightGBM, for rows with labels.
        """
        self.start = start
        self.n_trees = 0
        parameters = rows.options.parameters(rows.n_rows) | dict(objective or {})
        self._booster: Any = import_lightgbm().Booster(parameters, rows.dataset)
        for number, further in enumerate(validation):
            self._booster.add_valid(further.dataset, str(number))

    def grow(self, gradients: Gradients | None = None) -> bool:
        """Add a tree, by default on LightGBM's objective; return whether it splits the rows."""

        def at(scores: Floats, _: object) -> tuple[Floats, Floats]:
            return gradients(scores + self.start) if gradients is not None else (scores, scores)

        stopped: bool = self._booster.update(fobj=None if gradients is None else at)
        self.n_trees = int(self._booster.num_trees())
        return not stopped

    def validation_scores(self) -> list[Floats]:
        """The scores of each set of validation rows."""
        return self._scores(self._booster.eval_valid)

    def scores(self) -> Floats:
        """The scores of the rows to learn from."""
        return self._scores(self._booster.eval_train)[0]

    def _scores(self, evaluate: Callable[[Callable[..., object]], object]) -> list[Floats]:
        all_scores: list[Floats] = []

        def metric(scores: Floats, _: object) -> tuple[str, float, bool]:
            all_scores.append(scores + self.start)
            return "", 0.0, True

        evaluate(metric)
        return all_scores

    def gain_and_splits(self, trees: int | None = None) -> tuple[Floats, Integers]:
        """Gain and number of splits of each feature in the first trees, by default all, shape (F,) each."""
        gain: Floats = self._booster.feature_importance("gain", trees)
        splits: Integers = self._booster.feature_importance("split", trees)
        return gain.astype(np.float64), splits.astype(np.int64)

    def model_text(self, trees: int | None = None, objective: str = "regression") -> str:
        """LightGBM's model file, with the start in the first tree.

        Args:
            trees: number of trees; None: all.
            objective: transformation of scores to predictions: `binary sigmoid:1` or `regression` (none).
        """
        text: str = self._booster.model_to_string(num_iteration=trees or self.n_trees)
        booster = import_lightgbm().Booster(model_str=text)
        if booster.num_trees():
            for leaf in range(booster.dump_model(num_iteration=1)["tree_info"][0]["num_leaves"]):
                booster.set_leaf_output(0, leaf, booster.get_leaf_output(0, leaf) + self.start)
        return _with_objective(booster.model_to_string(), objective)


def _with_objective(text: str, objective: str) -> str:
    """Set the objective in a model file."""
    lines = [line for line in text.split("\n") if not line.startswith("objective=")]
    place = next(number for number, line in enumerate(lines) if line.startswith("feature_names="))
    return "\n".join([*lines[:place], f"objective={objective}", *lines[place:]])


def slices_of_size(length: int, size: int = _CHUNK) -> Iterator[slice]:
    """Split 0 .. length - 1 into slices of a size."""
    return (slice(first, min(first + size, length)) for first in range(0, length, size))


_SPLITS = ("split_feature", "split_gain", "threshold", "decision_type")
_INNER = ("internal_value", "internal_weight", "internal_count")
_LEAVES = ("leaf_value", "leaf_weight", "leaf_count")
_TREE, _END = "Tree=", "end of trees"


@dataclass(frozen=True)
class ModelText:
    """A LightGBM model file: the fields of its head, and of each tree, in their order."""

    head: dict[str, str]
    trees: tuple[dict[str, str], ...]

    @classmethod
    def parse(cls, text: str) -> "ModelText":
        """Parse a model file.

        Raises:
            ValueError: the file is truncated.
        """
        body, end, _ = text.partition(f"\n{_END}\n")
        if not end:
            raise ValueError("it ends before its trees do")
        head, *sections = body.split(f"\n{_TREE}")
        trees = (_fields(section.partition("\n")[2]) for section in sections)
        return cls({name: value for name, value in _fields(head).items() if name != "tree_sizes"}, tuple(trees))

    def check(self) -> None:
        """Raise ValueError if the nodes of a tree do not form a tree.

        LightGBM would read outside of its arrays, or loop forever.
        """
        names = ("split_feature", "left_child", "right_child", "leaf_value", "cat_boundaries", "cat_threshold")
        for number, tree in enumerate(self.trees):
            feature, left, right, values, ends, words = (tree.get(name, "").split() for name in names)
            n_leaves, n_sets = (int(tree.get(name, "-1")) for name in ("num_leaves", "num_cat"))
            nodes, children = np.arange(len(left)), np.array([left, right], np.int64)
            not_root = np.setdiff1d(np.arange(-len(left) - 1, len(left)), [0 if left else -1])
            decisions = zip(tree.get("decision_type", "").split(), tree.get("threshold", "").split(), strict=True)
            if (
                not np.array_equal(np.sort(children, axis=None), not_root)
                or ((children >= 0) & (children <= nodes)).any()  # LightGBM numbers children after their parent
                or not n_leaves == len(values) == len(left) + 1
                or not {int(word) for word in feature} <= set(range(self.n_features))
                or any(int(kind) & 1 and not 0 <= float(which) < n_sets for kind, which in decisions)
                or len(ends) != n_sets + bool(n_sets)
                or [0, *sorted(map(int, ends))] != [0, *map(int, ends)]
                or (ends and int(ends[-1]) != len(words))
            ):
                raise ValueError(f"tree {number}: its nodes form no tree")

    def without_last_feature(self, value: float) -> "ModelText":
        """Fix the last feature, which is numeric, at a value, and remove it."""
        last = int(self.head["max_feature_idx"])
        head = self.head | {"max_feature_idx": str(last - 1)}
        for name in ("feature_names", "feature_infos"):
            head[name] = _joined(head[name].split(" ")[:-1])
        return ModelText(head, tuple(_fix_feature(tree, last, value) for tree in self.trees))

    @property
    def n_features(self) -> int:
        """Number of features F."""
        return int(self.head.get("max_feature_idx", "-1")) + 1

    def complete(self) -> str:
        """The file as written by LightGBM, including `tree_sizes`, which other programs may need."""
        written = import_lightgbm().Booster(model_str=self.text()).model_to_string()
        return _with_objective(written, self.head["objective"])

    def text(self) -> str:
        """The file, readable by LightGBM, without `tree_sizes`."""
        lines = [f"{name}={value}" if value else name for name, value in self.head.items()]
        for number, tree in enumerate(self.trees):
            lines += ["", f"{_TREE}{number}", *(f"{name}={value}" for name, value in tree.items()), ""]
        return "\n".join([*lines, "", _END, ""])


def scaled_sum(models: Sequence[ModelText], factors: Sequence[float], constant: float = 0.0) -> ModelText:
    """The model constant + sum of factor * model, over models of the same features."""

    def scaled(tree: dict[str, str], factor: float, constant: float) -> dict[str, str]:
        values = {name: tree[name].split() for name in ("leaf_value", "internal_value") if name in tree}
        return tree | {
            name: _joined(factor * float(word) + constant for word in words) for name, words in values.items()
        }

    trees = [(tree, factor) for model, factor in zip(models, factors, strict=True) for tree in model.trees]
    summed = (scaled(tree, factor, 0.0 if number else constant) for number, (tree, factor) in enumerate(trees))
    return ModelText(models[0].head, tuple(summed))


def _fix_feature(tree: dict[str, str], feature: int, value: float) -> dict[str, str]:
    """Fix a numeric feature of a tree at a value: remove its splits, and the branches that it cannot reach."""
    words = {name: text.split() for name, text in tree.items()}
    left, right = ([int(word) for word in words.get(name, [])] for name in ("left_child", "right_child"))
    successor = {
        node: left[node] if value <= float(words["threshold"][node]) else right[node]
        for node, split in enumerate(words.get("split_feature", []))
        if int(split) == feature
    }

    def skip(node: int) -> int:
        while node in successor:
            node = successor[node]
        return node

    inner, leaves, stack = list[int](), list[int](), [0 if left else -1]
    while stack:
        node = skip(stack.pop())
        if node < 0:
            leaves.append(-1 - node)
        else:
            inner.append(node)
            stack += [right[node], left[node]]
    if not inner:
        kept = {name: tree[name] for name in ("is_linear", "shrinkage") if name in tree}
        return {"num_leaves": "1", "num_cat": "0", "leaf_value": words["leaf_value"][leaves[0]], **kept}
    numbers = {node: number for number, node in enumerate(inner)}
    numbers |= {-1 - leaf: -1 - number for number, leaf in enumerate(leaves)}
    fields = {"num_leaves": str(len(leaves))}
    for names, kept in (((*_SPLITS, *_INNER), inner), (_LEAVES, leaves)):
        fields |= {name: _joined(words[name][number] for number in kept) for name in names if words.get(name)}
    for name, children in (("left_child", left), ("right_child", right)):
        fields[name] = _joined(numbers[skip(children[node])] for node in inner)
    return tree | fields


def _fields(section: str) -> dict[str, str]:
    lines = (line.partition("=") for line in section.splitlines())
    return {name: value for name, _, value in lines if name}


def _joined(words: Iterable[object]) -> str:
    return " ".join(map(str, words))
