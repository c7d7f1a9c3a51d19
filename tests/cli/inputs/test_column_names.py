"""The names of a log's columns: whatever a column is called, the result is right or an error says to rename it."""

from itertools import product
from pathlib import Path

import polars as pl
import pytest
from workshop import RunPosbias

from posbias.core.schema import NAMES_TAKEN
from posbias.core.simulation.simulate import SimulationOptions, simulate

Tables = list[pl.DataFrame]

NAMES = [
    *("period", "previous_click", "randomized", "impressions", "clicks", "rejected", "rows", "weight"),
    *("ctr", "propensity", "std_error", "ci_low", "identified", "reason", "linking_pairs", "joint_propensity"),
    *("examination", "attractiveness", "std_dev", "signature", "label", "group", "queries", "count", "a.b", "x y"),
]
ROLES = {
    "--session": "session",
    "--query": "query",
    "--doc": "doc",
    "--position": "position",
    "--click": "click",
    "--context": "device",
    "--stratify": "device",
    "--weight-column": "times",
    "--timestamp": "day",
    "--randomized-where": "policy",
    "--feature": "price",
}
UNDER_ITS_OWN_NAME = ("--context", "--stratify", "--feature")
FOUND_BY_NAME = ("--session", "--query", "--doc", "--position", "--click")


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Return a log with a column for every role."""
    frame = simulate(SimulationOptions(n_sessions=200, n_queries=3, docs_per_query=3, n_positions=3, seed=3)).log
    return frame.select(
        *("session", "query", "doc", "position", "click"),
        device=pl.when(pl.col("session") % 2 == 0).then(pl.lit("phone")).otherwise(pl.lit("desk")),
        times=1.5,
        day=pl.format("2026-01-0{}", 1 + pl.col("session") % 3),
        policy=pl.when(pl.col("session") % 5 == 0).then(pl.lit("random")).otherwise(pl.lit("ranker")),
        price=(pl.col("query") * 10 + pl.col("doc")).cast(pl.Float64),
    )


FREE = tuple(role for role in ROLES if role not in NAMES_TAKEN and role != "--feature")
"""Roles whose column may have any name."""


def attempt(run: RunPosbias, folder: Path, log: pl.DataFrame, names: dict[str, str]) -> Tables | str:
    """The tables of a run with the columns of some roles under other names, or what it says against that."""
    log.rename({ROLES[role]: name for role, name in names.items()}).write_parquet(folder / "log.parquet")
    named = {flag: ROLES[flag] for flag in FOUND_BY_NAME} | names
    if "--randomized-where" in named:
        named["--randomized-where"] += "=random"
    words = [word for flag, value in named.items() for word in (flag, value)]
    command = "run" if "--feature" in names else "fit"
    done = run(command, "log.parquet", *words, "--no-compare", "-o", "out", "--force", code=(0, 1, 2))
    if done.returncode == 2:
        return done.stderr
    return [pl.read_parquet(path) for path in sorted((folder / "out").rglob("*.parquet"))]


def assert_alike(found: Tables, usual: Tables, names: dict[str, str]) -> None:
    """The same tables, but for the names of columns that results take over."""
    own = {ROLES[role]: name for role, name in names.items() if role in UNDER_ITS_OWN_NAME}
    for table, expected in zip(found, usual, strict=True):
        assert table.columns == [own.get(column, column) for column in expected.columns]
        assert table.rows() == expected.rows(), names


@pytest.mark.slow
def test_columns_of_any_name_play_their_roles(run_in_process: RunPosbias, tmp_path: Path, log: pl.DataFrame) -> None:
    """Every role is played under every name once, while the others have odd names too."""
    usual = attempt(run_in_process, tmp_path, log, {role: ROLES[role] for role in FREE})
    assert not isinstance(usual, str), usual

    for first in range(len(NAMES)):
        names = {role: NAMES[(first + number) % len(NAMES)] for number, role in enumerate(FREE)}
        found = attempt(run_in_process, tmp_path, log, names)
        assert not isinstance(found, str), found
        assert_alike(found, usual, names)


@pytest.mark.parametrize("role", [role for role in ROLES if role not in FREE])
@pytest.mark.slow
def test_a_column_of_any_name_plays_its_role_or_is_asked_to_be_renamed(
    run_in_process: RunPosbias, tmp_path: Path, log: pl.DataFrame, role: str
) -> None:
    usual = attempt(run_in_process, tmp_path, log, {role: ROLES[role]})
    assert not isinstance(usual, str), usual

    refused: set[str] = set()
    for name in NAMES:
        found = attempt(run_in_process, tmp_path, log, {role: name})
        if isinstance(found, str):
            assert f"{name!r}" in found or f"{role} {name}" in found
            assert "Rename the column" in found
            refused.add(name)
        else:
            assert_alike(found, usual, {role: name})

    if role in NAMES_TAKEN:
        assert refused == NAMES_TAKEN[role].intersection(NAMES)


@pytest.mark.slow
def test_no_context_has_the_name_of_another_column_of_the_results(
    run_in_process: RunPosbias, tmp_path: Path, log: pl.DataFrame
) -> None:
    log.write_parquet(tmp_path / "log.parquet")
    run_in_process("fit", "log.parquet", "--context", "device", "-o", "out", code=0)

    tables = [pl.read_parquet(tmp_path / "out" / f"{name}.parquet") for name in ("propensities", "attractiveness")]
    columns = {column for table in tables for column in table.columns} - {"device"}
    assert columns <= NAMES_TAKEN["--context"]


@pytest.mark.parametrize(
    ("role", "name", "ending"),
    [
        *product(["--query"], ["a\0b", "a\nb", "a\x1b[31mb", "*", "^a.*$"], ["csv", "parquet", "ndjson"]),
        *product(["--context", "--feature"], ["a\nb", "*"], ["csv"]),
    ],
)
def test_a_name_that_is_not_read_to_the_letter_is_refused(
    run_in_process: RunPosbias, tmp_path: Path, log: pl.DataFrame, role: str, name: str, ending: str
) -> None:
    named = log.rename({ROLES[role]: name})
    {"csv": named.write_csv, "parquet": named.write_parquet, "ndjson": named.write_ndjson}[ending](
        tmp_path / f"log.{ending}"
    )

    done = run_in_process("run", f"log.{ending}", role, name, "-o", "out", code=2)

    assert f"log.{ending}: the name of the column {name!r}" in done.stderr or "is a pattern" in done.stderr
    assert "Rename the column" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", [pl.Int128, pl.UInt128])
@pytest.mark.parametrize("role", ["", "--context", "--stratify", "--weight-column", "--randomized-where"])
@pytest.mark.slow_after(2)
def test_integers_of_128_bits_are_read_or_refused_by_role(
    run_in_process: RunPosbias, tmp_path: Path, log: pl.DataFrame, role: str, kind: type[pl.DataType]
) -> None:
    log.with_columns(wide=(1 + pl.col("session") % 2).cast(kind)).write_parquet(tmp_path / "log.parquet")
    column = "wide=1" if role == "--randomized-where" else "wide"

    done = run_in_process("fit", "log.parquet", *((role, column) if role else ()), "-o", "out")

    if role in {"", "--weight-column"}:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 2
        assert f"'wide' ({role}) holds" in done.stderr
