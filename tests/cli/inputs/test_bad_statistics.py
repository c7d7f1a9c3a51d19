"""Statistics and propensities that do not go together are refused: one message that names the cause."""

from pathlib import Path

import pytest
from workshop import Make, Workshop, assert_refused, attempt, case


def mixed(w: Workshop) -> list[str | Path]:
    log = w.log()
    return ["fit", log, w.collected(log, "statistics")]


def two_models(w: Workshop) -> list[str | Path]:
    days = w.log("one.csv"), w.log_with("click", 1, "two.csv")
    return ["fit", w.collected(days[0], "s1"), w.collected(days[1], "s2", "--model", "ubm")]


def one_day_twice(w: Workshop) -> list[str | Path]:
    log = w.log()
    return ["collect", w.collected(log, "s1"), w.collected(log, "s2")]


def damaged_statistics(w: Workshop) -> list[str | Path]:
    statistics = w.collected(w.log(), "s1")
    part = statistics / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-100])
    return ["fit", statistics]


def pages_from_statistics(w: Workshop) -> list[str | Path]:
    return ["run", w.collected(w.log(), "s1"), "--layout", "session"]


def not_a_fit(w: Workshop) -> list[str | Path]:
    log = w.log()
    return ["weight", log, "--propensities", w.collected(log, "s1")]


def other_cells(w: Workshop) -> list[str | Path]:
    log, fit = w.log(), w.folder / "fit"
    assert w.run("fit", log, "-o", fit, "--position-bins", "1,2").returncode == 0
    return ["weight", w.collected(log, "s1"), "--propensities", fit]


def damaged_fit(w: Workshop) -> list[str | Path]:
    log, fit = w.log(), w.folder / "fit"
    assert w.run("fit", log, "-o", fit).returncode == 0
    (fit / "propensities.parquet").write_bytes(b"PAR1")
    return ["weight", log, "--propensities", fit]


def damaged_manifest(w: Workshop) -> list[str | Path]:
    log, fit = w.log(), w.folder / "fit"
    assert w.run("fit", log, "-o", fit).returncode == 0
    (fit / "manifest.json").write_text("[1, 2", encoding="utf-8")
    return ["weight", log, "--propensities", fit]


def weight_with(name: str) -> Make:
    return lambda w: ["weight", w.log(), "--propensities", w.folder / name]


BUILDING_ON = [
    case("logs and statistics", mixed, "log.csv", "statistics"),
    case("statistics of two models", two_models, "s1", "s2", "pbm", "ubm"),
    case("the statistics of one day twice", one_day_twice, "s1", "s2"),
    case("damaged statistics", damaged_statistics, "part-00000.parquet", "truncated"),
    case("the session layout from statistics", pages_from_statistics, "s1", "--layout session needs the logs", "logs"),
    case("propensities that are not there", weight_with("nowhere"), "nowhere", "is not there"),
    case("propensities that are statistics", not_a_fit, "s1", "posbias fit"),
    case("propensities for other cells", other_cells, "position-bins 1,2", "ollect"),
    case("damaged propensities", damaged_fit, "propensities.parquet"),
    case("a damaged manifest", damaged_manifest, "manifest.json"),
]


@pytest.mark.parametrize(("make", "says"), BUILDING_ON)
def test_statistics_and_propensities_that_do_not_fit_are_named(
    workshop: Workshop, make: Make, says: tuple[str, ...]
) -> None:
    assert_refused(attempt(workshop, *make(workshop)), workshop, *says)
