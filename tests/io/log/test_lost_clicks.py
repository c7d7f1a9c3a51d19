"""Clicks that stand apart from impressions: all are accounted for, and lost ones are judged alike everywhere."""

import json
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest
from command_results import Run, manifest_of
from hypothesis import given, settings
from hypothesis import strategies as st
from log_forms import FORMS, Click, Log, Page, write

from posbias.io.log.clicks import CAUTION_SHARE, STOP_SHARE, ClickOutcome, Clicks, Example, lost_clicks
from posbias.io.results.conclusions import has_stops

FORMS_OF_CLICKS = {
    "two tables": False,
    "events of the README": False,
    "visits": True,
    "clicked ids": False,
    "behavioral analytics": True,
    "metarank": False,
    "relevance prediction": True,
    "ubi": False,
}
"""Forms whose clicks stand apart from impressions, or in a list of their own, and whether they are joined by time."""


def words_of(folder: Path, form: str, pages: Sequence[Page], clicks: Sequence[Click]) -> list[str]:
    """Write a log whose visits have one page each, and return the words that read it."""
    return FORMS[form].words(write(folder, FORMS[form].write(Log(pages, clicks, pages_of_a_visit=1))))


def mutated(page: int, doc: str | None, how: str) -> list[Click]:
    """A click, changed."""
    changed = {
        "other form of the id": [Click(page, f"idx/{doc}")],
        "twice": [Click(page, doc), Click(page, doc)],
        "no such page": [Click(page + 1000, doc)],
        "no document": [Click(page, None)],
        "no page": [Click(None, doc)],
        "before the page": [Click(page, doc, early=True)],
    }
    return changed[how]


MUTATIONS = ("other form of the id", "twice", "no such page", "no document", "no page", "before the page")


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Page], list[Click]]:
    """Pages and clicks, some of which are damaged; rows are in any order, and some pages were not recorded."""
    random = draw(st.randoms(use_true_random=False))
    sizes = draw(st.lists(st.integers(2, 4), min_size=1, max_size=24))
    pages = [Page(number, f"q{number % 3}", random.sample("abcdef", size)) for number, size in enumerate(sizes)]
    clicks = [(page.number, doc) for page in pages for doc in page.docs if random.random() < 0.5]
    kinds = draw(st.lists(st.sampled_from(MUTATIONS), max_size=2))
    share = draw(st.sampled_from((0.02, 0.1, 0.5, 1.0)))
    found: list[Click] = []
    for page, doc in clicks:
        is_changed = kinds and random.random() < share
        found += mutated(page, doc, random.choice(kinds)) if is_changed else [Click(page, doc)]
    missing = draw(st.sampled_from((0, 0, 0, 1, 3)))
    recorded = pages[missing:] or pages
    random.shuffle(recorded)
    random.shuffle(found)
    return recorded, found


class Expected(NamedTuple):
    """What becomes of clicks."""

    joined: set[tuple[int | None, str | None]]
    repeated: int
    lost: int


def brute_force(pages: list[Page], clicks: list[Click], *, by_time: bool) -> Expected:
    """Look for the page and the document of each click."""
    joined, repeated, lost = set[tuple[int | None, str | None]](), 0, 0
    for page, doc, early in clicks:
        if (early and by_time) or not any(shown.number == page and doc in shown.docs for shown in pages):
            lost += 1
        elif (page, doc) in joined:
            repeated += 1
        else:
            joined.add((page, doc))
    return Expected(joined, repeated, lost)


