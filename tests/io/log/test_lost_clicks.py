"""Clicks that stand apart from impressions: all are accounted for, and lost ones are judged alike everywhere."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest
from command_results import Run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from posbias.io.log.clicks import SHARE_BORNE, SHARE_NAMED, Clicks, Example, Fate, lost_clicks
from posbias.io.results.conclusions import is_refused

EPOCH = 1_767_607_200_000  # milliseconds
EVENTS = ("--impression-where", "kind=view", "--click-where", "kind=click")


class Page(NamedTuple):
    """A results page that was recorded."""

    name: str
    query: str
    docs: tuple[str, ...]


class Click(NamedTuple):
    """A click as it was recorded: of which page, on what, and whether before the page was shown."""

    page: str | None
    doc: str | None
    early: bool = False


class Written(NamedTuple):
    """A log on disk: the words that read it, and whether clicks are joined by time."""

    words: tuple[str | Path, ...]
    by_time: bool = False


def table(folder: Path, pages: list[Page], clicks: list[Click]) -> Written:
    """A table of impressions, and one of clicks."""
    shown = [(page.name, page.query, doc, at) for page in pages for at, doc in enumerate(page.docs, 1)]
    texts = dict.fromkeys(("session", "query", "doc"), pl.String())
    pl.DataFrame(shown, schema={**texts, "position": pl.Int64()}, orient="row").write_parquet(folder / "shown.parquet")
    clicked = pl.DataFrame(
        [click[:2] for click in clicks], schema={"session": pl.String, "doc": pl.String}, orient="row"
    )
    clicked.write_parquet(folder / "clicks.parquet")
    return Written((folder / "shown.parquet", "--clicks", folder / "clicks.parquet"))


def rows_of_events(
    pages: list[Page], clicks: list[Click]
) -> Iterator[tuple[str, str | None, Any, str | None, Any, int]]:
    """Rows of a table of events: those of clicks first."""
    for click in clicks:
        yield "click", click.page, None, click.doc, None, EPOCH + (1 if click.early else 3)
    for page in pages:
        for at, doc in enumerate(page.docs, 1):
            yield "view", page.name, page.query, doc, at, EPOCH + 2


def events(folder: Path, pages: list[Page], clicks: list[Click]) -> Written:
    """Impressions and clicks in one table."""
    texts = dict.fromkeys(("kind", "session", "query", "doc"), pl.String())
    schema = {**texts, "position": pl.Int64(), "time": pl.Int64()}
    frame = pl.DataFrame(list(rows_of_events(pages, clicks)), schema=schema, orient="row")
    frame.with_columns(pl.from_epoch("time", "ms")).write_parquet(folder / "events.parquet")
    return Written((folder / "events.parquet", *EVENTS))


def visits(folder: Path, pages: list[Page], clicks: list[Click]) -> Written:
    """The same, its pages told by time."""
    path = events(folder, pages, clicks).words[0]
    return Written((path, *EVENTS, "--page-time", "time"), by_time=True)


def lines(path: Path, documents: Iterable[object], form: str, *, by_time: bool = False) -> Written:
    """A file of lines, JSON where they are no texts."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in documents]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return Written((path, "--input-format", form), by_time)


def elasticsearch(folder: Path, pages: list[Page], clicks: list[Click]) -> Written:
    """Searches and clicks, a search in each session."""
    query = {page.name: page.query for page in pages}

    def event(action: str, session: str | None, at: int, **more: object) -> dict[str, Any]:
        common = {"@timestamp": EPOCH + at, "event": {"action": action}, "session": {"id": session}}
        return common | {"search": {"query": query.get(session or "", "q0")}} | more

    found = [event("search_click", click.page, 1 if click.early else 3, document={"id": click.doc}) for click in clicks]
    for page in pages:
        items = [{"document": {"id": doc}} for doc in page.docs]
        found.append(event("search", page.name, 2, search={"query": page.query, "results": {"items": items}}))
    return lines(folder / "events.ndjson", found, "elasticsearch", by_time=True)


