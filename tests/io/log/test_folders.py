"""Directories are read the same way whether they are named or a pattern fits them; nothing in them is passed over."""

import os
from pathlib import Path

import polars as pl
import pytest
from command_results import Run

from posbias.core.errors import LogFormatError, UsageError
from posbias.io.log.sources import find_sources

NAMED = [".", "*", "**", "**/*.csv"]


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with one log, which the process works in."""
    folder = tmp_path / "logs"
    folder.mkdir()
    write(folder / "a.csv")
    monkeypatch.chdir(folder)
    return folder


def write(path: Path) -> None:
    """Write a log that is like no other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"session,query,doc,position,click\n{path.stem},q,d,1,0\n", encoding="utf-8")


def found(name: str) -> dict[str, str | None]:
    """The files behind a name, each with the link through which it was found."""
    return {str(source.path): None if source.link is None else str(source.link) for source in find_sources([name])}


@pytest.mark.parametrize("named", [".", "*", "**/*.csv"])
def test_directories_behind_links_are_read_and_the_link_is_kept(logs: Path, tmp_path: Path, named: str) -> None:
    write(tmp_path / "elsewhere" / "day" / "b.csv")
    (logs / "old").symlink_to(tmp_path / "elsewhere")

    assert found(named) == {"a.csv": None, "old/day/b.csv": "old"}


@pytest.mark.parametrize("named", NAMED)
def test_a_file_that_is_reached_twice_is_refused(logs: Path, named: str) -> None:
    write(logs / "day" / "b.csv")
    (logs / "same").symlink_to("day")

    with pytest.raises(UsageError, match="is named twice"):
        find_sources([named])


@pytest.mark.parametrize("named", NAMED)
@pytest.mark.parametrize("to", [".", "..", "../day"])
def test_a_link_back_to_where_it_is_has_an_end(logs: Path, named: str, to: str) -> None:
    write(logs / "day" / "b.csv")
    (logs / "day" / "loop").symlink_to(to)

    with pytest.raises((LogFormatError, UsageError), match=r"leads back to|named twice|in a circle"):
        find_sources([named])


@pytest.mark.parametrize("named", [".", "*", "**/*"])
@pytest.mark.parametrize("name", ["b.csv", "b.parquet", "2026-01"])
def test_a_link_that_leads_nowhere_is_refused_where_rows_may_be_missing(logs: Path, named: str, name: str) -> None:
    (logs / name).symlink_to("nowhere")

    with pytest.raises(LogFormatError, match=f"{name}: this link is broken"):
        find_sources([named])


@pytest.mark.parametrize("named", [".", "*"])
def test_a_pipe_that_is_called_like_a_log_is_refused(logs: Path, named: str) -> None:
    os.mkfifo(logs / "b.csv")

    with pytest.raises(LogFormatError, match=r"b\.csv: is neither a file nor a directory"):
        find_sources([named])


def test_what_is_not_called_like_a_log_may_lie_there(logs: Path) -> None:
    os.mkfifo(logs / "pipe")
    os.mkfifo(logs / "manifest.json")
    (logs / "notes.md").symlink_to("nowhere")
    (logs / ".hidden").symlink_to("nowhere")
    (logs / "_hidden").symlink_to(".")
    (logs / "day").mkdir()
    os.mkfifo(logs / "day" / "manifest.json")
    write(logs / "day" / "b.csv")

    assert found(".") == {"a.csv": None, "day/b.csv": None}


@pytest.mark.parametrize("named", [".", "*", "*/*", "**", "**/*.csv", "d*/*.csv"])
@pytest.mark.parametrize("deep", [False, True])
def test_a_directory_that_cannot_be_listed_is_named(
    logs: Path, monkeypatch: pytest.MonkeyPatch, named: str, *, deep: bool
) -> None:
    if deep and named in {"*/*", "d*/*.csv"}:
        pytest.skip("the pattern does not go that deep")
    closed = logs / "day" / "closed" if deep else logs / "day"
    write(closed / "b.csv")
    scandir = os.scandir

    def guarded(path: str | Path = ".") -> object:
        if Path(path).resolve() == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr("os.scandir", guarded)
    monkeypatch.setattr("posbias.io.log.sources.scandir", guarded)

    with pytest.raises(LogFormatError, match=r"day.*: cannot be read: Permission denied"):
        find_sources([named])


def test_the_order_of_files_is_that_of_their_names(logs: Path) -> None:
    for name in ("b/c.csv", "b.csv", "b/a.csv", "B.csv", "b-1/x.csv", "b/c/x.csv"):
        write(logs / name)

    assert list(found(".")) == [str(path.relative_to(logs)) for path in sorted(logs.rglob("*.csv"))]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("named", ["logs", "logs/*", "logs/*/*.parquet"])
def test_a_link_that_was_followed_is_said(run_in_process: Run, tmp_path: Path, log: pl.DataFrame, named: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    log.write_parquet(tmp_path / "elsewhere" / "day.parquet")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "old").symlink_to(tmp_path / "elsewhere")

    for command in ("fit", "collect"):
        done = run_in_process(command, named, "-o", command, code=0)
        assert f"logs/old: this link was followed, to {tmp_path / 'elsewhere'}." in done.stderr.replace("\n", "")
