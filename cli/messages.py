"""What is printed on stdout and stderr: the streams themselves, and messages.

**Streams** may be closed or full, or nobody may read them any more: no result and no exit code hangs on that. What is
printed never fails, neither here nor when Python flushes its streams at the end. Whoever has to know asks afterwards
whether all of it got through.

**Messages** go to stderr, one after another, as text or, for collectors of logs, as lines of JSON. Where `--json` asks
for a result on stdout, an error is an object there, too. Every message is made safe to print here. On a terminal, its
lines break at words, but for those that are to be copied.
"""

import contextlib
import ctypes
import errno
import io
import json
import os
import sys
import textwrap
import traceback
import warnings
from collections.abc import Generator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TextIO

from posbias.core.errors import escape_unseen_in_json, mask_secrets, printable, printable_lines
from posbias.io import clock

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# --- streams ---

_STDOUT, _STDERR = 1, 2


class _PatientFile(io.FileIO):
    """A file that takes all that it is given, and remembers why some of it could not be written."""

    lost: OSError | None = None

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write, or let it be."""
        length = memoryview(data).nbytes
        try:
            written = super().write(data)
        except OSError as error:
            self.lost = self.lost or error
            return length
        if written is None:  # a pipe that is full, and does not wait
            self.lost = self.lost or BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return length if written is None else written


def install_streams() -> None:
    """Let this process write to stdout and stderr as described above.

    A closed stream is given a place on which nothing can be written: else the next file that is opened would take its
    number, and what is printed would go there.
    """
    while (place := os.open(os.devnull, os.O_RDONLY)) <= _STDERR:
        pass
    os.close(place)

    def patient(usual: TextIO | None, number: int) -> TextIO:
        encoding = "utf-8" if usual is None else usual.encoding
        at_once = number == _STDERR or os.isatty(number)
        file = io.BufferedWriter(_PatientFile(number, "w", closefd=False))
        return io.TextIOWrapper(file, encoding, errors="backslashreplace", line_buffering=at_once)

    sys.stdout, sys.stderr = patient(sys.stdout, _STDOUT), patient(sys.stderr, _STDERR)


def why_lost(stream: TextIO) -> str | None:
    """Why some of what was printed on a stream did not get through; None if all did, or the reader had enough."""
    stream.flush()
    file = getattr(getattr(stream, "buffer", None), "raw", None)
    if not isinstance(file, _PatientFile) or file.lost is None or file.lost.errno == errno.EPIPE:
        return None  # `| head` closes the pipe once it has enough
    return "it is closed" if file.lost.errno == errno.EBADF else os.strerror(file.lost.errno or errno.EIO)


_POLARS, _KEPT_FOR = "_RJEM_MALLOC_CONF", "dirty_decay_ms:1000,muzzy_decay_ms:1000"  # jemalloc
_OF_GLIBC = {  # parameters of mallopt(3)
    -1: 128 << 20,  # M_TRIM_THRESHOLD: bytes that stay, free, at the end of the heap
    -3: 32 << 20,  # M_MMAP_THRESHOLD: bytes of an array from which on it goes back to the system at once
    -8: 2,  # M_ARENA_MAX: heaps, each of which keeps what is free in it
}


def keep_freed_memory() -> None:
    """Keep what is freed for a while. NumPy and Polars are loaded afterwards; other allocators stay as they are."""
    os.environ.setdefault(_POLARS, _KEPT_FOR)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in _OF_GLIBC.items():
            mallopt(parameter, value)


# --- messages ---

LogFormat = Literal["text", "json"]
Level = Literal["info", "warning", "error"]

_OPENINGS: dict[Level, str] = {"info": "", "warning": "warning: ", "error": "posbias: error: "}
_COLOURS: dict[Level, int] = {"warning": 33, "error": 31}
_TO_COPY = ("Try: ", "Usage: ", "next: ")
_USUAL_WIDTH, _LEAST_WIDTH = 80, 20


_json_of = {"messages": False, "errors": False}
"""Whether messages are lines of JSON, and whether an error is also an object on stdout."""


def speak(of_messages: LogFormat, *, errors_on_stdout: bool) -> None:
    """Say in which form messages are printed from now on, and whether an error is also an object on stdout."""
    _json_of.update(messages=of_messages == "json", errors=errors_on_stdout)


def is_plain() -> bool:
    """Whether messages alone are printed, as lines of JSON or to a caller in this process, and nothing between them."""
    return is_json() or _captured.get() is not None


def is_json() -> bool:
    """Whether messages are lines of JSON."""
    return _json_of["messages"]


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
        kept.warnings += [printable_lines(lines)] if level == "warning" else []
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
    if _json_of["errors"]:
        error = {"message": mask_secrets("\n".join(lines)), "kind": kind, "exit_code": exit_code}
        with contextlib.suppress(OSError):
            sys.stdout.write(_json({"error": error}) + "\n")


def stopped(message: str) -> str:
    """The message when a signal ends the process, on a line of its own, after what the key left."""
    return _formatted([message], "error", "") if is_json() else f"\nposbias: {printable(message)}"


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
        return _json({"time": clock.now().isoformat(), "level": level, "message": mask_secrets("\n".join(lines))})
    text = opening + printable_lines(lines)
    if not sys.stderr.isatty():
        return text
    width = _width()
    wrapped = "\n".join(
        line
        if line.lstrip().startswith(_TO_COPY)
        else textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False)
        for line in text.split("\n")
    )
    plain = level not in _COLOURS or os.environ.get("NO_COLOR") or os.environ.get("TERM") in {"dumb", "unknown"}
    return wrapped if plain else f"\x1b[{_COLOURS[level]}m{wrapped}\x1b[0m"


def _json(content: object) -> str:
    return escape_unseen_in_json(json.dumps(content, ensure_ascii=False))


def _width() -> int:
    """The columns of the terminal, by the environment or by the terminal itself."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) >= _LEAST_WIDTH:
        return int(columns)
    try:
        return max(os.get_terminal_size(_STDERR).columns, _LEAST_WIDTH)
    except OSError:
        return _USUAL_WIDTH
