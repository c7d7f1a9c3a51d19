"""A log in every form: recognised by `check`, read by the command that it gives, and counted as the plain log."""

import re
import shlex
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path

import polars as pl
import pytest
from checked_logs import checked
from command_results import Output, Posbias, Run, invoke, manifest_of
from log_faults import write_small
from log_forms import FORMS, Form, Log, small_log, write

from posbias.io.forms.page_structure import find_lists
from posbias.io.forms.recognition import find_form
from posbias.io.log.sources import find_sources
from posbias.io.sources import NAMES

FAST = (
    *("well-known names", "names that are guessed", "a second row for each click", "sums of the README", "semicolons"),
    *("two tables", "events", "visits", "lists", "structs", "clicked ids as text", "mind", "metarank's feed"),
    *("behavioral analytics", "personalized search", "ubi, impressions as events", "algolia"),
)
"""Forms of the default suite: of each reader."""

BY_SPEED = [form if form in FAST else pytest.param(form, marks=pytest.mark.slow) for form in FORMS]

Expected = Callable[..., pl.DataFrame]


def counts(output: Path) -> pl.DataFrame:
    """Return impressions and clicks by everything but the period, as text in one order."""
    rows = pl.read_parquet(output / "part-*.parquet", hive_partitioning=False)
    keys = sorted({*rows.columns} - {"impressions", "clicks", "period"})
    return rows.group_by(pl.col(keys).cast(pl.String)).agg(pl.sum("impressions", "clicks").cast(pl.Int64)).sort(keys)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """Return a function that returns the counts of the plain log under options."""

    @cache
    def of(*options: str) -> pl.DataFrame:
        folder = tmp_path_factory.mktemp("plain")
        plain = write(folder, FORMS["well-known names"].write(small_log()))
        invoke("collect", *plain, "--timestamp", "none", *options, "-o", folder / "out")
        return counts(folder / "out")

    return of


def plain_options(form: Form, *options: str) -> tuple[str, ...]:
    return (*options, "--no-query") if form.no_query else options


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_SPEED)
def test_a_log_of_any_form_is_recognised_and_counted_as_the_plain_log(
    run_in_process: Run, expected: Expected, tmp_path: Path, name: str
) -> None:
    form = FORMS[name]
    files = [path.relative_to(tmp_path) for path in write(tmp_path, form.write(small_log()))]
    words = form.words(files)
    if form.found is not None:
        found = checked(run_in_process, *files)
        words = found["command"][1:]
        assert sorted(found["command"]) == sorted(["run", *map(str, files), *form.words_found()])
        assert found["command"][: len(files) + 1] == ["run", *map(str, files)]
        assert found["carries_estimate"] is True
        totals = (found["totals"]["impressions"], found["totals"]["clicks"])
        assert totals == (1200, len(small_log().clicks))

    run_in_process("collect", *words, "-o", "out", code=0)

    assert counts(tmp_path / "out").equals(expected(*plain_options(form)))
    clicks = Output(tmp_path / "out").manifest["rows"].get("clicks")
    if clicks is not None:
        assert clicks["read"] - clicks["repeated"] == clicks["joined"] == len(small_log().clicks)
        assert clicks["lost"] == {}


OF_PAGES = [name for name in FORMS if "sums" not in name and not FORMS[name].no_query]
FAST_OF_PAGES = (("visits", "memory"), ("structs", "memory"), ("events", "buckets"), ("ubi", "buckets"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "engine"),
    [
        case if case in FAST_OF_PAGES else pytest.param(*case, marks=pytest.mark.slow)
        for case in product(OF_PAGES, ("memory", "buckets"))
    ],
)
def test_whole_pages_of_any_form_are_those_of_the_plain_log_by_each_engine(
    run_in_process: Run, expected: Expected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, engine: str
) -> None:
    files = write(tmp_path, FORMS[name].write(small_log()), "parquet" if engine == "buckets" else "csv")
    if engine == "buckets":
        monkeypatch.setattr("posbias.io.engines.local._ROWS_THAT_STAY_IN_CACHE", 100)

    run_in_process("collect", *FORMS[name].words(files), "--model", "ubm", "-o", "out", code=0)

    assert counts(tmp_path / "out").equals(expected("--model", "ubm"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in BY_SPEED if not isinstance(name, str) or name in {"mind", "semicolons"}]
)
def test_the_command_that_check_prints_is_run(run_in_process: Run, tmp_path: Path, name: str) -> None:
    form = FORMS[name]
    files = [path.relative_to(tmp_path) for path in write(tmp_path, form.write(small_log()))]
    if form.found is None:
        return

    _, following, *_ = run_in_process("check", *files, code=0).stdout.splitlines()
    posbias, *words = shlex.split(following.removeprefix("next: "))

    assert sorted(words) == sorted(["run", *map(str, files), *form.words_found(), "-o", "result"])
    assert (posbias, run_in_process(*words).returncode) == ("posbias", 0)


