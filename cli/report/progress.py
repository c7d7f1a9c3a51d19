"""Progress bars on a terminal, on stderr; silence everywhere else."""

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from posbias.cli.console import line
from posbias.cli.interrupts import drawn_until_a_signal
from posbias.cli.messages import is_json
from posbias.io.progress import Progress, SilentProgress, Stage

_COUNTS_IN_FULL = 10_000
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_BAR_WIDTH = 14  # so that all fits into 80 columns


class _AmountColumn(ProgressColumn):
    """What is done, of how much, and the bytes that have been read for it; or where the stage says it stands."""

    def render(self, task: Task) -> Text:
        if task.fields["note"]:
            return line(task.fields["note"])
        if task.total is None and not task.completed:
            return Text("")
        is_known = task.total is not None and not task.finished and task.completed <= task.total
        about = "about " if task.fields["estimated"] else ""
        of_total = f" of {about}{_short(task.total)}" if is_known and task.total is not None else ""
        amount = f"{_short(task.completed)}{of_total} {task.fields['unit']}"
        size = task.fields["size"]
        if size and task.total:
            amount += f", {_in_bytes(size, None if task.finished else task.completed / task.total)}"
        return Text(amount)


class _TimeColumn(ProgressColumn):
    """The time left; where nobody knows, or when the stage is done, the time that it took so far."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        left = None if task.finished else task.time_remaining
        if left is not None:
            return Text(f"{timedelta(seconds=int(left))} left", style="progress.remaining")
        return Text(str(timedelta(seconds=int(task.finished_time or task.elapsed or 0))), style="progress.elapsed")


def _short(count: float) -> str:
    """A count in four or five characters: 9,999, 328k, 12.3M."""
    if count < _COUNTS_IN_FULL:
        return f"{count:,.0f}"
    return f"{count / 1e3:.0f}k" if count < 1e6 else f"{count / 1e6:.1f}M"  # noqa: PLR2004 - a million


def _in_bytes(size: int, share: float | None) -> str:
    """Bytes, and how much of them is done, in one unit: 6.1 of 24.4 MB."""
    factor, unit = next((known for known in _UNITS if size >= known[0]), _UNITS[-1])
    done = "" if share is None else f"{min(share, 1) * size / factor:.1f} of "
    return f"{done}{size / factor:.1f} {unit}"


class _BarStage:
    def __init__(self, bars: RichProgress, task: TaskID) -> None:
        self._bars, self._task = bars, task

    def advance(self, steps: int = 1) -> None:
        self._bars.advance(self._task, steps)

    def say(self, text: str) -> None:
        self._bars.update(self._task, note=text)


class _BarProgress:
    is_watched = True

    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars

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
        task = self._bars.add_task(description, total=total, note="", unit=unit, size=size, estimated=estimated)
        yield _BarStage(self._bars, task)
        done = self._bars.tasks[self._bars.task_ids.index(task)].completed or total or 1  # a total may be an estimate
        self._bars.update(task, total=done, completed=done)


@contextmanager
def show_progress(console: Console, *, quiet: bool) -> Generator[Progress]:
    """Where stages are reported for as long as the block runs: bars on a terminal, else nowhere."""
    if quiet or is_json() or not console.is_terminal:
        yield SilentProgress()
        return
    columns = (
        TextColumn("{task.description:<10}", markup=False),
        BarColumn(bar_width=_BAR_WIDTH),
        _AmountColumn(),
        _TimeColumn(),
    )
    # Rich would print what libraries write to the streams meanwhile itself, and act on the escapes in it.
    bars = RichProgress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    with drawn_until_a_signal(partial(setattr, console, "quiet", True)), bars:
        yield _BarProgress(bars)
    console.quiet = False  # what is said of a result that stands is said, signal or not
