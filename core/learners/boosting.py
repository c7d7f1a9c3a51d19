"""Gradient-boosted trees for losses of our own: LightGBM grows the trees, the caller gives gradients and Hessians.

    F_0 = s,  F_m = F_{m-1} + rate * tree_m,  tree_m the second-order fit to g = dL/dF and h = d2L/dF2 at F_{m-1}

A model of a custom loss lacks its start s and its objective in LightGBM's file. `model_text` adds the start to the
leaves of the first tree and names the objective, so that the file predicts by itself, in any program that reads it.

Source: Friedman 2001; Ke et al. 2017.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.errors import MissingExtraError, SchemaError

Gradients = Callable[[Floats], tuple[Floats, Floats]]
"""From the scores F of the rows to the gradient and the Hessian of the loss at each, shapes (n,)."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")

_NAMED = 5  # features, in messages
_ROWS_FOR_THREADS = 50_000  # with fewer, threads wait for one another longer than they work
_CHUNK = 1 << 16  # rows that are predicted at once


class Rows(Protocol):
    """Rows of features that need not be in memory: a NumPy array is one."""

    def __len__(self) -> int:
        """Number of rows."""
        ...

    def __getitem__(self, wanted: slice | Integers, /) -> Floats:
        """Some rows, shape (n, F); nan where a value is missing."""
        ...


@dataclass(frozen=True)
class TreeOptions:
    """How trees are grown.

    Attributes:
        trees: the most trees.
        rate: the learning rate.
        leaves: the most leaves of a tree.
        leaf_rows: the fewest rows of a leaf.
        bins: the most bins of a feature.
        binned_by: rows at most, drawn at random, whose values say where bins end.
        threads: how many to use; 0: all, where there are rows enough.
        seed: of what is drawn.
    """

    trees: int = 100
    rate: float = 0.1
    leaves: int = 15
    leaf_rows: int = 10
    bins: int = 255
    binned_by: int = 200_000
    threads: int = 0
    seed: int = 0

    def parameters(self, n_rows: int) -> dict[str, Any]:
        """As LightGBM calls them. The same rows give the same trees, whatever the number of threads."""
        return {
            "objective": "none",
            "learning_rate": self.rate,
            "num_leaves": self.leaves,
            "min_data_in_leaf": self.leaf_rows,
            "max_bin": self.bins,
            "num_threads": self.threads or (1 if n_rows < _ROWS_FOR_THREADS else 0),
            "seed": self.seed % (1 << 31),  # LightGBM takes no larger one
            "bin_construct_sample_cnt": self.binned_by,
            "deterministic": True,
            "force_row_wise": True,
            "verbose": -1,
        }


class _Unheard:
    """Takes what LightGBM would print: what a user must know, we say ourselves."""

    def info(self, _: str) -> None:
        """Something happened."""

    def warning(self, _: str) -> None:
        """Something odd happened."""


def import_lightgbm() -> Any:  # noqa: ANN401 - a module, imported late
    """LightGBM.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import lightgbm  # noqa: PLC0415 - only learners need it
    except ImportError as error:
        raise MissingExtraError(
            "this needs LightGBM, which is not installed. Run: python3 -m pip install 'posbias[learn]'"
        ) from error
    lightgbm.register_logger(_Unheard())
    return lightgbm


@dataclass(frozen=True)
class BinnedRows:
    """Rows of features as LightGBM keeps them: one byte or two a value.

    Attributes:
        dataset: LightGBM's.
        options: how trees are grown on them.
        n_rows: number of rows.
    """

    dataset: Any
    options: TreeOptions
    n_rows: int

    @property
    def parameters(self) -> dict[str, Any]:
        """How trees are grown on them, as LightGBM calls it."""
        return self.options.parameters(self.n_rows)

    def subset(self, rows: Integers) -> "BinnedRows":
        """Some rows, in ascending order, with the same bins."""
        subset = self.dataset.subset(rows.tolist(), params=self.parameters)
        return replace(self, dataset=subset, n_rows=len(rows))

    def graded(self, grades: Integers, query: Integers) -> "BinnedRows":
        """The same, with the grade of each row and groups of rows that are ranked together, by ascending numbers."""
        dataset = self.dataset.construct()
        dataset.set_label(grades.astype(np.float64))
        dataset.set_group(np.unique(query, return_counts=True)[1])
        return self


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
        """What LightGBM reads rows from."""

        batch_size = _CHUNK

        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, wanted: int | slice | list[int]) -> Floats:
            if isinstance(wanted, slice):
                return rows[wanted]
            found = rows[np.atleast_1d(np.asarray(wanted, np.int64))]
            return found if isinstance(wanted, list) else found[0]

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
        raise SchemaError(
            f"none of the features {_in_words(names)} splits the {len(rows):,} rows into leaves of "
            f"{options.leaf_rows} or more. Name features that differ between rows, or allow smaller leaves."
        )
    return BinnedRows(dataset, options, len(rows))


def _in_words(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")


def model_names(names: Sequence[str]) -> list[str]:
    """The names of features in LightGBM's file, which takes plain ones only; others stand there by their number."""
    return [name if _PLAIN.fullmatch(name) else f"f{number}" for number, name in enumerate(names)]


class BoostedTrees:
    """Trees that grow one at a time, on gradients that the caller gives.

    Attributes:
        start: s, the score of every row before the first tree.
        n_trees: how many there are.
    """

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
            start: the score to start with.
            apart: further rows to follow, with the bins of `rows`.
            objective: one of LightGBM's own, with its parameters, for rows that have its labels.
        """
        lightgbm = import_lightgbm()
        self.start = start
        self.n_trees = 0
        self._booster: Any = lightgbm.Booster(rows.parameters | dict(objective or {}), rows.dataset)
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
        found: list[Floats] = []

        def keep(scores: Floats, _: object) -> tuple[str, float, bool]:
            found.append(scores + self.start)
            return "", 0.0, True

        self._booster.eval_valid(keep)
        return found

    def scores(self) -> Floats:
        """The scores of the rows to learn from."""
        found: list[Floats] = []

        def keep(scores: Floats, _: object) -> tuple[str, float, bool]:
            found.append(scores + self.start)
            return "", 0.0, True

        self._booster.eval_train(keep)
        return found[0]

    def gain_and_splits(self, trees: int | None = None) -> tuple[Floats, Integers]:
        """How much each feature has lowered the loss in the first trees, and in how many splits, shapes (F,)."""
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
        return with_objective(whole.model_to_string(), objective)


def with_objective(text: str, objective: str) -> str:
    """A model file that names its objective; one of a custom loss has none."""
    lines = text.split("\n")
    lines = [line for line in lines if not line.startswith("objective=")]
    place = next(number for number, line in enumerate(lines) if line.startswith("feature_names="))
    return "\n".join([*lines[:place], f"objective={objective}", *lines[place:]])


def runs(length: int, size: int = _CHUNK) -> Iterator[slice]:
    """Runs of rows that are worked on at once."""
    return (slice(first, min(first + size, length)) for first in range(0, length, size))
