"""What a long job tells whoever watches it. The command line draws bars; a script hears nothing."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol


class Stage(Protocol):
    """One stage of a job that is under way."""

    def advance(self, steps: int = 1) -> None:
        """Report that so many more steps are done."""
        ...

    def say(self, text: str) -> None:
        """Report where the stage stands, in a few words."""
        ...


class Progress(Protocol):
    """Where stages are reported."""

    @contextmanager
    def stage(self, description: str, total: int | None = None) -> Generator[Stage]:
        """A stage, for as long as the block runs; `total` steps, or None where nobody knows."""
        ...


class _SilentStage:
    def advance(self, steps: int = 1) -> None:
        pass

    def say(self, text: str) -> None:
        pass


class SilentProgress:
    """Reports nothing."""

    @contextmanager
    def stage(self, description: str, total: int | None = None) -> Generator[Stage]:  # noqa: ARG002
        """A stage that nobody watches."""
        yield _SilentStage()
