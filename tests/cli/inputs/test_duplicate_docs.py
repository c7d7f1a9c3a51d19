"""A document twice on a page: refused, or counted as is said, in memory and in buckets."""

import json
from pathlib import Path

import polars as pl
import pytest
from workshop import Workshop, assert_refused, attempt

from posbias.core.simulation.simulate import SimulationOptions, simulate

TWICE = 40
"""Pages on which the document of position 1 also stands at position 3."""


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Return a log of 500 pages of 4 positions, on some of which a document stands twice."""
    shown = simulate(SimulationOptions(n_sessions=500, n_queries=10, docs_per_query=6, n_positions=4, seed=5)).log
    again = (pl.col("session") < TWICE) & (pl.col("position") == 3)
    top = pl.col("doc").filter(pl.col("position") == 1).first().over("session")
    return shown.with_columns(doc=pl.when(again).then(top).otherwise("doc"))


@pytest.fixture
def path(workshop: Workshop, log: pl.DataFrame) -> Path:
    """Return the log as a file, in which sessions lie scattered."""
    file = workshop.folder / "log.parquet"
    log.sample(fraction=1.0, shuffle=True, seed=1).write_parquet(file)
    return file


def reduce_to(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave commands so little memory that they work in buckets, where that is asked for."""

    def tiny(_: str) -> int:
        return 100_000

    if memory == "buckets":
        monkeypatch.setattr("posbias.cli.work.requests.parse_memory", tiny)


def rows_of(workshop: Workshop) -> dict[str, object]:
    """What the manifest says about the rows."""
    return json.loads((workshop.output / "manifest.json").read_text(encoding="utf-8"))["rows"]


def counts_of(workshop: Workshop) -> list[tuple[int, int]]:
    """Impressions and clicks by position."""
    return pl.read_parquet(workshop.output / "propensities.parquet").sort("position")["impressions", "clicks"].rows()


def by_position(log: pl.DataFrame) -> list[tuple[int, int]]:
    """The same, counted by hand."""
    counted = log.group_by("position").agg(pl.len(), pl.col("click").cast(pl.Int64).sum()).sort("position")
    return counted["len", "click"].rows()


@pytest.mark.parametrize("model", ["pbm", "ubm"])
def test_a_document_twice_stops_the_run_and_the_error_names_the_option(
    workshop: Workshop, path: Path, model: str
) -> None:
    for said in ((), ("--duplicate-docs", "error")):
        done = attempt(workshop, "fit", path, "--model", model, *said)
        assert_refused(done, workshop, f"{TWICE} x the session shows a document twice", "--duplicate-docs first")


@pytest.mark.parametrize("memory", ["whole", "buckets"])
@pytest.mark.parametrize("command", ["fit", "run"])
def test_first_counts_the_first_row_with_its_own_click(
    workshop: Workshop, path: Path, log: pl.DataFrame, command: str, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reduce_to(memory, monkeypatch)
    done = attempt(workshop, command, path, "--duplicate-docs", "first")
    assert done.returncode == 0, done.stderr
    once = log.filter((pl.col("session") >= TWICE) | (pl.col("position") != 3))
    assert counts_of(workshop) == by_position(once)
    reason = "the document stands further up on the page"
    assert rows_of(workshop) == {"read": 2000, "used": 2000 - TWICE, "rejected": {reason: TWICE}}
    assert f"{TWICE} left out ({TWICE} because {reason})" in done.stderr


@pytest.mark.parametrize("memory", ["whole", "buckets"])
def test_keep_counts_every_row_at_its_position(
    workshop: Workshop, path: Path, log: pl.DataFrame, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reduce_to(memory, monkeypatch)
    done = attempt(workshop, "fit", path, "--duplicate-docs", "keep", "--check-pages", "all")
    assert done.returncode == 0, done.stderr
    assert counts_of(workshop) == by_position(log)
    assert rows_of(workshop) == {"read": 2000, "used": 2000, "rejected": {}}


@pytest.mark.parametrize("memory", ["whole", "buckets"])
def test_first_counts_nothing_below_a_click_that_is_left_out_in_ubm(
    workshop: Workshop, path: Path, log: pl.DataFrame, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reduce_to(memory, monkeypatch)
    clicked = log.filter(pl.col("session") < TWICE, pl.col("position") == 3, pl.col("click") == 1).height
    assert clicked > 0
    done = attempt(workshop, "fit", path, "--duplicate-docs", "first", "--model", "ubm")
    assert done.returncode == 0, done.stderr
    assert rows_of(workshop)["rejected"] == {
        "the document stands further up on the page": TWICE,
        "a repeated document was clicked further up on the page": clicked,
    }


@pytest.mark.parametrize("said", ["first", "keep"])
def test_a_visit_is_no_page_that_shows_a_document_twice(workshop: Workshop, log: pl.DataFrame, said: str) -> None:
    file = workshop.folder / "visits.parquet"
    log.filter(pl.col("session") >= TWICE).with_columns(session=pl.col("query")).write_parquet(file)
    done = attempt(workshop, "fit", file, "--duplicate-docs", said)
    assert_refused(done, workshop, "cannot be one results page", "this looks like a visit")
