"""What a training format says of itself."""

from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

from posbias.core.errors import UsageError
from posbias.core.registry import Plugin
from posbias.core.training.layouts import Layout
from posbias.io.layouts.training_set import TrainingPart, TrainingSet


class TrainingFormat(Plugin):
    """Writes a training set: `write` once per part, in any order and in any process, then `finish` once.

    Attributes:
        needs_features: whether the trainer has nothing to load where there is no feature.
        takes: options that only some formats take, which it must be given.
    """

    needs_features: ClassVar[bool] = True
    takes: ClassVar[tuple[str, ...]] = ()

    def check(self, layout: Layout) -> None:
        """Raise a UsageError if it cannot carry a layout, which says why, and what to use instead."""

    def carries(self, layout: Layout) -> bool:
        """Whether it can carry a layout."""
        try:
            self.check(layout)
        except UsageError:
            return False
        return True

    @abstractmethod
    def write(self, training_set: TrainingSet, part: TrainingPart, folder: Path) -> None:
        """Write one part, chunk by chunk.

        Raises:
            UsageError: a column holds what the format cannot hold.
            SchemaError: the trainer would refuse these rows.
        """

    @abstractmethod
    def finish(self, training_set: TrainingSet, folder: Path) -> None:
        """Join what the parts wrote, and write `load.py`."""
