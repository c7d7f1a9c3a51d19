"""LightGBM's model file as text: trees joined, scaled, or without a feature that is held at one value.

A tree is a list of inner nodes and a list of leaves. A child is the number of an inner node, or -1 - the number of a
leaf. The split of node i sends a row to the left where its feature is at most the threshold.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from posbias.core.learners.boosting import import_lightgbm, with_objective

_SPLITS = ("split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child")
_INNER = ("internal_value", "internal_weight", "internal_count")
_LEAVES = ("leaf_value", "leaf_weight", "leaf_count")
_TREE, _END = "Tree=", "end of trees"


@dataclass(frozen=True)
class TreeText:
    """A tree.

    Attributes:
        fields: the entries of its section, in their order.
    """

    fields: dict[str, str]

    @classmethod
    def parse(cls, section: str) -> "TreeText":
        """The tree of a section of a file, without its first line."""
        return cls(dict(line.split("=", 1) for line in section.splitlines() if "=" in line))

    def scaled(self, factor: float) -> "TreeText":
        """The tree with values times a factor."""
        values = {name: _joined(factor * float(word) for word in self._words(name)) for name in _values(self.fields)}
        return TreeText(self.fields | values)

    def without(self, feature: int, value: float) -> "TreeText":
        """The tree for rows in which a feature of numbers has one value: its splits are gone, with what lies behind."""
        splits = _Splits.of(self, feature, value)
        root = splits.reached(0) if int(self.fields["num_leaves"]) > 1 else -1
        if root < 0:
            return TreeText(
                {
                    "num_leaves": "1",
                    "num_cat": "0",
                    "leaf_value": self._words("leaf_value")[-1 - root],
                    **{name: self.fields[name] for name in ("is_linear", "shrinkage") if name in self.fields},
                }
            )
        inner, leaves = splits.below(root)
        return self._of(splits, inner, leaves)

    def _of(self, splits: "_Splits", inner: Sequence[int], leaves: Sequence[int]) -> "TreeText":
        """The tree of some of its inner nodes, the root first, and some of its leaves."""
        numbers = {node: number for number, node in enumerate(inner)}
        numbers |= {-1 - leaf: -1 - number for number, leaf in enumerate(leaves)}
        fields = dict(self.fields)
        for names, kept in ((_SPLITS, inner), (_INNER, inner), (_LEAVES, leaves)):
            for name in names:
                if self._words(name):
                    fields[name] = _joined(self._words(name)[number] for number in kept)
        for name, children in (("left_child", splits.left), ("right_child", splits.right)):
            fields[name] = _joined(numbers[splits.reached(children[node])] for node in inner)
        fields["num_leaves"] = str(len(leaves))
        return TreeText(fields)

    def _words(self, name: str) -> list[str]:
        return self.fields.get(name, "").split()

    def text(self, number: int) -> str:
        """Its section."""
        return "\n".join([f"{_TREE}{number}", *(f"{name}={value}" for name, value in self.fields.items()), "", ""])


@dataclass(frozen=True)
class _Splits:
    """The inner nodes of a tree, and where rows go at those that split one feature.

    Attributes:
        left: left child of each.
        right: right child of each.
        onward: the child that rows go on to at those that split the feature.
    """

    left: list[int]
    right: list[int]
    onward: dict[int, int]

    @classmethod
    def of(cls, tree: TreeText, feature: int, value: float) -> "_Splits":
        """The inner nodes of a tree, one feature having a value."""
        features, left, right = (
            [int(word) for word in tree.fields.get(name, "").split()]
            for name in ("split_feature", "left_child", "right_child")
        )
        thresholds = [float(word) for word in tree.fields.get("threshold", "").split()]
        onward = {
            node: left[node] if value <= thresholds[node] else right[node]
            for node, split in enumerate(features)
            if split == feature
        }
        return cls(left, right, onward)

    def reached(self, node: int) -> int:
        """The first node from here on that does not split the feature."""
        while node in self.onward:
            node = self.onward[node]
        return node

    def below(self, root: int) -> tuple[list[int], list[int]]:
        """The inner nodes from a root on, the root first, and the leaves."""
        inner: list[int] = []
        leaves: list[int] = []
        waiting = [root]
        while waiting:
            node = self.reached(waiting.pop())
            if node < 0:
                leaves.append(-1 - node)
            else:
                inner.append(node)
                waiting += [self.right[node], self.left[node]]
        return inner, leaves


@dataclass(frozen=True)
class ModelText:
    """A model file.

    Attributes:
        head: its lines before the trees.
        trees: them.
    """

    head: tuple[str, ...]
    trees: tuple[TreeText, ...]

    @classmethod
    def parse(cls, text: str) -> "ModelText":
        """The model of a file that LightGBM wrote."""
        head, *sections = text.split(_END, 1)[0].split(f"\n{_TREE}")
        lines = [line for line in head.splitlines() if line and not line.startswith("tree_sizes=")]
        return cls(tuple(lines), tuple(TreeText.parse(section) for section in sections))

    def without_last_feature(self, value: float) -> "ModelText":
        """The model of the features before the last, for rows in which that one has a value."""
        last = int(self._entry("max_feature_idx"))
        entries = {"max_feature_idx": str(last - 1)}
        for name in ("feature_names", "feature_infos"):
            entries[name] = _joined(self._entry(name).split(" ")[:-1])
        head = [f"{name}={entries.get(name, said)}" if said else name for name, _, said in _entries(self.head)]
        return replace(self, head=tuple(head), trees=tuple(tree.without(last, value) for tree in self.trees))

    def _entry(self, name: str) -> str:
        return next(said for found, _, said in _entries(self.head) if found == name)

    def complete(self) -> str:
        """The file as LightGBM itself would write it: with the sizes of trees, by which other programs may read it."""
        written = import_lightgbm().Booster(model_str=self.text()).model_to_string()
        return with_objective(written, self._entry("objective"))

    def text(self) -> str:
        """A file that LightGBM reads."""
        trees = "\n".join(tree.text(number) for number, tree in enumerate(self.trees))
        return "\n".join([*self.head, "", trees, _END, ""])


def scaled_sum(models: Sequence[ModelText], factor: float) -> ModelText:
    """The sum of models of the same features, times a factor."""
    trees = [tree.scaled(factor) for model in models for tree in model.trees]
    return ModelText(models[0].head, tuple(trees))


def _entries(lines: Sequence[str]) -> list[tuple[str, str, str]]:
    return [line.partition("=") for line in lines]


def _values(fields: dict[str, str]) -> list[str]:
    return [name for name in ("leaf_value", "internal_value") if name in fields]


def _joined(words: Iterable[object]) -> str:
    return " ".join(map(str, words))