def metarank(folder: Path, pages: list[Page], clicks: list[Click]) -> Written:
    """Rankings and interactions."""
    found: list[dict[str, Any]] = [
        {"event": "interaction", "id": f"i{number}", "ranking": click.page, "timestamp": str(EPOCH)}
        | {"type": "click", "item": click.doc, "fields": []}
        for number, click in enumerate(clicks)
    ]
    found += [
        {"event": "ranking", "id": page.name, "timestamp": str(EPOCH), "items": [{"id": doc} for doc in page.docs]}
        | {"fields": [{"name": "query", "value": page.query}]}
        for page in pages
    ]
    return lines(folder / "events.jsonl", found, "metarank")


def yandex(folder: Path, pages: list[Page], clicks: list[Click]) -> Written:
    """Actions of the Relevance Prediction Challenge; a click without a document is no line of it."""
    found = [f"{click.page}\t{1 if click.early else 3}\tC\t{click.doc}" for click in clicks]
    found += ["\t".join([page.name, "2", "Q", page.query, "0", *page.docs]) for page in pages]
    return lines(folder / "log.tsv", found, "yandex", by_time=True)


def ubi(folder: Path, pages: list[Page], clicks: list[Click]) -> Written:
    """Queries with hit lists, and events."""
    found: list[dict[str, Any]] = [
        {"action_name": "click", "query_id": click.page, "event_attributes": {"object": {"object_id": click.doc}}}
        for click in clicks
    ]
    found += [
        {"query_id": page.name, "user_query": page.query, "query_response_hit_ids": list(page.docs)} for page in pages
    ]
    return lines(folder / "ubi.ndjson", found, "ubi")


def listed(folder: Path, pages: list[Page], clicks: list[Click]) -> Written:
    """A row per page, which lists what was clicked: there is no click without its page."""
    rows = [(page.query, list(page.docs), [click.doc for click in clicks if click.page == page.name]) for page in pages]
    ids = pl.List(pl.String)
    frame = pl.DataFrame(rows, schema={"query": pl.String, "shown": ids, "chosen": ids}, orient="row")
    frame.write_parquet(folder / "pages.parquet")
    return Written((folder / "pages.parquet", "--doc", "shown", "--clicked", "chosen"))


Writer = Callable[[Path, list[Page], list[Click]], Written]
WRITERS: tuple[Writer, ...] = (table, events, visits, listed, elasticsearch, metarank, yandex, ubi)


