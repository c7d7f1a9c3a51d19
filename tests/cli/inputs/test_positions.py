"""Positions that begin anew on each results page, and clicks that are told by ranks, are read right or not at all."""

import shlex
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from checked_logs import Run, checked
from command_results import invoke, manifest_of

from posbias.core.simulation.simulate import SimulationOptions, simulate

POSITION, CLICK, SESSION = pl.col("position"), pl.col("click"), pl.col("session")
SIZE = 4
"""Results of a page."""

PAGE, SLOT = (POSITION - 1) // SIZE + 1, (POSITION - 1) % SIZE + 1
OWN = pl.format("{}-{}", "session", PAGE)


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Return a log of lists of twelve results."""
    return simulate(SimulationOptions(n_sessions=1500, n_queries=20, n_positions=12, docs_per_query=15, seed=3)).log


def result_of(run: Run, folder: Path, *words: str, code: tuple[int, ...] = (0, 1)) -> tuple[pl.DataFrame, Any]:
    """What is counted of a log, and the manifest."""
    done = run("collect", *words, "-o", "out", "--force")
    assert done.returncode in code, done.stderr
    return pl.read_parquet(folder / "out" / "part-*.parquet").sort(pl.all()), manifest_of(folder / "out")


@pytest.fixture(scope="module")
def expected(log: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """Return the statistics of the lists as they are."""
    folder = tmp_path_factory.mktemp("lists")
    log.write_parquet(folder / "list.parquet")
    invoke("collect", folder / "list.parquet", "-o", folder / "out")
    return pl.read_parquet(folder / "out" / "part-*.parquet").sort(pl.all())


PAGED = {
    "sessions span pages": ({"serp_page": PAGE, "slot": SLOT}, "--page serp_page --page-size 4"),
    "pages have sessions": ({"session": OWN, "page": PAGE, "slot": SLOT}, "--page page --page-size 4"),
    "all from 0": ({"page": PAGE - 1, "slot": SLOT - 1}, "--page page --page-size 4 --page-base 0 --position-base 0"),
    "an offset": ({"session": OWN, "offset": (PAGE - 1) * SIZE, "slot": SLOT}, "--page offset --page-size 1"),
    "an offset from 1": ({"start": (PAGE - 1) * SIZE + 1, "rank": SLOT}, "--page start --page-size 1 --page-base 1"),
}


@pytest.mark.parametrize("form", PAGED)
@pytest.mark.slow
def test_pages_with_slots_give_the_counts_of_the_whole_list_or_an_error_that_names_the_options(
    *, run_in_process: Run, log: pl.DataFrame, expected: pl.DataFrame, tmp_path: Path, form: str
) -> None:
    columns, options = PAGED[form]
    log.with_columns(**columns).drop("position").write_parquet(tmp_path / "pages.parquet")

    refused = run_in_process("fit", "pages.parquet", "-o", "refused", *options.split()[6:], code=2)
    found = checked(run_in_process, "pages.parquet", code=1)
    read, manifest = result_of(run_in_process, tmp_path, *found["command"][1:])

    assert options.partition(" --position-base")[0] in " ".join(refused.stderr.split())
    assert not (tmp_path / "refused").exists()
    assert options.partition(" --position-base")[0] in found["reasons"][0]["sentence"]
    assert read.equals(expected)
    assert manifest["options"]["page-size"] == int(options.split()[3])


@pytest.mark.slow
def test_the_page_is_found_by_its_name_and_every_format_and_command_reads_it(
    run_in_process: Run, log: pl.DataFrame, expected: pl.DataFrame, tmp_path: Path
) -> None:
    paged = log.with_columns(slot=SLOT, page_no=PAGE).drop("position")
    paged.write_csv(tmp_path / "pages.csv")
    lists = paged.group_by("session", "query", "page_no", maintain_order=True).agg("doc", "click")
    lists.write_ndjson(tmp_path / "lists.ndjson")

    for words in (["pages.csv", "--page-size", "4"], ["lists.ndjson", "--page-size", "4"]):
        found, _ = result_of(run_in_process, tmp_path, *words)
        assert found.equals(expected.cast(found.schema).sort(pl.all()))
    run_in_process("fit", "pages.csv", "--page-size", "4", "--no-compare", "-o", "fit")
    run_in_process("weight", "pages.csv", "--page-size", "4", "--propensities", "fit", "-o", "weighed", code=0)
    run_in_process("weight", "pages.csv", "--propensities", "fit", "-o", "refused", code=2)


NO_PAGES = {
    "positions go on": {"page": PAGE},
    "one page": {"page": pl.lit(1)},
    "a text": {"page": pl.lit("search")},
    "searches of a visit": {"session": SESSION // 3, "page": SESSION % 3},
}


@pytest.mark.parametrize("form", NO_PAGES)
def test_a_column_called_page_beside_positions_of_the_whole_list_changes_nothing(
    *, run_in_process: Run, log: pl.DataFrame, expected: pl.DataFrame, tmp_path: Path, form: str
) -> None:
    log.with_columns(**NO_PAGES[form]).write_parquet(tmp_path / "pages.parquet")
    session = ["--session", "session", "--session", "page"] if form == "searches of a visit" else []

    found, _ = result_of(run_in_process, tmp_path, "pages.parquet", *session)

    assert found.equals(expected)


WAS_CLICKED = CLICK == 1
TOP_CLICK = POSITION.filter(WAS_CLICKED).min().over("session")
RANKS = {
    "its own rank, from 0": (pl.when(WAS_CLICKED).then(POSITION - 1), WAS_CLICKED, 0),
    "its own rank, from 1": (pl.when(WAS_CLICKED).then(POSITION), WAS_CLICKED, 1),
    "the rank on the page": (TOP_CLICK - 1, TOP_CLICK == POSITION, 0),
}


@pytest.mark.slow
@pytest.mark.parametrize(("form", "name"), list(zip(RANKS, ["clicked_index", "clicked", "clicked"], strict=True)))
def test_ranks_of_clicks_are_read_as_ranks_and_refused_as_anything_else(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, form: str, name: str
) -> None:
    rank, clicked, base = RANKS[form]
    log.with_columns(rank.alias(name)).drop("click").write_csv(tmp_path / "log.csv")
    said = ["log.csv", "--click", name]

    for words in ([], ["--click-counts", "--null-click", "0"], ["--click-counts", "--on-bad-rows", "drop"]):
        done = run_in_process("fit", *said, *words, "-o", "refused", code=2)
        assert f"Use --click-ranks {base}" in " ".join(done.stderr.split())
    found = checked(run_in_process, "log.csv", code=None)
    run_in_process("collect", *found["command"][1:], "-o", "out", code=0)
    run_in_process("collect", *said, "--click-ranks", str(1 - base), "-o", "refused", code=2)

    assert not (tmp_path / "refused").exists()
    assert "--click-counts" not in found["command"]
    assert found["totals"]["clicks"] == log.select(clicked.fill_null(value=False).sum()).item()


def test_ranks_of_the_clicks_of_a_page_beside_its_list_are_read_with_one_or_several(
    run_in_process: Run, log: pl.DataFrame, expected: pl.DataFrame, tmp_path: Path
) -> None:
    lists = log.sort("session", "position").group_by("session", "query", maintain_order=True)
    lists.agg("doc", click=POSITION.filter(WAS_CLICKED) - 1).write_parquet(tmp_path / "several.parquet")
    lists.agg("doc", click=POSITION.filter(WAS_CLICKED).min() - 1).write_ndjson(tmp_path / "one.ndjson")

    several, _ = result_of(run_in_process, tmp_path, "several.parquet", "--click-ranks", "0")
    _, one = result_of(run_in_process, tmp_path, "one.ndjson", "--click-ranks", "0")
    refused = run_in_process("fit", "one.ndjson", "-o", "refused", code=2)

    assert several.equals(expected)
    assert one["statistics"]["clicks"] == log.filter(WAS_CLICKED)["session"].n_unique()
    assert "--click-ranks 0" in refused.stderr


def test_negative_positions_are_refused_with_the_query_that_reads_them_from_the_top(
    run_in_process: Run, tmp_path: Path, log: pl.DataFrame, expected: pl.DataFrame
) -> None:
    log.with_columns(-POSITION).write_parquet(tmp_path / "log.parquet")

    refused = run_in_process("collect", "log.parquet", "-o", "out")
    words = shlex.split(" ".join(refused.stderr.split()).partition("read them with ")[2].partition(". Fix")[0])

    assert refused.returncode == 2
    assert result_of(run_in_process, tmp_path, "log.parquet", *words)[0].equals(expected)
