"""Texts on a terminal: colours, widths, and what may not act on it.

Names, ids and texts of libraries come from outside. All that is printed passes `shown`: what a terminal would act
on is written as an escape, and `***` stands for passwords and keys. Whatever does not pass it is escaped by the console
when it is printed, so that nothing gets around.
"""

import contextlib
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from posbias.core.errors import escaped, masked, shown

_WIDTH_IN_A_FILE = 120


def line(text: str, style: str = "", *, whole: bool = False) -> Text:
    """A line to print, or a cell of a table; Rich's own `Text` drops some control characters without a trace.

    Args:
        text: what it says.
        style: its colour, on a terminal.
        whole: whether it is never broken, for those who copy or search it.
    """
    return Text(shown(text), style, no_wrap=whole or None, overflow="ignore" if whole else None)


class SafeConsole(Console):
    """A console that prints text as it is: no markup, no emoji, no colours but its own, and no control characters."""

    def __init__(self, *, stderr: bool, width_in_a_file: int) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)
        if not self.is_terminal:
            self.width = width_in_a_file

    def render_str(self, text: str, **settings: Any) -> Text:  # noqa: ANN401 - as Rich has it
        """Text from a string, which may be the cell of a table."""
        return super().render_str(escaped(masked(text), keep="\n"), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render what is printed: all of it passes here, and only Rich's own codes for the terminal are not text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escaped(segment.text, keep="\n"), segment.style)


def stderr_console() -> Console:
    """A console on stderr."""
    return SafeConsole(stderr=True, width_in_a_file=_WIDTH_IN_A_FILE)


def say(console: Console, content: RenderableType) -> None:
    """Print a table or the like, unless stderr is full or gone: a result that stands does not depend on it."""
    with contextlib.suppress(OSError):
        console.print(content, crop=False)
