"""Progress of a long job. The command line draws bars; a script sees nothing."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

import polars as pl

RowCounter = Callable[[int], None]
"""Called with the number of rows of every batch that passes, from whatever thread it passes in."""


class Stage(Protocol):
    """One stage of a job that is under way."""

    def advance(self, steps: int = 1) -> None:
        """Report that so many more steps are done."""
        ...

    def say(self, text: str) -> None:
        """Report where the stage stands, in a few words."""
        ...


class Progress(Protocol):
    """A report of the stages of a job."""

    @property
    def is_watched(self) -> bool:
        """Whether anybody watches, so that what costs time only to be reported is worth it."""
        ...

    @contextmanager
    def stage(
        self,
        description: str,
        total: int | None = None,
        *,
        unit: str = "buckets",
        size: int | None = None,
        estimated: bool = False,
    ) -> Generator[Stage]:
        """A stage, for as long as the block runs.

        Args:
            description: what is done.
            total: how many steps it has, None where nobody knows.
            unit: what one step is, in the plural.
            size: bytes that all steps read together, where they read files.
            estimated: whether the total is an estimate.
        """
        ...


class _SilentStage:
    def advance(self, steps: int = 1) -> None:
        pass

    def say(self, text: str) -> None:
        pass


class SilentProgress:
    """Reports nothing."""

    is_watched = False

    @contextmanager
    def stage(
        self,
        description: str,  # noqa: ARG002
        total: int | None = None,  # noqa: ARG002
        *,
        unit: str = "buckets",  # noqa: ARG002
        size: int | None = None,  # noqa: ARG002
        estimated: bool = False,  # noqa: ARG002
    ) -> Generator[Stage]:
        """A stage that nobody watches."""
        yield _SilentStage()


def count_rows(frame: pl.LazyFrame, on_rows: RowCounter | None) -> pl.LazyFrame:
    """The same frame; while it streams, each batch is reported to `on_rows`, where somebody watches."""
    if on_rows is None:
        return frame

    def passed(batch: pl.DataFrame) -> pl.DataFrame:
        on_rows(batch.height)
        return batch

    return frame.map_batches(passed, streamable=True)
