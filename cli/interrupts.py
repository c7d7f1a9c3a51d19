"""Ctrl-C and SIGTERM in the middle of anything, also of a long query in native code: clean up and end at once.

Python runs a signal handler only between two of its own steps, and a query can take minutes. So the signal wakes a
thread, which removes what is half written and ends the process: 130 after SIGINT, 143 after SIGTERM.
"""

import os
import signal
import socket
import sys
import threading
from types import FrameType

from posbias.io.atomic import commit_lock, is_committed
from posbias.io.owned import owned_by_this_process
from posbias.io.uploads import unfinished_upload

_EXIT_BASE = 128


def install() -> None:
    """Take over SIGINT and SIGTERM for the life of this process."""
    wake, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave_to_the_thread)
    threading.Thread(target=_wait, args=(wake, waker), daemon=True, name="interrupts").start()


def _leave_to_the_thread(number: int, frame: FrameType | None) -> None:
    """Without a Python handler the wake-up byte is not written."""


def _wait(wake: socket.socket, _keep_open: socket.socket) -> None:
    while True:
        for number in wake.recv(16):
            if number in (signal.SIGINT, signal.SIGTERM):
                stop(number)


def stop(number: int) -> None:
    """End the process, unless its result already stands: then let it finish.

    Native threads may be writing meanwhile. So the process turns into `rm`, which ends all of them at once, and nothing
    is written behind its back. What such a thread says about its own end (an allocator whose helper could no longer
    start) is nobody's business: stderr closes first.
    """
    with commit_lock:
        if is_committed():
            return
        sys.stderr.write(f"\nposbias: stopped by {signal.Signals(number).name}; {_what_stands()}.\n")
        sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        code = _EXIT_BASE + number
        folders = list(map(str, owned_by_this_process()))
        command = f'rm -rf -- "$@"; exit {code}'
        os.execv("/bin/sh", ["sh", "-c", command, "sh", *folders])  # noqa: S606 - a shell is what is started


def _what_stands() -> str:
    unfinished = unfinished_upload()
    if unfinished is None:
        return "nothing was written"
    return f"what was uploaded to {unfinished} is not whole, has no manifest, and is replaced by the next run"
