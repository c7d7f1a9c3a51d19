"""A training format, and how its `load.py` saves the model."""

from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

from posbias.core.errors import UsageError
from posbias.core.registry import Plugin
from posbias.core.training.layouts import Layout
from posbias.io.layouts.training_set import TrainingPart, TrainingSet

_SAVE = """target = Path(sys.argv[1]) if sys.argv[1:] else HERE.parent.with_name(f"{HERE.parent.name}-model.@SUFFIX@")
if target.exists() and not sys.argv[1:]:
    print(f"{os.path.relpath(target)} is there already and stays: to save this model, name a file for it")
else:
    @CALL@
    print(f"the model is saved as {os.path.relpath(target)}")
"""


def with_saving(script: str, call: str, suffix: str) -> str:
    """A script and its last lines, which save the model beside the result: the manifest would not list it in there.

    A file that is there stays, unless the command line names it.

    Args:
        script: what makes `model`; it imports `os`, `sys` and `Path`, and knows `HERE`.
        call: saves the model as `target`.
        suffix: of the file.
    """
    return script + _SAVE.replace("@CALL@", call).replace("@SUFFIX@", suffix)


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
