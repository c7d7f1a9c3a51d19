"""Cases of what cannot work: a workshop in which each writes its input, and what must be true of the refusal.

The command line runs in an empty directory; the result and the temporary files have directories that must stay empty.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import polars as pl
import pytest

RunPosbias = Callable[..., CompletedProcess[str]]
MountTmpfs = Callable[[Path, str], Path]
Row = dict[str, object]

N_SESSIONS, N_POSITIONS = 40, 3
ROW = 5  # the row that is broken, counted from 1 after the header: session 1, position 2


def good_rows() -> list[Row]:
    """Rows of a small log that works: every document of a query stands at every position, and some are clicked."""
    return [
        {
            "session": f"s{session}",
            "query": f"q{session % 2}",
            "doc": f"d{(session // 2 + position) % N_POSITIONS}",
            "position": position,
            "click": int((session * 7 + position * 3) % (position + 2) == 0),
        }
        for session in range(N_SESSIONS)
        for position in range(1, N_POSITIONS + 1)
    ]


def without(*columns: str) -> list[Row]:
    """Rows of the good log that lack columns."""
    return [{key: value for key, value in row.items() if key not in columns} for row in good_rows()]


def csv_text(rows: list[Row]) -> str:
    """Rows as CSV; None is an empty field."""
    lines = [",".join(rows[0])]
    lines += [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Workshop:
    """Where a case makes its input."""

    folder: Path
    output: Path
    run: RunPosbias

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file."""
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def log(self, name: str = "log.csv", rows: list[Row] | None = None) -> Path:
        """Write a log: the good one, or other rows."""
        return self.write(name, csv_text(rows or good_rows()))

    def parquet(self, name: str = "log.parquet", rows: list[Row] | None = None) -> Path:
        """Write a log as Parquet."""
        path = self.folder / name
        pl.DataFrame(rows or good_rows()).write_parquet(path)
        return path

    def log_with(self, column: str, value: object, name: str = "log.csv") -> Path:
        """Write the good log with another value in one row."""
        rows = good_rows()
        rows[ROW - 1][column] = value
        return self.log(name, rows)

    def collected(self, log: Path, name: str, *options: str) -> Path:
        """Collect statistics that are good."""
        path = self.folder / name
        done = self.run("collect", log, "-o", path, *options)
        assert done.returncode == 0, done.stderr
        return path


Make = Callable[[Workshop], list[str | Path]]


def attempt(workshop: Workshop, *arguments: str | Path, **environment: str) -> CompletedProcess[str]:
    """Run a command with the result and the temporary files in the workshop's empty directories."""
    scratch = workshop.folder.parent / "scratch"
    # wide, so that what Typer frames does not break inside a word
    wide = {"COLUMNS": "250"} | environment
    return workshop.run(*arguments, "-o", workshop.output, "--temp-dir", scratch, **wide)


def assert_refused(done: CompletedProcess[str], workshop: Workshop, *says: str) -> None:
    """Exit code 2, one message that says all of `says`, and not a trace on disk."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(re.findall("posbias: error: |─ Error ─", done.stderr)) == 1, done.stderr
    for unwanted in ("Traceback", "panicked", "\x1b["):
        assert unwanted not in done.stderr
    for words in says:
        assert words in done.stderr
    assert left_in(workshop.output.parent) == []
    assert left_in(workshop.folder.parent / "scratch") == []


def refused(done: CompletedProcess[str], *words: str) -> None:
    """Exit code 2, and one line that says why."""
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("posbias: error: ")
    for word in words:
        assert word in line


def left_in(folder: Path) -> list[str]:
    """Everything below a directory, hidden or not."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def case(name: str, make: Make, *says: str) -> object:
    return pytest.param(make, says, id=name)
