"""What a measure says: lambda, by which a click counts at the rank that a ranking gives its document."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.registry import Plugin


@dataclass(frozen=True)
class Measure(Plugin):
    """A measure.

    Attributes:
        name: in the tables.
        label: in words, without the cutoff.
        reference: where it is defined.
        gain: whether more is better.
        cut: whether only the first K ranks count.
    """

    label: ClassVar[str]
    reference: ClassVar[str]
    gain: ClassVar[bool]
    cut: ClassVar[bool]

    def title(self, depth: int) -> str:
        """In words, e.g. `DCG@10`."""
        return f"{self.label}@{depth}" if self.cut else self.label

    @abstractmethod
    def values(self, rank: Integers, scored: Flags, last: Integers, depth: int) -> Floats:
        """Lambda of documents, each of shape (N,).

        Args:
            rank: among the candidates, from 1.
            scored: whether the ranking holds the document; it has a rank only then.
            last: what counts as the last rank there.
            depth: K.
        """
        ...
