"""Signals are acted on whatever stderr is, and never contradict a result that stands."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from patience import PATIENCE

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"

# Runs posbias on argv[2:] and does argv[1] at the moment that the test is about.
DRIVER = """
import atexit, os, signal, sys, time
from posbias.cli import interrupts
from posbias.cli.report import result
from posbias.io.engines.local import LocalEngine
number, moment, *words = sys.argv[1:]
report, read = result._report, LocalEngine.read

def reading(*values, **named):
    print("reading", flush=True)
    time.sleep(9999)

def reporting(*values):
    os.kill(os.getpid(), int(number))
    time.sleep(9999 if moment == "stuck" else 0.2)
    report(*values)

if moment == "drawing":  # for a while after the signal, bars could be drawn again
    stands = interrupts.unfinished_upload
    interrupts.unfinished_upload = lambda: (time.sleep(1), stands())[1]
if moment in ("reading", "drawing"):
    LocalEngine.read = reading
elif moment == "ending":
    atexit.register(lambda: (os.kill(os.getpid(), int(number)), time.sleep(0.2)))
else:
    result._report = reporting
sys.argv = ["posbias", *words]
from posbias.cli.__main__ import main
main()
"""


@contextmanager
def driven(
    number: signal.Signals, moment: str, log: Path, target: Path, stderr: int | None
) -> Generator[subprocess.Popen[bytes]]:
    """Start a run that a signal meets at some moment; it does not outlive the block."""
    words = [str(int(number)), moment, "run", log, "-o", target, "--temp-dir", target.parent]
    command = [sys.executable, "-c", DRIVER, *map(str, words)]
    if stderr is None:
        command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def unwritable(kind: str) -> Generator[int | None]:
    """A stderr that takes nothing; None for one that is closed."""
    if kind == "closed":
        yield None
        return
    reader, writer = os.pipe()
    if kind == "full device":
        os.close(writer)
        writer = os.open("/dev/full", os.O_WRONLY)
    elif kind == "full pipe":
        fill(writer)
    else:
        os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)
        if kind != "broken pipe":
            os.close(reader)


def fill(pipe: int) -> None:
    """Write until the pipe takes no byte more."""
    os.set_blocking(pipe, False)
    with suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x" * 4096)
    os.set_blocking(pipe, True)


@pytest.mark.parametrize("stderr", ["full device", "full pipe", "broken pipe", "closed"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.slow_after(1)
def test_a_run_ends_on_a_signal_whatever_stderr_is(
    log: Path, tmp_path: Path, number: signal.Signals, stderr: str
) -> None:
    with unwritable(stderr) as opened, driven(number, "reading", log, tmp_path / "out", opened) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"reading\n"
        process.send_signal(number)
        assert process.wait(PATIENCE) == 128 + number
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGINT, "reporting"), (signal.SIGTERM, "reporting"), (signal.SIGTERM, "ending"), (signal.SIGINT, "stuck")],
)
@pytest.mark.slow
def test_a_signal_after_the_result_stands_does_not_say_that_it_does_not(
    log: Path, tmp_path: Path, number: signal.Signals, moment: str
) -> None:
    with driven(number, moment, log, tmp_path / "out", subprocess.PIPE) as process:
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    assert b"nothing was written" not in said
    assert (tmp_path / "out" / "manifest.json").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
def test_a_second_signal_does_not_stop_the_tidying(log: Path, tmp_path: Path) -> None:
    with driven(signal.SIGINT, "reading", log, tmp_path / "out", subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"reading\n"
        for _ in range(20):
            process.send_signal(signal.SIGINT)
            time.sleep(0.002)
        assert process.wait(PATIENCE) == 128 + signal.SIGINT
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.slow
def test_bars_are_not_drawn_again_after_a_signal_and_the_cursor_comes_back(
    log: Path, tmp_path: Path, number: signal.Signals
) -> None:
    ours, theirs = pty.openpty()
    with driven(number, "drawing", log, tmp_path / "out", theirs) as process:
        os.close(theirs)
        assert process.stdout is not None
        assert process.stdout.readline() == b"reading\n"
        before = read_until(ours, "reading")
        process.send_signal(number)
        after = read_until(ours, "nothing was written")
        assert process.wait(PATIENCE) == 128 + number
    os.close(ours)
    assert HIDE_CURSOR in before
    assert after.count("reading") <= 1  # a drawing may be on its way when the signal comes; later there are ten
    assert SHOW_CURSOR in after


def read_until(terminal: int, wanted: str) -> str:
    """What a terminal gets until something has been printed on it."""
    seen = bytearray()
    while wanted not in seen.decode(errors="replace"):
        seen += os.read(terminal, 65536)
    return seen.decode(errors="replace")
