"""Output on stdout and stderr: the streams themselves, and messages.

**Streams** may be closed, full or without a reader: neither a result nor an exit code depends on that. Writing never
raises, neither here nor when Python flushes its streams at exit; `write_error` reports afterwards whether output was
lost.

**Messages** go to stderr, one after another, as text or, for log collectors, as lines of JSON. With `--json`, an error
is also a JSON object on stdout. Every message is escaped and masked here. On a terminal, lines wrap at words, except
commands to be copied.
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


class _LossyFile(io.FileIO):
    """A file whose writes never raise; `lost` is the first error."""

    lost: OSError | None = None

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write, or drop the data and record the error; return the number of bytes accepted."""
        length = memoryview(data).nbytes
        try:
            written = super().write(data)
        except OSError as error:
            self.lost = self.lost or error
            return length
        if written is None:  # a full non-blocking pipe
            self.lost = self.lost or BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return length if written is None else written


def install_streams() -> None:
    """Replace `sys.stdout` and `sys.stderr` by streams whose writes never raise.

    The descriptors 0 to 2 that are closed are opened read-only on /dev/null: otherwise the next file opened would get
    such a number, and output would be written into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDONLY)) <= _STDERR:
        pass
    os.close(descriptor)

    def lossy(stream: TextIO | None, number: int) -> TextIO:
        encoding = "utf-8" if stream is None else stream.encoding
        by_line = number == _STDERR or os.isatty(number)
        file = io.BufferedWriter(_LossyFile(number, "w", closefd=False))
        return io.TextIOWrapper(file, encoding, errors="backslashreplace", line_buffering=by_line)

    sys.stdout, sys.stderr = lossy(sys.stdout, _STDOUT), lossy(sys.stderr, _STDERR)


def write_error(stream: TextIO) -> str | None:
    """Return why output to a stream was lost; None if all was written, or the reader closed its pipe."""
    stream.flush()
    file = getattr(getattr(stream, "buffer", None), "raw", None)
    if not isinstance(file, _LossyFile) or file.lost is None or file.lost.errno == errno.EPIPE:
        return None  # `| head` closes the pipe after its last line
    return "it is closed" if file.lost.errno == errno.EBADF else os.strerror(file.lost.errno or errno.EIO)


_JEMALLOC_VARIABLE, _JEMALLOC_CONF = "_RJEM_MALLOC_CONF", "dirty_decay_ms:1000,muzzy_decay_ms:1000"  # of Polars
_MALLOPT = {  # parameters of mallopt(3)
    -1: 128 << 20,  # M_TRIM_THRESHOLD: free bytes retained at the end of the heap
    -3: 32 << 20,  # M_MMAP_THRESHOLD: arrays of this many bytes are returned to the system when freed
    -8: 2,  # M_ARENA_MAX: heaps, each of which retains its free memory
}


def keep_freed_memory() -> None:
    """Have glibc and jemalloc retain freed memory for a while. To be called before NumPy and Polars are loaded."""
    os.environ.setdefault(_JEMALLOC_VARIABLE, _JEMALLOC_CONF)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in _MALLOPT.items():
            mallopt(parameter, value)


# --- messages ---

LogFormat = Literal["text", "json"]
Level = Literal["info", "warning", "error"]

_PREFIXES: dict[Level, str] = {"info": "", "warning": "warning: ", "error": "posbias: error: "}
_COLOURS: dict[Level, int] = {"warning": 33, "error": 31}
_UNWRAPPED = ("Try: ", "Usage: ", "next: ")  # beginnings of lines to be copied
_DEFAULT_WIDTH, _MIN_WIDTH = 80, 20


_as_json = {"messages": False, "errors": False}
"""Whether messages are lines of JSON, and whether an error is also an object on stdout."""


def set_format(log_format: LogFormat, *, errors_on_stdout: bool) -> None:
    """Set the format of messages, and whether an error is also a JSON object on stdout."""
    _as_json.update(messages=log_format == "json", errors=errors_on_stdout)


def is_json() -> bool:
    """Whether messages are lines of JSON."""
    return _as_json["messages"]


def is_plain() -> bool:
    """Whether only messages are printed, without tables: as lines of JSON, or captured by a caller in this process."""
    return is_json() or _capture.get() is not None


@dataclass
class Output:
    """Output of a command, for a caller in this process."""

    warnings: list[str] = field(default_factory=list[str])
    content: object = None  # of --json, on stdout


_capture: ContextVar[Output | None] = ContextVar("capture", default=None)


@contextlib.contextmanager
def capture_output() -> Generator[Output]:
    """Collect warnings and JSON content while the block runs, and print nothing."""
    output = Output()
    token = _capture.set(output)
    try:
        yield output
    finally:
        _capture.reset(token)


def capture_content(content: object) -> bool:
    """Hand JSON content to the caller who captures output; return whether there is one."""
    output = _capture.get()
    if output is not None:
        output.content = content
    return output is not None


def print_message(*lines: str, level: Level = "info") -> None:
    """Print a message on stderr, or drop it if stderr cannot be written.

    Args:
        lines: of the message; line breaks and control characters within a line are escaped.
        level: warnings and errors have a prefix and, on a terminal, a colour.
    """
    output = _capture.get()
    if output is not None:
        output.warnings += [printable_lines(lines)] if level == "warning" else []
        return
    text = _format(lines, level, _PREFIXES[level])
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")


def print_failure(*lines: str, kind: str, exit_code: int) -> None:
    """Print why the command ends without a result.

    Args:
        lines: problem, place, and advice.
        kind: the class of the error.
        exit_code: of the process.
    """
    print_message(*lines, level="error")
    if _as_json["errors"]:
        error = {"message": mask_secrets("\n".join(lines)), "kind": kind, "exit_code": exit_code}
        with contextlib.suppress(OSError):
            sys.stdout.write(_json({"error": error}) + "\n")


def stop_message(message: str) -> str:
    """Format the message for a process ended by a signal; text starts on a new line, after the terminal's `^C`."""
    return _format([message], "error", "") if is_json() else f"\nposbias: {printable(message)}"


