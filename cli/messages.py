"""Messages on stderr, one after another, as text or, for collectors of logs, as lines of JSON.

Where `--json` asks for a result on stdout, an error is an object there, too. Every message is made safe to print here.
On a terminal, its lines break at words, but for those that are to be copied.
"""

import contextlib
import json
import os
import sys
import textwrap
import traceback
import warnings
from collections.abc import Generator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from posbias.core.errors import escaped_json, masked, shown, shown_lines
from posbias.io import clock

LogFormat = Literal["text", "json"]
Level = Literal["info", "warning", "error"]

_OPENINGS: dict[Level, str] = {"info": "", "warning": "warning: ", "error": "posbias: error: "}
_COLOURS: dict[Level, int] = {"warning": 33, "error": 31}
_TO_COPY = ("Try: ", "Usage: ", "next: ")
_USUAL_WIDTH, _LEAST_WIDTH = 80, 20
_STDERR = 2


@dataclass
class _Form:
    """How this process speaks.

    Attributes:
        of_messages: text, or lines of JSON.
        errors_on_stdout: whether errors go there, too.
    """

    of_messages: LogFormat = "text"
    errors_on_stdout: bool = False


_form = _Form()


def speak(of_messages: LogFormat, *, errors_on_stdout: bool) -> None:
    """Say in which form messages are printed from now on, and whether an error is also an object on stdout."""
    _form.of_messages, _form.errors_on_stdout = of_messages, errors_on_stdout


def is_plain() -> bool:
    """Whether messages alone are printed, as lines of JSON or to a caller in this process, and nothing between them."""
    return is_json() or _captured.get() is not None


def is_json() -> bool:
    """Whether messages are lines of JSON."""
    return _form.of_messages == "json"


@dataclass
class Captured:
    """What a command would print, for a caller in this process."""

    warnings: list[str] = field(default_factory=list[str])
    content: object = None  # of --json, on stdout


_captured: ContextVar[Captured | None] = ContextVar("captured", default=None)


@contextlib.contextmanager
def captured() -> Generator[Captured]:
    """Print nothing for as long as the block runs, and keep what matters."""
    kept = Captured()
    before = _captured.set(kept)
    try:
        yield kept
    finally:
        _captured.reset(before)


def capture_content(content: object) -> bool:
    """Keep content that would go to stdout; return whether there is a caller who takes it."""
    kept = _captured.get()
    if kept is not None:
        kept.content = content
    return kept is not None


def tell(*lines: str, level: Level = "info") -> None:
    """Print a message, unless stderr is full or gone: a result that stands does not depend on it.

    Args:
        lines: of the message; what else would break a line is printed as an escape.
        level: how much it matters.
    """
    kept = _captured.get()
    if kept is not None:
        kept.warnings += [shown_lines(lines)] if level == "warning" else []
        return
    text = _formatted(lines, level, _OPENINGS[level])
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")


def warn(*lines: str) -> None:
    """Print a warning."""
    tell(*lines, level="warning")


def complain(*lines: str) -> None:
    """Print an error."""
    tell(*lines, level="error")


def fail(*lines: str, kind: str, exit_code: int) -> None:
    """Print why the command ends without a result.

    Args:
        lines: what went wrong, where, and what to do.
        kind: the class of the error.
        exit_code: with which the process ends.
    """
    complain(*lines)
    if _form.errors_on_stdout:
        error = {"message": masked("\n".join(lines)), "kind": kind, "exit_code": exit_code}
        with contextlib.suppress(OSError):
            sys.stdout.write(_json({"error": error}) + "\n")


def stopped(message: str) -> str:
    """The message when a signal ends the process, on a line of its own, after what the key left."""
    return _formatted([message], "error", "") if is_json() else f"\nposbias: {shown(message)}"


def fail_by_a_fault(exit_code: int) -> None:
    """Print the exception that is being handled: nobody foresaw it."""
    parts = traceback.format_exception(*sys.exc_info())  # frames, which are indented, and what errors say
    lines = [line for part in parts for line in (part.splitlines() if part.startswith(" ") else [part.strip()])]
    tell(*lines, level="error" if is_json() else "info")
    about = "this is a bug in posbias, not a problem with your data. Please report it with the lines above."
    fail(about, kind="Fault", exit_code=exit_code)


def escape_warnings() -> None:
    """Have Python print the warnings of libraries as everything else is printed."""
    as_before = warnings.formatwarning

    def formatted(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        lines = as_before(message, category, filename, lineno, line).splitlines()
        return _formatted(lines, "warning", opening="") + "\n"

    warnings.formatwarning = formatted


def _formatted(lines: Sequence[str], level: Level, opening: str) -> str:
    """A message as it is printed."""
    if is_json():
        return _json({"time": clock.now().isoformat(), "level": level, "message": masked("\n".join(lines))})
    text = shown_lines(lines)
    return _on_a_terminal(opening + text, level) if sys.stderr.isatty() else opening + text


def _json(content: object) -> str:
    return escaped_json(json.dumps(content, ensure_ascii=False))


def _on_a_terminal(text: str, level: Level) -> str:
    width = _width()
    lines = [line if line.lstrip().startswith(_TO_COPY) else _wrapped(line, width) for line in text.split("\n")]
    wrapped = "\n".join(lines)
    plain = level not in _COLOURS or os.environ.get("NO_COLOR") or os.environ.get("TERM") in {"dumb", "unknown"}
    return wrapped if plain else f"\x1b[{_COLOURS[level]}m{wrapped}\x1b[0m"


def _wrapped(line: str, width: int) -> str:
    return textwrap.fill(
        line, width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False, drop_whitespace=True
    )


def _width() -> int:
    """The columns of the terminal, by the environment or by the terminal itself."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) >= _LEAST_WIDTH:
        return int(columns)
    try:
        return max(os.get_terminal_size(_STDERR).columns, _LEAST_WIDTH)
    except OSError:
        return _USUAL_WIDTH
