"""Ctrl-C and SIGTERM at any moment, also during a long query in native code: clean up and exit at once.

Python runs a signal handler only between two bytecodes, and a native query can take minutes. So the signal wakes a
thread, which removes partial output and ends the process with exit code 130 (SIGINT) or 143 (SIGTERM). Once the result
is in place, the process ends with the exit code of the result instead.
"""

import ctypes
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from posbias.cli.messages import stop_message
from posbias.io.places.ownership import LOCK, owned_by_this_process
from posbias.io.results.renames import commit_lock, committed, unfinished_upload

_EXIT_BASE = 128
_STDIN, _STDERR = 0, 2
_GRACE = 5.0  # seconds to report on a finished result after a signal

_REMOVE_AND_END = """
code=$1 message=$2
shift 2
for directory do
  for entry in "$directory"/* "$directory"/.[!.]* "$directory"/..?*; do
    case $entry in "$directory/{lock}") ;; *) rm -rf -- "$entry" ;; esac
  done
  rm -f -- "$directory/{lock}"
  rmdir -- "$directory" 2>/dev/null
done
[ -z "$message" ] || printf '%s\\n' "$message" >&0
exit "$code"
""".replace("{lock}", LOCK)
"""The script that replaces the process; arguments: exit code, message, owned directories. Locks are removed last."""

_exit_codes: list[int] = []
_silencers: list[Callable[[], None]] = []
_SHOW_CURSOR = "\x1b[?25h"


def set_exit_code(exit_code: int) -> None:
    """Set the exit code of a signal that arrives after the result is in place."""
    _exit_codes.append(exit_code)


@contextmanager
def silenced_by_a_signal(silence: Callable[[], None]) -> Generator[None]:
    """While the block runs, which redraws the terminal without a cursor, have a signal call `silence` first."""
    _silencers.append(silence)
    try:
        yield
    finally:
        _silencers.remove(silence)


def install() -> None:
    """Handle SIGINT and SIGTERM in a thread for the life of this process."""
    wake, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _do_nothing)

    def wait(_keep_open: socket.socket) -> None:
        while True:
            for number in wake.recv(16):
                if number in (signal.SIGINT, signal.SIGTERM):
                    stop(number)

    threading.Thread(target=wait, args=(waker,), daemon=True, name="interrupts").start()


def install_over_polars() -> None:
    """Install the SIGINT handler again after Polars has replaced it: its threads would report their end on stderr."""
    if signal.getsignal(signal.SIGINT) is _do_nothing:
        signal.signal(signal.SIGINT, _do_nothing)


def ignore() -> None:
    """Ignore SIGINT and SIGTERM: the process is about to exit with its own code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing: Python writes the wake-up byte only for signals with a Python handler."""


def stop(number: int) -> None:
    """End the process for a signal; if its result is in place, wait `_GRACE` seconds for its own exit first."""
    drawing = list(_silencers)
    for silence in drawing:
        silence()
    with commit_lock:
        if not committed.is_set():
            unfinished, stands = unfinished_upload(), "nothing was written"
            if unfinished is not None:
                stands = f"the upload to {unfinished} is incomplete, has no manifest, and is replaced by the next run"
            message = stop_message(f"stopped by {signal.Signals(number).name}; {stands}.")
            _remove_and_end(_EXIT_BASE + number, f"{_SHOW_CURSOR}{message}" if drawing else message)
    time.sleep(_GRACE)
    _remove_and_end(_exit_codes[-1] if _exit_codes else 0, "")


def _remove_and_end(code: int, message: str) -> NoReturn:
    """Replace the process by a shell that removes the directories it owned, prints the message and exits.

    Replacing the process ends native threads that may be writing at the same time. The shell inherits the locks, so
    that no other run claims a directory while it is being removed. stderr is closed for native threads, and open as
    stdin for the message.
    """
    owned = owned_by_this_process()
    for lock in owned.values():
        if lock is not None:
            os.set_inheritable(lock, True)
    # A second Ctrl-C does not stop the removal: the shell and its children inherit ignored signals. Python's own
    # `signal.signal` works only in the main thread.
    libc_signal = ctypes.CDLL(None).signal
    libc_signal.argtypes, libc_signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    for number in (signal.SIGINT, signal.SIGTERM):
        libc_signal(number, ctypes.c_void_p(int(signal.SIG_IGN)))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(_STDERR if _is_writable(_STDERR) else null, _STDIN)
    os.dup2(null, _STDERR)
    os.execv("/bin/sh", ["sh", "-c", _REMOVE_AND_END, "sh", str(code), message, *map(str, owned)])  # noqa: S606


def _is_writable(descriptor: int) -> bool:
    """Whether a write would not block: false for a full or broken pipe."""
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        return poll.poll(0) == [(descriptor, select.POLLOUT)]
    except (OSError, ValueError, OverflowError):
        return False
