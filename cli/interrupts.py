"""Ctrl-C and SIGTERM in the middle of anything, also of a long query in native code: clean up and end at once.

Python runs a signal handler only between two of its own steps, and a query can take minutes. So the signal wakes a
thread, which removes what is half written and ends the process: 130 after SIGINT, 143 after SIGTERM. Once the result
stands, a signal changes nothing about that: the process ends with the exit code of its result.
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

from posbias.cli.messages import stopped
from posbias.io.places.ownership import LOCK, owned_by_this_process
from posbias.io.results.renames import commit_lock, committed, unfinished_upload

_EXIT_BASE = 128
_STDIN, _STDERR = 0, 2
_TO_FINISH = 5.0  # seconds that a process has to report on its result when a signal wants it to end

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
"""The script that replaces the process, given an exit code, a message, and directories of ours; locks go last."""

_code_of_result: list[int] = []
_silenced_first: list[Callable[[], None]] = []
_SHOW_CURSOR = "\x1b[?25h"


def result_stands(exit_code: int) -> None:
    """Note with which code the process ends once its result is in place."""
    _code_of_result.append(exit_code)


@contextmanager
def drawn_until_a_signal(silence: Callable[[], None]) -> Generator[None]:
    """While the block runs, something is drawn again and again, without a cursor; `silence` ends that at once."""
    _silenced_first.append(silence)
    try:
        yield
    finally:
        _silenced_first.remove(silence)


def install() -> None:
    """Take over SIGINT and SIGTERM for the life of this process."""
    wake, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave_to_the_thread)

    def wait(_keep_open: socket.socket) -> None:
        while True:
            for number in wake.recv(16):
                if number in (signal.SIGINT, signal.SIGTERM):
                    stop(number)

    threading.Thread(target=wait, args=(waker,), daemon=True, name="interrupts").start()


def install_over_polars() -> None:
    """Take SIGINT over again, once Polars is loaded: its threads would report on stderr that they were stopped."""
    if signal.getsignal(signal.SIGINT) is _leave_to_the_thread:
        signal.signal(signal.SIGINT, _leave_to_the_thread)


def ignore() -> None:
    """Let signals change nothing any more: the process is about to end by itself, with a code that says how."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _leave_to_the_thread(number: int, frame: FrameType | None) -> None:
    """Without a Python handler the wake-up byte is not written."""


def stop(number: int) -> None:
    """End the process. If its result already stands, it has a moment to say so first."""
    drawing = list(_silenced_first)
    for silence in drawing:
        silence()
    with commit_lock:
        if not committed.is_set():
            unfinished, stands = unfinished_upload(), "nothing was written"
            if unfinished is not None:
                stands = f"the upload to {unfinished} is incomplete, has no manifest, and is replaced by the next run"
            message = stopped(f"stopped by {signal.Signals(number).name}; {stands}.")
            _remove_and_end(_EXIT_BASE + number, f"{_SHOW_CURSOR}{message}" if drawing else message)
    time.sleep(_TO_FINISH)
    _remove_and_end(_code_of_result[-1] if _code_of_result else 0, "")


def _remove_and_end(code: int, message: str) -> NoReturn:
    """Act first, then speak, where that is possible.

    Native threads may be writing meanwhile. So the process turns into a shell that removes what it owned, which ends
    all of them at once, and nothing is written behind its back. The locks go on to the shell, so that no other run
    takes what is being removed. What a native thread says about its own end is nobody's business: stderr is closed.
    """
    owned = owned_by_this_process()
    for lock in owned.values():
        if lock is not None:
            os.set_inheritable(lock, True)
    # A second Ctrl-C does not stop the tidying: what is ignored stays so in the shell and in what that starts. Python
    # itself lets only its main thread say so.
    of_c = ctypes.CDLL(None).signal
    of_c.argtypes, of_c.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    for number in (signal.SIGINT, signal.SIGTERM):
        of_c(number, ctypes.c_void_p(int(signal.SIG_IGN)))
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(_STDERR if _takes_text(_STDERR) else nowhere, _STDIN)
    os.dup2(nowhere, _STDERR)
    os.execv("/bin/sh", ["sh", "-c", _REMOVE_AND_END, "sh", str(code), message, *map(str, owned)])  # noqa: S606


def _takes_text(descriptor: int) -> bool:
    """Whether a short text can be written there at once: a full or broken pipe must not hold up the end."""
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        return poll.poll(0) == [(descriptor, select.POLLOUT)]
    except (OSError, ValueError, OverflowError):
        return False
