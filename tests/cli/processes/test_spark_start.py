"""Where Spark cannot start, one clear error says why: no PySpark, no Java, an old one, no master."""

import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from workshop import RunPosbias

from posbias.cli.options.groups import LogOptions
from posbias.cli.work.execution import open_engine
from posbias.core.errors import UsageError
from posbias.io.places.locations import location

Fails = Callable[..., str]


@pytest.fixture
def fails(run_in_process: RunPosbias, tmp_path: Path) -> Fails:
    """Return a function that runs a fit on Spark, which must fail, and returns what it says in one line."""
    log = tmp_path / "log.parquet"
    pl.DataFrame({"query": ["a"], "doc": ["b"], "position": [1], "click": [0]}).write_parquet(log)

    def run(*arguments: str, **environment: str) -> str:
        done = run_in_process("fit", log, "-o", tmp_path / "result", *arguments, **environment, code=2)
        assert list(tmp_path.iterdir()) == [log]
        return " ".join(done.stderr.split())

    return run


def fake_java(home: Path, script: str) -> str:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return str(home)


def test_without_pyspark_the_extra_is_named(fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert "python3 -m pip install 'pyspark[sql]'" in fails("--engine", "spark")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'java version \"1.8.0_402\"' >&2", "is Java 8"),
        ("echo 'openjdk version \"11.0.22\" 2024-01-16' >&2", "is Java 11"),
        ("echo 'No Java runtime present' >&2; exit 1", "does not run: No Java runtime present"),
    ],
)
def test_java_must_be_17_or_later(
    fails: Fails, tmp_path_factory: pytest.TempPathFactory, script: str, said: str
) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    home = fake_java(tmp_path_factory.mktemp("java") / "home", script)
    error = fails("--engine", "spark", JAVA_HOME=home)
    assert said in error
    assert "Java 17" in error or "Install one" in error


def test_java_must_be_there(fails: Fails) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    assert "Java 17 or later, and there is none (JAVA_HOME is /nowhere)" in fails(
        "--engine", "spark", JAVA_HOME="/nowhere"
    )


@pytest.mark.parametrize(
    ("master", "said"),
    [
        ("sparkle", "is not a Spark master"),
        ("local[two]", "is not a Spark master"),
        ("spark://host", "is not host:port"),
        ("spark://127.0.0.1:1", "no Spark master answers there (127.0.0.1:1: Connection refused)"),
    ],
)
def test_the_master_must_be_one_and_answer(
    fails: Fails, tmp_path_factory: pytest.TempPathFactory, master: str, said: str
) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    home = fake_java(tmp_path_factory.mktemp("java") / "home", "echo 'openjdk version \"21\"' >&2")
    assert said in fails("--engine", "spark", "--master", master, JAVA_HOME=home)


def test_a_result_in_an_object_store_needs_a_place_that_all_machines_see() -> None:
    target = location("s3://bucket/result")
    with pytest.raises(UsageError, match="--temp-dir"), open_engine(LogOptions(engine="spark"), target):
        pass
