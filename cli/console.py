"""What is said on stderr."""

import contextlib

from rich.console import Console, RenderableType

_WIDTH_IN_A_FILE = 120


def stderr_console() -> Console:
    """A console on stderr that prints text as it is: no markup, no emoji, no colours but its own."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDTH_IN_A_FILE
    return console


def say(console: Console, content: str | RenderableType, *, style: str | None = None) -> None:
    """Print, unless stderr is full or gone: a result that stands does not depend on it."""
    with contextlib.suppress(OSError):
        console.print(content, style=style, soft_wrap=isinstance(content, str))


def complain(message: str) -> None:
    """Print an error."""
    say(stderr_console(), f"posbias: error: {message}", style="red")
