"""A file that changes while it is read is an error: nobody could say what was counted."""

import os
from pathlib import Path

import polars as pl
import pytest
from command_results import Run

from posbias.core.errors import LogFormatError
from posbias.io.engines.local import LocalEngine
from posbias.io.log.sources import check_unchanged, find_sources
from posbias.io.training import feature_parts


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n")


def rewrite(path: Path) -> None:
    """Write other bytes of the same number, at the same time."""
    times = path.stat()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[::-1])
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(path)


def touch(path: Path) -> None:
    os.utime(path, ns=(0, 0))


CHANGES = {"append": append, "rewrite": rewrite, "touch": touch, "remove": Path.unlink}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_a_file_is_seen(tmp_path: Path, change: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    sources = find_sources([str(path)])
    check_unchanged(sources)

    CHANGES[change](path)

    with pytest.raises(LogFormatError, match=r"was changed or replaced|is gone"):
        check_unchanged(sources)


@pytest.fixture
def files(tmp_path: Path, log: pl.DataFrame) -> Path:
    """Return a directory with a log, the same with its clicks apart, and features."""
    log.write_parquet(tmp_path / "log.parquet")
    log.drop("click").write_parquet(tmp_path / "shown.parquet")
    log.filter(pl.col("click") == 1).select("session", "doc").write_parquet(tmp_path / "clicks.parquet")
    log.select("doc").unique().with_columns(price=1.5).write_parquet(tmp_path / "prices.parquet")
    return tmp_path


LOG = ("log.parquet",)
APART = ("shown.parquet", "--clicks", "clicks.parquet")


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (("fit", *LOG), "log.parquet"),
        (("run", *LOG), "log.parquet"),
        (("run", *LOG, "--layout", "session"), "log.parquet"),
        (("collect", *LOG), "log.parquet"),
        (("collect", *APART), "shown.parquet"),
        (("collect", *APART), "clicks.parquet"),
    ],
)
def test_a_log_that_is_replaced_while_it_is_read_is_an_error(
    run_in_process: Run, files: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], changed: str
) -> None:
    read = LocalEngine.read

    def replaced_meanwhile(*arguments: object, **options: object) -> object:
        found = read(*arguments, **options)  # type: ignore[arg-type]
        rewrite(files / changed)
        return found

    monkeypatch.setattr(LocalEngine, "read", replaced_meanwhile)
    done = run_in_process(*words, "-o", "out", code=2)

    assert f"{changed}: was changed or replaced while it was read" in done.stderr
    assert not (files / "out").exists()


def test_a_table_of_features_that_is_replaced_while_it_is_read_is_an_error(
    run_in_process: Run, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = feature_parts.route

    def replaced_meanwhile(*arguments: object) -> object:
        found = route(*arguments)  # type: ignore[arg-type]
        rewrite(files / "prices.parquet")
        return found

    monkeypatch.setattr(feature_parts, "route", replaced_meanwhile)
    done = run_in_process("run", *LOG, "--features", "prices.parquet", "-o", "out", code=2)

    assert "prices.parquet: was changed or replaced while it was read" in done.stderr
    assert not (files / "out").exists()
