"""One command line, killed at each kind of step that changes a directory, and then run to its end.

    python tests/support/killed_steps.py FOLDER LOOK exchange|renames WORDS...

In FOLDER, `posbias WORDS...` is started again and again. Each start kills itself (SIGKILL) before a call that makes,
renames, links or removes something below FOLDER, or makes or empties a file there: the first of a kind that no start
before it was killed at. Of one kind are the same calls on the same names (but for digits), while LOOK holds the same
tables. After each kill, LOOK says what to look at: a directory, of which this prints the names and checksums of the
files, as one line of JSON. The last line is printed after the run that was not killed; its exit code is that of this
script.

`renames` works as on a system that cannot exchange two directories in one step.
"""

import json
import os
import re
import signal
import sys
from hashlib import sha256
from importlib import import_module
from pathlib import Path

from posbias.cli.main import main
from posbias.io.results import renames

_CHANGES = {"os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "posbias.exchange", "posbias.exchanged"}
_TO_CHANGE = os.O_CREAT | os.O_TRUNC


def kill_before(known: set[str], folder: Path, look: Path, tell: int) -> None:
    """Have this process kill itself before a change of a kind that is not known, and tell the kind through a pipe."""

    def on_event(event: str, arguments: tuple[object, ...]) -> None:
        if not (event in _CHANGES or (event == "open" and _changes(arguments))):
            return
        place = str(arguments[0])
        if event != "open" and not place.startswith("/"):
            place = str(folder / place)  # what is removed with its tree is named within a directory that is open
        if place.startswith(str(folder)):
            tables = sorted(path.name for path in look.glob("*.parquet"))
            kind = f"{event} {re.sub('[0-9a-f]{8,}|[0-9]+', '#', place.removeprefix(str(folder)))} {tables}"
            if kind not in known:
                os.write(tell, kind.encode())
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(on_event)


def _changes(arguments: tuple[object, ...]) -> bool:
    flags = arguments[2]
    return isinstance(flags, int) and bool(flags & _TO_CHANGE)


def tell_exchanges(*, offered: bool) -> None:
    """Make an exchange of two directories an event, or have none."""
    real = renames._rename  # type: ignore[reportPrivateUsage]

    def rename(one: Path, other: Path, how: int) -> bool:
        if not offered:
            return False
        sys.audit("posbias.exchange", str(one))
        done = real(one, other, how)
        sys.audit("posbias.exchanged", str(one))
        return done

    renames._rename = rename  # type: ignore[reportPrivateUsage]


def contents(folder: Path) -> dict[str, str]:
    """The files of a directory, each with the checksum of its bytes; none where there is no directory."""
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*"))}


def run(words: list[str], known: set[str], folder: Path, look: Path) -> int:
    """Run the command in a process of its own; return how that ended, as `waitpid` says."""
    told, tell = os.pipe()
    process = os.fork()
    if process == 0:
        os.fsync = os.fstat  # a kill loses nothing that a disk has not got yet
        kill_before(known, folder, look, tell)
        sys.argv = ["posbias", *words]
        main()
    os.close(tell)
    with os.fdopen(told) as kinds:
        known.add(kinds.read())
    return os.waitpid(process, 0)[1]


def kill_at_each_step(folder: Path, look: Path, words: list[str]) -> int:
    """Kill at every kind of step, then run to the end; return the exit code of that."""
    import_module("posbias.cli.work.stores")  # once, and not by each start
    known = set[str]()
    while True:
        ended = run(words, known, folder, look)
        sys.stdout.write(f"{json.dumps(contents(look))}\n")
        sys.stdout.flush()
        if not os.WIFSIGNALED(ended):
            return os.waitstatus_to_exitcode(ended)


if __name__ == "__main__":
    where = Path(sys.argv[1]).resolve()
    os.chdir(where)
    tell_exchanges(offered=sys.argv[3] == "exchange")
    sys.exit(kill_at_each_step(where, where / sys.argv[2], sys.argv[4:]))