def print_bug(exit_code: int) -> None:
    """Print the traceback of the unexpected exception being handled, and a request to report it."""
    parts = traceback.format_exception(*sys.exc_info())  # indented frames, and messages of errors
    lines = [line for part in parts for line in (part.splitlines() if part.startswith(" ") else [part.strip()])]
    print_message(*lines, level="error" if is_json() else "info")
    about = "this is a bug in posbias, not a problem with your data. Please report it with the lines above."
    print_failure(about, kind="Fault", exit_code=exit_code)


def escape_warnings() -> None:
    """Have Python format warnings of libraries like other messages: escaped, masked, or as lines of JSON."""
    python_format = warnings.formatwarning

    def formatwarning(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        return _format(python_format(message, category, filename, lineno, line).splitlines(), "warning", "") + "\n"

    warnings.formatwarning = formatwarning


def _format(lines: Sequence[str], level: Level, prefix: str) -> str:
    if is_json():
        return _json({"time": clock.now().isoformat(), "level": level, "message": mask_secrets("\n".join(lines))})
    text = prefix + printable_lines(lines)
    if not sys.stderr.isatty():
        return text
    width = _terminal_width()
    wrapped = "\n".join(
        line
        if line.lstrip().startswith(_UNWRAPPED)
        else textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False)
        for line in text.split("\n")
    )
    plain = level not in _COLOURS or os.environ.get("NO_COLOR") or os.environ.get("TERM") in {"dumb", "unknown"}
    return wrapped if plain else f"\x1b[{_COLOURS[level]}m{wrapped}\x1b[0m"


def _json(content: object) -> str:
    return escape_unseen_in_json(json.dumps(content, ensure_ascii=False))


def _terminal_width() -> int:
    """Return the columns of the terminal: from COLUMNS, else from the terminal itself."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) >= _MIN_WIDTH:
        return int(columns)
    try:
        return max(os.get_terminal_size(_STDERR).columns, _MIN_WIDTH)
    except OSError:
        return _DEFAULT_WIDTH