def test_every_source_and_every_line_of_the_table_is_a_form(repository: Path) -> None:
    document = (repository / "io" / "log" / "README.md").read_text(encoding="utf-8")
    table = document.partition("## Your log is in\n")[2].partition("\n## ")[0]
    lines = list[str]()
    for first, others in re.findall(r"\| `posbias run LOG ?([^`]*?) ?-o out`(?: \((.*)\))? \|", table):
        lines += [first, *(f"{first.rpartition(' ')[0]} {name}" for name in re.findall(r"`(\w+)`", others))]
    options = {form.options.replace("page-size 2", "page-size 10") for form in FORMS.values()}

    assert len(lines) > len(NAMES) + 15
    assert {*lines} <= options
    assert {f"--input-format {name}" for name in NAMES} <= options


@pytest.mark.slow
def test_lists_and_events_are_named_as_what_they_are(run_in_process: Run, tmp_path: Path) -> None:
    for name, form in {"lists": "nested", "well-known names": "flat"}.items():
        (file,) = write(tmp_path, FORMS[name].write(small_log()))
        assert checked(run_in_process, file)["recognised"]["form"] == form


GUESSES = ("clicks behind ids", "semicolons", "names that are guessed")


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("name", ["metarank", "events", "clicked ids as text", "JSON in cells", *GUESSES])
def test_what_could_be_otherwise_is_a_guess(run_in_process: Run, tmp_path: Path, name: str) -> None:
    files = write(tmp_path, FORMS[name].write(small_log()))
    findings = checked(run_in_process, *files)["recognised"]["findings"]
    assert all(finding["certain"] for finding in findings) == (name not in GUESSES)


def in_several_files(log: Log, name: str, folder: Path) -> list[Path]:
    """Write a log whose lines lie in two files, one of them compressed."""
    (file,) = write(folder, FORMS[name].write(log))
    lines = file.read_text(encoding="utf-8").splitlines()
    half = len(lines) // 2
    (folder / "halves").mkdir()
    return write(folder / "halves", {f"a{file.suffix}": lines[:half], f"b{file.suffix}.gz": lines[half:]})


@pytest.mark.parametrize("name", ["metarank", "behavioral analytics", "relevance prediction", "personalized search"])
@pytest.mark.slow
def test_several_files_of_a_source_are_one_log(
    run_in_process: Run, expected: Expected, tmp_path: Path, name: str
) -> None:
    run_in_process("collect", *FORMS[name].words(in_several_files(small_log(), name, tmp_path)), "-o", "out", code=0)

    assert counts(tmp_path / "out").equals(expected())
    assert manifest_of(tmp_path / "out")["rows"]["clicks"]["lost"] == {}


def test_a_source_with_odd_lines_is_a_guess(run_in_process: Run, tmp_path: Path) -> None:
    (file,) = write_small(tmp_path, "metarank", ["{}"])
    (finding,) = checked(run_in_process, file, code=1)["recognised"]["findings"]
    assert finding["options"] == ["--input-format", "metarank"]
    assert not finding["certain"]
    assert "5 of the first 6 lines look like events of Metarank" in finding["said"]


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("suffix", ["csv", "parquet", "ndjson"])
@pytest.mark.parametrize(
    ("shown", "clicked", "certain"),
    [("impression", "click", True), ("IMPRESSION", "Click", True), ("view", "tap", False)],
)
def test_a_table_of_events_is_recognised_with_the_options_that_read_it(
    posbias: Posbias, tmp_path: Path, suffix: str, shown: str, clicked: str, *, certain: bool
) -> None:
    rows = [*((shown, "p1", "q", doc, at) for at, doc in enumerate("ab", 1)), (clicked, "p1", "q", "b", 2)]
    schema = ["what", "session", "query", "doc", "position"]
    table = pl.DataFrame([*rows, ("scroll", "p1", "", "", 0)], schema=schema, orient="row")
    (path,) = write(tmp_path, {f"events.{suffix}": table})
    (finding,) = find_form(find_sources([str(path)]))
    assert finding.options == ("--impression-where", f"what={shown}", "--click-where", f"what={clicked}")
    assert finding.certain == certain
    assert f"'what' holds {shown} (2), {clicked} (1), scroll (1) in the sample" in finding.text
    assert posbias("collect", path, *finding.options).manifest["statistics"]["clicks"] == 1


def test_impressions_and_clicks_in_files_of_their_own_are_a_table_of_events(log: pl.DataFrame, tmp_path: Path) -> None:
    kinds = ("impression", "click")
    files = write(tmp_path, {kind: log.drop("click").with_columns(event_type=pl.lit(kind)) for kind in kinds})
    (finding,) = find_form(find_sources([str(file) for file in files]))
    assert finding.options == ("--impression-where", "event_type=impression", "--click-where", "event_type=click")


def test_rows_and_pages_are_no_events(log: pl.DataFrame, tmp_path: Path) -> None:
    flat = log.with_columns(device=pl.lit("phone"), title=pl.format("click {}", "doc"))
    nested = log.group_by("session", "query").agg("doc", "click")
    for file in write(tmp_path, {"a.parquet": flat, "a.csv": flat, "a.ndjson": flat, "nested.ndjson": nested}):
        assert find_form(find_sources([str(file)])) == []
    assert find_lists(find_sources(list(map(str, write(tmp_path, {"flat": log}))))) == []
