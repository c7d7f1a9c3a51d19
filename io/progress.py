"""Progress of a job: bars on the command line, nothing in scripts."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

import polars as pl

RowCounter = Callable[[int], None]
"""Called with the number of rows of every batch, from any thread."""


class Stage(Protocol):
    """A running stage of a job."""

    def advance(self, steps: int = 1) -> None:
        """Add completed steps."""
        ...

    def say(self, text: str) -> None:
        """Replace the status text."""
        ...


class Progress(Protocol):
    """Display of the stages of a job."""

    @property
    def is_watched(self) -> bool:
        """Whether progress is displayed; else reports that cost time are omitted."""
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
        """Display a stage while the block runs.

        Args:
            description: activity, such as "counting".
            total: number of steps; None if unknown.
            unit: noun of the steps, in the plural.
            size: bytes read over all steps; None if no files are read.
            estimated: whether the total is an estimate.
        """
        ...


class _SilentStage:
    def advance(self, steps: int = 1) -> None:
        pass

    def say(self, text: str) -> None:
        pass


class SilentProgress:
    """Progress that is not displayed."""

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
        """Run the block without a display."""
        yield _SilentStage()


def report_rows(frame: pl.LazyFrame, on_rows: RowCounter | None) -> pl.LazyFrame:
    """Report the height of each batch to `on_rows` while the frame streams; a no-op without `on_rows`."""
    if on_rows is None:
        return frame

    def report(batch: pl.DataFrame) -> pl.DataFrame:
        on_rows(batch.height)
        return batch

    return frame.map_batches(report, streamable=True)
