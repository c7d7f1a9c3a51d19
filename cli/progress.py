"""Progress bars on a terminal, on stderr; silence everywhere else."""

from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from posbias.io.progress import Progress, SilentProgress, Stage


class _BarStage:
    def __init__(self, bars: RichProgress, task: TaskID) -> None:
        self._bars, self._task = bars, task

    def advance(self, steps: int = 1) -> None:
        self._bars.advance(self._task, steps)

    def say(self, text: str) -> None:
        self._bars.update(self._task, note=text)


class _BarProgress:
    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars

    @contextmanager
    def stage(self, description: str, total: int | None = None) -> Generator[Stage]:
        task = self._bars.add_task(description, total=total, note="")
        yield _BarStage(self._bars, task)
        done = total if total is not None else 1
        self._bars.update(task, total=done, completed=done)


@contextmanager
def show_progress(console: Console, *, quiet: bool) -> Generator[Progress]:
    """Where stages are reported for as long as the block runs: bars on a terminal, else nowhere."""
    if quiet or not console.is_terminal:
        yield SilentProgress()
        return
    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with RichProgress(*columns, console=console, transient=True) as bars:
        yield _BarProgress(bars)