def check_counts(run: Run, folder: Path, form: str, pages: list[Page], clicks: list[Click]) -> None:
    """Collect the log; exit code 0 means that it was counted as by brute force, and that hardly a click is lost."""
    if form == "clicked ids":
        clicks = [click for click in clicks if click.page in {page.number for page in pages}]
    if form == "relevance prediction":
        clicks = [click for click in clicks if click.page is not None and click.doc is not None]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    expected = brute_force(pages, clicks, by_time=FORMS_OF_CLICKS[form])
    done = run("collect", *words_of(folder, form, pages, clicks), "-o", folder / "out", "--quiet")
    said = done.stderr.splitlines()
    if done.returncode == 2:
        assert len(said) == 1, done.stderr
        assert said[0].startswith("posbias: error: ")
        assert "bug" not in said[0]
        assert not expected.joined
        assert not (folder / "out").exists()
        return
    assert expected.joined or not clicks, done.stderr
    manifest = manifest_of(folder / "out")
    assert manifest["statistics"]["impressions"] == sum(len(page.docs) for page in pages)
    assert manifest["statistics"]["clicks"] == len(expected.joined)
    counted = manifest["rows"]["clicks"]
    assert counted["read"] == len(clicks)
    found = Expected(expected.joined, counted["repeated"], sum(counted["lost"].values()))
    assert (counted["joined"], found) == (len(expected.joined), expected)
    share = expected.lost / max(len(clicks), 1)
    about_clicks = [line for line in said if "no impression fits them" in line]
    assert all(line.startswith(("! ", "✘ ")) for line in said)
    assert len(about_clicks) == (share > CAUTION_SHARE)
    assert done.returncode == (1 if share > STOP_SHARE else 0), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("examples", [4, pytest.param(25, marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", FORMS_OF_CLICKS)
def test_what_is_read_of_joined_clicks_is_what_brute_force_finds(
    run_in_process: Run, tmp_path: Path, form: str, examples: int
) -> None:
    @settings(deadline=None, derandomize=True, max_examples=examples, database=None)
    @given(log=logs())
    def holds(log: tuple[list[Page], list[Click]]) -> None:
        check_counts(run_in_process, tmp_path / "log", form, *log)

    holds()


def half_lost(log: pl.DataFrame, share: float) -> tuple[list[Page], list[Click]]:
    """The log as pages and clicks, those of a share of the pages at position 1 under another form of the id."""
    pages, clicks = list[Page](), list[Click]()
    ordered = log.sort("session", "position").with_columns(pl.col("session", "doc").cast(pl.String))
    for number, page in enumerate(ordered.partition_by("session", maintain_order=True)):
        docs = tuple(page["doc"])
        pages.append(Page(int(page["session"][0]), page["query"][0], docs))
        for at, doc in enumerate(page.filter(pl.col("click") == 1)["doc"]):
            is_other = number % 100 < 100 * share and at == 0
            clicks.append(Click(pages[-1].number, f"idx/{doc}" if is_other else doc))
    return pages, clicks


@pytest.mark.parametrize("form", [form for form in FORMS_OF_CLICKS if form != "visits"])
@pytest.mark.parametrize("command", ["fit", "collect"])
@pytest.mark.slow_after(1)
def test_a_log_that_loses_many_clicks_is_in_doubt_and_the_ids_are_named_although_quiet(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, command: str, form: str
) -> None:
    words = words_of(tmp_path, form, *half_lost(log, 0.7))
    done = run_in_process(command, *words, "-o", tmp_path / "out", "--quiet", code=1)
    assert "✘ Do not rely on this log: " in done.stderr
    assert "Clicks name 'idx/10" in done.stderr
    assert " (closest that was shown: '10" in done.stderr
    assert any("are lost" in said for said in manifest_of(tmp_path / "out")["warnings"])


@pytest.mark.parametrize("form", [form for form in FORMS_OF_CLICKS if form != "visits"])
@pytest.mark.parametrize("into", [("-o", "out"), ("--into", "out", "--date", "2026-01-05")])
@pytest.mark.slow_after(2)
def test_a_log_in_which_no_click_has_an_impression_is_refused(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, form: str, into: tuple[str, ...]
) -> None:
    pages, clicks = half_lost(log, 0)
    words = words_of(tmp_path, form, pages, [click._replace(doc=f"idx/{click.doc}") for click in clicks])
    done = run_in_process("collect", *words, *into, "--quiet", code=2)
    assert "no click has an impression" in done.stderr
    assert "Clicks name 'idx/10" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["fit", "run", "weight", "evaluate --models pbm,dbn", "fit --for-each market"])
def test_every_command_judges_lost_clicks_alike(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, command: str
) -> None:
    words = words_of(tmp_path, "two tables", *half_lost(log, 0.7))
    pl.read_parquet(words[0]).with_columns(market=pl.lit("m")).write_parquet(tmp_path / "shown.parquet")
    of_fit: tuple[str | Path, ...] = ()
    if command == "weight":
        log.with_columns(pl.col("session", "doc").cast(pl.String)).write_parquet(tmp_path / "log.parquet")
        run_in_process("fit", tmp_path / "log.parquet", "-o", tmp_path / "fit", code=0)
        of_fit = ("--propensities", tmp_path / "fit")
    name, *options = command.split()
    done = run_in_process(name, *words, *options, *of_fit, "-o", tmp_path / "out", "--quiet", code=1)
    assert done.stderr.count("Do not rely on this log") == 1


def test_check_says_that_a_log_loses_clicks(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    done = run_in_process("check", *words_of(tmp_path, "two tables", *half_lost(log, 0.7)), "--json", code=1)
    found = json.loads(done.stdout)
    assert any(reason["sentence"].startswith("Do not rely on this log") for reason in found["reasons"])
    assert found["rows"]["clicks"]["lost"]


@pytest.mark.slow
def test_statistics_remember_the_clicks_that_their_logs_lost(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    run_in_process("collect", *words_of(tmp_path, "two tables", *half_lost(log, 0.7)), "-o", tmp_path / "statistics")
    done = run_in_process("fit", tmp_path / "statistics", "-o", tmp_path / "out", "--quiet", code=1)
    assert "Do not rely on this log" in done.stderr


@pytest.mark.slow
def test_a_day_that_loses_clicks_is_named_although_the_store_does_not(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    pages, clicks, done = *half_lost(log, 0), None
    for number, (day, lost) in enumerate((("2026-01-05", 0), ("2026-01-06", 0), ("2026-01-07", 4))):
        damaged = [click._replace(doc="z") if place < lost else click for place, click in enumerate(clicks[:40])]
        folder = tmp_path / day
        folder.mkdir()
        shift = 1000 * number
        words = words_of(
            folder,
            "two tables",
            [page._replace(number=page.number + shift) for page in pages],
            [click._replace(page=(click.page or 0) + shift) for click in damaged],
        )
        done = run_in_process("collect", *words, "--into", tmp_path / "store", "--date", day, "--quiet")
    assert done is not None
    assert "✘ 2026-01-07: Do not rely on this log: 4 of 40 clicks (10.0%) are lost" in done.stderr
    assert "! Some clicks are missing: 4 of 120 clicks (3.3%) are lost" in done.stderr
    assert done.returncode == 1


def test_losses_are_shown_by_the_position_that_clicks_name(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    log.drop("click").write_parquet(tmp_path / "shown.parquet")
    clicked = log.filter(pl.col("click") == 1).select("session", "doc", rank="position")
    at_top = (pl.col("rank") == 1) & (pl.col("session") % 2 == 0)
    clicked.with_columns(doc=pl.when(at_top).then(-1).otherwise("doc")).write_parquet(tmp_path / "clicks.parquet")
    done = run_in_process(
        *("collect", tmp_path / "shown.parquet", "--clicks", tmp_path / "clicks.parquet", "-o", tmp_path / "out")
    )
    lost, at_first = clicked.filter(at_top).height, clicked.filter(pl.col("rank") == 1).height
    found = manifest_of(tmp_path / "out")["rows"]["clicks"]["by_position"]
    assert found["1"] == {"read": at_first, "lost": lost}
    assert found["2"] == {"read": clicked.filter(pl.col("rank") == 2).height, "lost": 0}
    assert f"by the position that clicks name: {lost / at_first:.0%} at 1, 0% at 2" in done.stderr


def test_the_shares_of_all_positions_are_named_where_all_are_lost_below(run_in_process: Run, tmp_path: Path) -> None:
    # A page of ten results, of which the log of what was shown has the first two; clicks name all.
    page, place = pl.int_range(200).alias("session"), pl.int_range(1, 11).alias("position")
    shown = pl.select(page).join(pl.select(place), how="cross").with_columns(doc="position", query=pl.lit("q"))
    shown.filter(pl.col("position") < 3).write_parquet(tmp_path / "shown.parquet")
    clicked = shown.filter(pl.col("session") % 11 >= pl.col("position")).select("session", "doc", rank="position")
    clicked.write_parquet(tmp_path / "clicks.parquet")
    words = ("collect", tmp_path / "shown.parquet", "--clicks", tmp_path / "clicks.parquet")
    done = run_in_process(*words, "-o", tmp_path / "out")
    assert "by the position that clicks name: 0% at 1 to 2, 100% at 3 to 10." in done.stderr
    # Every second click is lost at 2, every third at 3, and so on.
    other = pl.when(pl.col("session") % pl.col("rank") == 0).then(-1).otherwise("doc")
    shown.write_parquet(tmp_path / "shown.parquet")
    clicked.with_columns(doc=other).write_parquet(tmp_path / "clicks.parquet")
    done = run_in_process(*words, "-o", tmp_path / "several")
    assert re.search(r"name: 100% at 1, 5\d% at 2, 3\d% at 3, 2\d% at 4, \d+% at 5, 1\d% at 6 to 10\.", done.stderr)


@pytest.mark.parametrize(("name", "refused"), [("rnd-{}", True), ("{}0", False)])
def test_few_lost_clicks_refuse_a_log_where_their_ids_have_an_addition(name: str, *, refused: bool) -> None:
    counts = Clicks(1000, 980, 0, {ClickOutcome.OTHER_PAGE.words: 20}, {})
    (reason,) = lost_clicks(counts, [Example(ClickOutcome.OTHER_PAGE, name.format("17"), "17")])

    assert has_stops([reason]) is refused
    assert ("All clicks of such ids are lost" in reason.sentence) is refused


def test_a_column_that_says_which_results_were_clicked_is_no_column_of_events(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    action = pl.when(pl.col("click") == 1).then(pl.lit("click")).otherwise(pl.lit("view"))
    log.select("session", "query", "doc", "position", action=action).write_csv(tmp_path / "log.csv")
    where = ["--impression-where", "action=view", "--click-where", "action=click"]

    message = run_in_process("collect", "log.csv", *where, "-o", "refused", code=2).stderr
    options = message.partition("whether it was clicked, use ")[2].partition(" in place of")[0]
    run_in_process("collect", "log.csv", *shlex.split(options), "-o", "out", code=(0, 1))

    assert manifest_of(tmp_path / "out")["statistics"]["clicks"] == log["click"].sum()