def mutated(page: str | None, doc: str | None, how: str) -> list[Click]:
    """A click, changed."""
    changed = {
        "other form of the id": [Click(page, f"idx/{doc}")],
        "twice": [Click(page, doc), Click(page, doc)],
        "no such page": [Click(f"x{page}", doc)],
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
    pages = [
        Page(f"p{number}", f"q{number % 3}", tuple(random.sample("abcdef", size))) for number, size in enumerate(sizes)
    ]
    clicks = [Click(page.name, doc) for page in pages for doc in page.docs if random.random() < 0.5]
    kinds = draw(st.lists(st.sampled_from(MUTATIONS), max_size=2))
    share = draw(st.sampled_from((0.02, 0.1, 0.5, 1.0)))
    found: list[Click] = []
    for click in clicks:
        is_changed = kinds and random.random() < share
        found += mutated(click.page, click.doc, random.choice(kinds)) if is_changed else [click]
    missing = draw(st.sampled_from((0, 0, 0, 1, 3)))
    recorded = pages[missing:] or pages
    random.shuffle(recorded)
    random.shuffle(found)
    return recorded, found


class Expected(NamedTuple):
    """What becomes of clicks."""

    joined: set[tuple[str | None, str | None]]
    repeated: int
    lost: int


def brute_force(pages: list[Page], clicks: list[Click], *, by_time: bool) -> Expected:
    """Look for the page and the document of each click."""
    joined, repeated, lost = set[tuple[str | None, str | None]](), 0, 0
    for page, doc, early in clicks:
        if (early and by_time) or not any(shown.name == page and doc in shown.docs for shown in pages):
            lost += 1
        elif (page, doc) in joined:
            repeated += 1
        else:
            joined.add((page, doc))
    return Expected(joined, repeated, lost)


def check_counts(run: Run, folder: Path, writer: Writer, pages: list[Page], clicks: list[Click]) -> None:
    """Collect the log; exit code 0 means that it was counted as by brute force, and that hardly a click is lost."""
    if writer is listed:
        clicks = [click for click in clicks if click.page in {page.name for page in pages}]
    if writer is yandex:
        clicks = [click for click in clicks if click.page is not None and click.doc is not None]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    written = writer(folder, pages, clicks)
    expected = brute_force(pages, clicks, by_time=written.by_time)
    done = run("collect", *written.words, "-o", folder / "out", "--quiet")
    said = done.stderr.splitlines()
    if done.returncode == 2:
        assert len(said) == 1, done.stderr
        assert said[0].startswith("posbias: error: ")
        assert "bug" not in said[0]
        assert not expected.joined
        assert not (folder / "out").exists()
        return
    assert expected.joined or not clicks, done.stderr
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    assert manifest["statistics"]["impressions"] == sum(len(page.docs) for page in pages)
    assert manifest["statistics"]["clicks"] == len(expected.joined)
    counted = manifest["rows"]["clicks"]
    assert counted["read"] == len(clicks)
    found = Expected(expected.joined, counted["repeated"], sum(counted["lost"].values()))
    assert (counted["joined"], found) == (len(expected.joined), expected)
    share = expected.lost / max(len(clicks), 1)
    about_clicks = [line for line in said if "no impression fits them" in line]
    assert all(line.startswith(("! ", "✘ ")) for line in said)
    assert len(about_clicks) == (share > SHARE_NAMED)
    assert done.returncode == (1 if share > SHARE_BORNE else 0), done.stderr


QUICK = settings(
    deadline=None, derandomize=True, max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("writer", WRITERS)
@QUICK
@given(log=logs())
def test_what_is_read_of_joined_clicks_is_what_brute_force_finds(
    run_in_process: Run, tmp_path: Path, writer: Writer, log: tuple[list[Page], list[Click]]
) -> None:
    check_counts(run_in_process, tmp_path / "log", writer, *log)


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
@settings(QUICK, max_examples=25)
@given(log=logs())
def test_what_is_read_of_joined_clicks_is_what_brute_force_finds_in_many_logs(
    run_in_process: Run, tmp_path: Path, writer: Writer, log: tuple[list[Page], list[Click]]
) -> None:
    check_counts(run_in_process, tmp_path / "log", writer, *log)


def half_lost(log: pl.DataFrame, share: float) -> tuple[list[Page], list[Click]]:
    """The log as pages and clicks, those of a share of the pages at position 1 under another form of the id."""
    pages, clicks = list[Page](), list[Click]()
    ordered = log.sort("session", "position").with_columns(pl.col("session", "doc").cast(pl.String))
    for number, page in enumerate(ordered.partition_by("session", maintain_order=True)):
        docs = tuple(page["doc"])
        pages.append(Page(page["session"][0], page["query"][0], docs))
        for at, doc in enumerate(page.filter(pl.col("click") == 1)["doc"]):
            is_other = number % 100 < 100 * share and at == 0
            clicks.append(Click(pages[-1].name, f"idx/{doc}" if is_other else doc))
    return pages, clicks


@pytest.mark.parametrize("writer", [table, events, listed, elasticsearch, metarank, yandex, ubi])
@pytest.mark.parametrize("command", ["fit", "collect"])
@pytest.mark.slow_after(4)
def test_a_log_that_loses_many_clicks_is_in_doubt_and_the_ids_are_named_although_quiet(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, command: str, writer: Writer
) -> None:
    words = writer(tmp_path, *half_lost(log, 0.7)).words
    done = run_in_process(command, *words, "-o", tmp_path / "out", "--quiet")
    assert done.returncode == 1, done.stderr
    assert "✘ Do not rely on this log: " in done.stderr
    assert "Clicks name 'idx/10" in done.stderr
    assert " (closest that was shown: '10" in done.stderr
    assert any("are lost" in said for said in json.loads((tmp_path / "out" / "manifest.json").read_text())["warnings"])


@pytest.mark.parametrize("writer", [table, events, listed, elasticsearch, metarank, yandex, ubi])
@pytest.mark.parametrize("into", [("-o", "out"), ("--into", "out", "--date", "2026-01-05")])
@pytest.mark.slow_after(4)
def test_a_log_in_which_no_click_has_an_impression_is_refused(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, writer: Writer, into: tuple[str, ...]
) -> None:
    pages, clicks = half_lost(log, 0)
    words = writer(tmp_path, pages, [click._replace(doc=f"idx/{click.doc}") for click in clicks]).words
    done = run_in_process("collect", *words, *into, "--quiet")
    assert done.returncode == 2
    assert "no click has an impression" in done.stderr
    assert "Clicks name 'idx/10" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["fit", "run", "weight", "evaluate --models pbm,dbn", "fit --for-each market"])
def test_every_command_judges_lost_clicks_alike(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, command: str
) -> None:
    words = table(tmp_path, *half_lost(log, 0.7)).words
    pl.read_parquet(words[0]).with_columns(market=pl.lit("m")).write_parquet(tmp_path / "shown.parquet")
    of_fit: tuple[str | Path, ...] = ()
    if command == "weight":
        log.with_columns(pl.col("session", "doc").cast(pl.String)).write_parquet(tmp_path / "log.parquet")
        assert run_in_process("fit", tmp_path / "log.parquet", "-o", tmp_path / "fit").returncode == 0
        of_fit = ("--propensities", tmp_path / "fit")
    name, *options = command.split()
    done = run_in_process(name, *words, *options, *of_fit, "-o", tmp_path / "out", "--quiet")
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("Do not rely on this log") == 1


def test_check_says_that_a_log_loses_clicks(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    done = run_in_process("check", *table(tmp_path, *half_lost(log, 0.7)).words, "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert any(reason["sentence"].startswith("Do not rely on this log") for reason in found["reasons"])
    assert found["rows"]["clicks"]["lost"]


def test_statistics_remember_the_clicks_that_their_logs_lost(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    run_in_process("collect", *table(tmp_path, *half_lost(log, 0.7)).words, "-o", tmp_path / "statistics")
    done = run_in_process("fit", tmp_path / "statistics", "-o", tmp_path / "out", "--quiet")
    assert done.returncode == 1, done.stderr
    assert "Do not rely on this log" in done.stderr


def test_a_day_that_loses_clicks_is_named_although_the_store_does_not(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    pages, clicks = half_lost(log, 0)
    for day, lost in (("2026-01-05", 0), ("2026-01-06", 0), ("2026-01-07", 4)):
        damaged = [click._replace(doc="z") if number < lost else click for number, click in enumerate(clicks[:40])]
        folder = tmp_path / day
        folder.mkdir()
        words = table(
            folder,
            [page._replace(name=f"{day} {page.name}") for page in pages],
            [click._replace(page=f"{day} {click.page}") for click in damaged],
        ).words
        done = run_in_process("collect", *words, "--into", tmp_path / "store", "--date", day, "--quiet")
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
    found = json.loads((tmp_path / "out" / "manifest.json").read_text())["rows"]["clicks"]["by_position"]
    assert found["1"] == {"read": at_first, "lost": lost}
    assert found["2"] == {"read": clicked.filter(pl.col("rank") == 2).height, "lost": 0}
    assert f"by the position that clicks name: {lost / at_first:.0%} at 1, 0% at 2" in done.stderr


@pytest.mark.parametrize(("name", "refused"), [("rnd-{}", True), ("{}0", False)])
def test_few_lost_clicks_refuse_a_log_where_their_ids_have_an_addition(name: str, *, refused: bool) -> None:
    counts = Clicks(1000, 980, 0, {Fate.OTHER_PAGE.words: 20}, {})
    (reason,) = lost_clicks(counts, [Example(Fate.OTHER_PAGE, name.format("17"), "17")])

    assert is_refused([reason]) is refused
    assert ("All clicks of such ids are lost" in reason.sentence) is refused
