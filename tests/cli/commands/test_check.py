"""`posbias check`: what a log holds, what is wrong with it, and the command or file of options that reads it."""

import gzip
import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from checked_logs import POSITIONS, checked, good_log
from command_results import manifest_of
from log_forms import sums
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate

CLICK = pl.col("click")


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Return a log that needs no option, without times."""
    return good_log().drop("timestamp")


def totals_of_run(run: Run, command: list[str], folder: Path) -> dict[str, Any]:
    """What the main job counts with the command that was found."""
    run(*command, "-o", "out", "--no-compare", code=(0, 1))
    return manifest_of(folder / "out")["totals"]


@pytest.mark.slow
def test_packed_json_in_a_directory_is_a_log_and_plain_json_there_is_none(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "log.json.gz").write_bytes(gzip.compress(log.write_ndjson().encode()))
    (folder / "settings.json").write_text("{}", encoding="utf-8")

    assert checked(run_in_process, "logs")["totals"]["impressions"] == log.height


@pytest.mark.slow
def test_clicks_apart_and_whatever_the_user_says_are_kept_in_the_command(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    log.drop("click").rename({"doc": "artikel"}).write_csv(tmp_path / "shown.csv")
    log.filter(CLICK == 1).select("session", artikel="doc").write_csv(tmp_path / "clicks.csv")
    said = ["--clicks", "clicks.csv", "--doc", "artikel", "--clicks-doc", "artikel", "--max-position", "4"]

    found = checked(run_in_process, "shown.csv", *said)

    assert found["command"][:2] == ["run", "shown.csv"]
    pairs = zip(said[::2], said[1::2], strict=True)
    held = list(zip(found["command"][2::2], found["command"][3::2], strict=True))
    assert sorted(held) == sorted(pairs)
    within = log.filter(pl.col("position") <= 4)
    assert totals_of_run(run_in_process, found["command"], tmp_path)["clicks"] == within["click"].sum()


@pytest.mark.slow
def test_what_would_have_no_effect_on_a_run_is_not_in_the_command(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    log.write_csv(tmp_path / "log.csv")
    (tmp_path / "posbias.toml").write_text('click-actions = "tap"\nmax-bad-rows = 0.1\n', encoding="utf-8")

    found = checked(run_in_process, "log.csv")
    (tmp_path / "posbias.toml").unlink()

    assert found["command"] == ["run", "log.csv"]
    assert totals_of_run(run_in_process, found["command"], tmp_path)["impressions"] == log.height


def test_rows_that_stand_twice_are_said_to_do_so(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    pl.concat([log, log]).write_parquet(tmp_path / "log.parquet")

    found = checked(run_in_process, "log.parquet")

    assert found["command"] == ["run", "log.parquet", "--duplicate-docs", "first"]
    assert found["rows"]["rejected"] == {"the row stands twice": log.height}
    assert "100.00% of the pages hold rows twice" in found["recognised"]["findings"][0]["said"]


@pytest.mark.slow
def test_a_few_bad_rows_and_documents_twice_on_a_page_are_counted_and_said(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    # On one page in twenty, the document at the top stands at the end once more.
    twice = (pl.col("session") % 20 == 0) & (pl.col("position") == POSITIONS)
    first = pl.col("doc").first().over("session", order_by="position")
    no_doc = pl.col("session").is_in([7, 8])
    broken = log.with_columns(pl.when(twice).then(first).when(no_doc).then(None).otherwise("doc").alias("doc"))
    broken.write_csv(tmp_path / "log.csv")

    found = checked(run_in_process, "log.csv")

    assert found["command"] == ["run", "log.csv", "--on-bad-rows", "drop", "--duplicate-docs", "first"]
    assert found["rows"]["rejected"]["the document is missing"] == 2 * POSITIONS
    assert found["rows"]["rejected"]["the document stands further up on the page"] == 150
    totals = totals_of_run(run_in_process, found["command"], tmp_path)
    assert totals["impressions"] == found["totals"]["impressions"] == found["rows"]["used"]


def test_nothing_is_guessed_from_values_where_rows_are_in_no_order(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    shuffled = log.sample(fraction=1, shuffle=True, seed=1).with_columns(chance=pl.col("doc").hash() / 2**64)
    shuffled.drop("session").rename({"query": "suche"}).write_parquet(tmp_path / "log.parquet")

    done = run_in_process("check", "log.parquet", code=2)

    assert "no column looks like the query" in done.stderr


# --- what is wrong --------------------------------------------------------------------------------------------


def test_robots_large_clients_gaps_and_late_pages_are_warned_of(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    robot = pl.col("session") % 10 == 0
    odd = log.with_columns(
        pl.when(robot).then(1).otherwise(CLICK).alias("click"),
        client=pl.when(robot).then(pl.lit("crawler")).otherwise(pl.col("session").cast(pl.String)),
    ).filter(~((pl.col("session") % 10 == 1) & (pl.col("position") == 1)))
    odd.filter(~((pl.col("session") % 10 == 2) & (pl.col("position") == 3))).write_parquet(tmp_path / "log.parquet")

    found = checked(run_in_process, "log.parquet", code=1)
    warnings = " ".join(found["warnings"])

    assert found["pages"]["clicked_in_full"] >= 300
    assert f"{found['pages']['clicked_in_full']} of 3,000 pages of 4 results or more are clicked in full" in warnings
    assert "1 of 2,701 clients (client 'crawler') has 10.4% of the impressions" in warnings
    assert "10.0% of the pages start below position 1" in warnings
    assert "10.0% of the pages lack positions" in warnings


@pytest.mark.slow
def test_robots_stop_check_and_run_and_the_query_that_is_named_leaves_them_out(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    robot = pl.col("session") % 10 == 0
    user = pl.when(robot).then(pl.col("session") // 10 % 3 + 9000).otherwise("session")
    half = (pl.concat_str("session", "position").hash() % 2).cast(pl.Int8)
    log.with_columns(pl.when(robot).then(half).otherwise("click").alias("click"), user_id=user).write_csv(
        tmp_path / "log.csv"
    )

    found = checked(run_in_process, "log.csv", code=1)
    ran = run_in_process("run", "log.csv", "-o", "out", "--no-compare", code=1)
    (reason,) = (reason for reason in found["reasons"] if reason["code"] == "robot-clients")
    query = re.search('--sql "(.*)"', reason["sentence"])

    assert reason in manifest_of(tmp_path / "out")["reasons"]
    assert reason["sentence"] in " ".join(ran.stderr.split())
    assert query is not None
    assert "robot-clients" not in {
        reason["code"] for reason in checked(run_in_process, "log.csv", "--sql", query[1])["reasons"]
    }


@pytest.mark.slow
def test_a_table_of_sums_without_rows_of_no_click_is_not_used(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    table = log.group_by("query", "doc", "position").agg(impressions=pl.len(), click=CLICK.cast(pl.Int64).sum())
    table.write_csv(tmp_path / "whole.csv")
    table.filter(CLICK > 0).write_csv(tmp_path / "clicked.csv")
    code = "rows-without-clicks-missing"

    assert code not in {reason["code"] for reason in checked(run_in_process, "whole.csv")["reasons"]}
    assert code in {reason["code"] for reason in checked(run_in_process, "clicked.csv", code=1)["reasons"]}
    for command in ("collect", "fit"):
        read = ("clicked.csv", "--impressions", "impressions", "-o", command)
        run_in_process(command, *read, code=1)
        assert code in {reason["code"] for reason in manifest_of(tmp_path / command)["reasons"]}


def test_sums_with_marks_between_thousands_are_whole_numbers(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    table = sums(log).with_columns(pl.col("views", "clicks") * 60)
    in_words = (pl.col(name).map_elements("{:,}".format, pl.String) for name in ("views", "clicks"))
    table.with_columns(in_words).write_csv(tmp_path / "log.csv")
    read = ("log.csv", "--impressions", "views")

    found = checked(run_in_process, *read)
    refused = run_in_process("collect", *read, "--decimal", ",", "-o", "out", code=2)

    assert "--decimal" not in found["command"]
    assert "--on-bad-rows" not in found["command"]
    assert (found["totals"]["impressions"], found["totals"]["clicks"]) == table.select("views", "clicks").sum().row(0)
    assert "If commas stand between thousands here, leave out --decimal ,." in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("session", [True, False])
def test_a_few_rows_at_position_0_are_of_unknown_position(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, *, session: bool
) -> None:
    unknown = pl.concat_str("session", "position").hash() % 25 == 0
    odd = log.with_columns(pl.when(unknown).then(0).otherwise("position").alias("position"))
    odd = odd.unique(["session", "position"], keep="first", maintain_order=True)
    (odd if session else odd.drop("session")).write_csv(tmp_path / "log.csv")

    found = checked(run_in_process, "log.csv")
    refused = run_in_process("fit", "log.csv", "-o", "fit")
    run_in_process("fit", "log.csv", "--position-base", "0", "-o", "fit")

    assert found["command"] == ["run", "log.csv", "--on-bad-rows", "drop"]
    assert found["totals"]["impressions"] == odd.filter(pl.col("position") > 0).height
    assert "0 seems to mean that the position is unknown" in refused.stderr
    assert "--position-base" not in refused.stderr
    by_hand = checked(run_in_process, "log.csv", "--position-base", "0")["reasons"]
    for reasons in (by_hand, manifest_of(tmp_path / "fit")["reasons"]):
        assert "top-seldom-shown" in {reason["code"] for reason in reasons}


@pytest.mark.slow
def test_one_value_that_stands_for_unknown_sessions_is_named_with_the_query_that_reads_all_rows(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    lost = pl.when(pl.col("session") % 3 > 0).then(pl.format("s{}", "session")).otherwise(pl.lit("undefined"))
    log.with_columns(lost.alias("session")).write_csv(tmp_path / "log.csv")
    query = "SELECT * EXCLUDE (session) FROM log"

    found = checked(run_in_process, "log.csv", code=1)["recognised"]["findings"]

    assert any(
        "only 'undefined' cannot be one page" in finding["said"] and query in finding["said"] for finding in found
    )
    assert "Only 'undefined' cannot be one page" in run_in_process("run", "log.csv", "-o", "out", code=2).stderr
    assert checked(run_in_process, "log.csv", "--sql", query)["totals"]["impressions"] == log.height


@pytest.mark.slow
def test_a_file_that_ends_within_a_row_seems_to_be_cut_off(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    file = tmp_path / "log.csv"
    log.write_csv(file)
    file.write_bytes(file.read_bytes()[:-3])
    cut = "log.csv ends in the middle of a row: it seems to be cut off"

    assert cut in checked(run_in_process, "log.csv")["recognised"]["findings"][0]["said"]
    assert cut in run_in_process("run", "log.csv", "-o", "out", code=2).stderr


def test_a_reason_of_several_lines_is_printed_as_lines(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    log.with_columns(pl.col("session") // 3, query=pl.lit("q")).write_csv(tmp_path / "log.csv")

    printed = run_in_process("check", "log.csv").stdout

    assert "\\n" not in printed
    assert "1,000 sessions cannot be one results page each:\n" in printed


def test_sessions_of_one_row_each_are_no_pages(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    log.with_row_index("row").with_columns(session="row").drop("row").write_parquet(tmp_path / "log.parquet")

    _, warning = checked(run_in_process, "log.parquet")["warnings"]  # after that on times

    assert "The 15,000 pages have 1.0 results each, most of them below position 1" in warning


def test_a_log_without_sessions_says_why_ubm_needs_them(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    log.drop("session").write_parquet(tmp_path / "log.parquet")

    found = checked(run_in_process, "log.parquet")
    wanted = checked(run_in_process, "log.parquet", "--model", "pbm")

    assert found["models"]["ubm"]["reason"] == "it needs whole pages, and the log has no session column"
    assert found["pages"] is None
    assert found["models"]["pbm"]["can_be_estimated"]
    assert wanted["command"] == ["run", "log.parquet", "--model", "pbm"]


# --- standard errors ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_of_many_parts_some_tell_the_errors_of_all(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_parquet(tmp_path / "log.parquet")

    whole = checked(run_in_process, "log.parquet")
    monkeypatch.setattr("posbias.io.engines.local._ROWS_THAT_STAY_IN_CACHE", 1000)
    monkeypatch.setattr("posbias.io.counting.profile.MOST_PARTS", 6)
    sample = checked(run_in_process, "log.parquet")

    assert 0.2 < sample["models"]["pbm"]["share_of_queries"] < 0.7
    assert (whole["totals"]["pairs_exact"], sample["totals"]["pairs_exact"]) == (True, False)
    for name in ("impressions", "clicks", "queries", "documents"):
        assert sample["totals"][name] == whole["totals"][name]
    assert sample["totals"]["pairs"] == pytest.approx(whole["totals"]["pairs"], rel=0.05)
    errors = [[cell["std_error"] for cell in found["models"]["pbm"]["cells"][1:]] for found in (sample, whole)]
    assert errors[0] == pytest.approx(errors[1], rel=0.5)
    assert "(query, doc) pairs" in run_in_process("check", "log.parquet").stdout.partition("about")[2]


CLICKED: dict[str, pl.Expr] = {
    "robots": (pl.col("session") % 30 == 0) & (pl.col("position") % 5 > 0),
    "the first result plays by itself": (pl.col("session") % 5 == 0) & (pl.col("position") == 1),
    "the next result plays by itself": CLICK.shift(1).over("session", order_by="position") == 1,
    "nothing": pl.lit(value=False),
}


@pytest.mark.parametrize("what", CLICKED)
@pytest.mark.slow_after(1)
def test_check_doubts_what_a_fit_of_the_same_pages_doubts(run_in_process: Run, tmp_path: Path, what: str) -> None:
    log = good_log().with_columns(click=(CLICK == 1) | CLICKED[what].fill_null(value=False)).cast({"click": pl.Int8})
    log.write_parquet(tmp_path / "log.parquet")

    found = checked(run_in_process, "log.parquet", code=None)["reasons"]
    run_in_process("fit", "log.parquet", "--no-compare", "-o", "fit")

    of_fit = manifest_of(tmp_path / "fit")["reasons"]
    said, doubted = (
        {(one["code"], one["severity"]) for one in of if one["severity"] in {"caution", "stop"}}
        for of in (found, of_fit)
    )
    assert said >= doubted
    assert bool(doubted) is (what != "nothing")


# --- how it is said -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "rows_of_each"), [(50, 40_000), (80, 1), (120, 40_000)])
def test_the_table_for_people_fits_the_terminal_and_cuts_no_number(
    *,
    run_in_process: Run,
    log: pl.DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    rows_of_each: int,
) -> None:
    log.with_columns(copies=pl.lit(rows_of_each)).write_parquet(tmp_path / "log.parquet")
    monkeypatch.setattr("posbias.cli.commands._WIDTH", width)

    done = run_in_process("check", "log.parquet", "--weight-column", "copies", code=0)

    conclusion, command, *report = done.stdout.splitlines()
    assert conclusion.startswith("! With care, if the ranker did not learn from these clicks: ")
    assert command == "next: posbias run log.parquet --weight-column copies -o result"
    assert max(len(line) for line in report if line[:2] not in {"- ", "! "}) <= width
    assert "…" not in done.stdout
    assert done.stderr == ""


@pytest.mark.slow
def test_quiet_says_only_what_is_wrong(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    good_log().write_parquet(tmp_path / "good.parquet")
    log.filter(CLICK == 1).write_parquet(tmp_path / "bad.parquet")

    good, bad = run_in_process("check", "good.parquet", "--quiet"), run_in_process("check", "bad.parquet", "--quiet")

    assert (good.returncode, good.stdout, good.stderr) == (0, "", "")
    assert (bad.returncode, bad.stdout) == (1, "")
    assert "This looks like a log of clicks only" in bad.stderr
    run_in_process("check", "bad.parquet", "--write-config", "posbias.toml", code=1)
    assert (tmp_path / "posbias.toml").is_file()


def test_nothing_is_written(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    log.write_parquet(tmp_path / "log.parquet")
    (tmp_path / "scratch").mkdir()

    run_in_process("check", "log.parquet", "--temp-dir", "scratch", code=0)

    assert sorted(path.name for path in tmp_path.rglob("*")) == ["log.parquet", "scratch"]


def test_a_log_without_rows_carries_no_estimate(run_in_process: Run, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("session,query,doc,position,click\n", encoding="utf-8")

    assert checked(run_in_process, "log.csv", code=1)["reasons"][0]["sentence"] == "log.csv: the log holds no rows."


WRITE = ("check", "log.csv", "--write-config", "posbias.toml")


@pytest.fixture(scope="module")
def renamed() -> pl.DataFrame:
    """Return a log that cannot be read without options."""
    options = SimulationOptions(
        n_sessions=2000, n_queries=60, n_positions=4, docs_per_query=6, query_exponent=0.3, days=2, seed=2
    )
    made = simulate(options).log.rename({"doc": "sku", "query": "our search", "click": "clicked"})
    return made.with_columns(pl.col("position") - 1, pl.col("session") // 2)


def options_of(folder: Path) -> dict[str, Any]:
    return manifest_of(folder)["options"]


@pytest.mark.slow
def test_run_with_the_file_does_what_the_command_of_check_does(
    run_in_process: Run, renamed: pl.DataFrame, tmp_path: Path
) -> None:
    renamed.write_csv(tmp_path / "log.csv")
    command = json.loads(run_in_process("check", "log.csv", "--json").stdout)["command"]

    by_flags = run_in_process(*command, "-o", "by-flags", "--no-compare")
    made = run_in_process(*WRITE, code=0)
    by_file = run_in_process("run", "log.csv", "-o", "by-file", "--no-compare")

    assert made.stderr == "written: posbias.toml. Read it, then: posbias run LOGS -o DIR\n"
    assert by_flags.returncode == by_file.returncode
    assert options_of(tmp_path / "by-file") == options_of(tmp_path / "by-flags")
    table = "propensities.parquet"
    assert (tmp_path / "by-file" / table).read_bytes() == (tmp_path / "by-flags" / table).read_bytes()


@pytest.mark.slow
def test_every_option_has_its_reason_above_it(run_in_process: Run, renamed: pl.DataFrame, tmp_path: Path) -> None:
    renamed.write_csv(tmp_path / "log.csv")

    run_in_process(*WRITE, "--max-position", "3", code=0)

    lines = (tmp_path / "posbias.toml").read_text(encoding="utf-8").splitlines()
    assert tomllib.loads("\n".join(lines)) == {
        "query": "our search",
        "doc": "sku",
        "position-base": 0,
        "session": ["session", "timestamp"],
        "timestamp": "timestamp",
        "max-position": 3,
    }
    settings = [at for at, line in enumerate(lines) if line and not line.startswith("#")]
    assert all(lines[at - 1].startswith("#") for at in settings)
    assert "# the query is taken to be column 'our search' (a guess: see whether it is right)" in lines


MAKE: dict[str, Callable[[Path], object]] = {
    "link": lambda target: target.symlink_to("../other.toml"),
    "link to nothing": lambda target: target.symlink_to("gone"),
    "directory": Path.mkdir,
    "FIFO": os.mkfifo,
}


@pytest.mark.parametrize("kind", MAKE)
def test_what_is_no_plain_file_is_not_replaced(
    run_in_process: Run, renamed: pl.DataFrame, tmp_path: Path, kind: str
) -> None:
    here, other = tmp_path / "here", tmp_path / "other.toml"
    here.mkdir()
    renamed.write_csv(here / "log.csv")
    other.write_text("", encoding="utf-8")
    MAKE[kind](here / "posbias.toml")

    for force, says in (((), "posbias.toml: already exists"), (("--force",), "posbias.toml: is not replaced")):
        assert says in run_in_process(*WRITE, *force, "--config", other, cwd=here, code=2).stderr

    assert other.read_text(encoding="utf-8") == ""
    assert sorted(path.name for path in here.iterdir()) == ["log.csv", "posbias.toml"]


@pytest.mark.slow
def test_a_disk_that_cannot_be_written_is_an_error(
    run_in_process: Run, renamed: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed.write_csv(tmp_path / "log.csv")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("posbias.io.results.outputs.os.fsync", full)
    done = run_in_process(*WRITE, code=2)

    said = "posbias.toml: cannot be written: No space left on device. Nothing was written."
    assert done.stderr == f"posbias: error: {said}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


@pytest.mark.slow
def test_names_that_would_break_the_file_are_written_as_they_are(
    run_in_process: Run, renamed: pl.DataFrame, tmp_path: Path
) -> None:
    name = 'a "strange" \\ näme 🙂'
    renamed.rename({"sku": name}).write_parquet(tmp_path / "log.parquet")

    run_in_process("check", "log.parquet", *WRITE[2:], "--doc", name, code=0)

    assert tomllib.loads((tmp_path / "posbias.toml").read_text(encoding="utf-8"))["doc"] == name
    run_in_process("collect", "log.parquet", "-o", "out", code=0)


@pytest.mark.slow
def test_a_column_is_the_position_by_what_it_holds_rather_than_by_its_name(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    before = pl.col("position").shuffle(1).over("session").cast(pl.Float64)
    log.with_columns(prev_rank=before).rename({"position": "shown_at"}).write_csv(tmp_path / "log.csv")

    assert checked(run_in_process, "log.csv")["command"] == ["run", "log.csv", "--position", "shown_at"]


# --- cells of several columns ---------------------------------------------------------------------------------


def below_blocks(log: pl.DataFrame, name: str) -> pl.DataFrame:
    """The log, a third of its pages below a block that takes a half of the clicks at the top, and none at the end."""
    taken = pl.concat_str("session", "position").hash(3) % 100 < 70 - 14 * pl.col("position")
    below = pl.col("session") % 3 == 0
    return log.with_columns(pl.when(below & taken).then(0).otherwise(CLICK).alias("click"), below.alias(name))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("name", "option", "advice"),
    [
        ("ad_above", ["--cell", "ad_above"], "it is part of where a result stands"),
        ("flag", [], "Name it with --cell flag if the page differs by it"),
        ("device", [], "Name it with --context device: each of its values has propensities of its own"),
    ],
)
def test_a_column_that_changes_how_attention_falls_is_a_cell_or_a_context_as_its_name_says(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, name: str, option: list[str], advice: str
) -> None:
    below_blocks(log, name).write_parquet(tmp_path / "log.parquet")

    found = checked(run_in_process, "log.parquet")
    (finding,) = found["recognised"]["findings"]

    assert found["command"] == ["run", "log.parquet", *option]
    assert advice in finding["said"]
    ratio = re.match(rf"where '{name}' is True, position 1 gets (0\.\d\d) of the attention", finding["said"])
    assert ratio is not None
    assert 0.3 < float(ratio[1]) < 0.6
    assert totals_of_run(run_in_process, found["command"], tmp_path)["clicks"] == found["totals"]["clicks"]
    named = checked(run_in_process, "log.parquet", "--context" if name == "device" else "--cell", name)
    assert named["recognised"]["findings"] == []


@pytest.mark.slow
def test_positions_at_which_one_value_of_a_column_has_no_click_are_named(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    app = pl.col("session") % 3 == 0
    log.with_columns(
        pl.when(app & (pl.col("position") > 3)).then(0).otherwise(CLICK).alias("click"),
        device=pl.when(app).then(pl.lit("app")).otherwise(pl.lit("web")),
    ).write_parquet(tmp_path / "log.parquet")

    (finding,) = checked(run_in_process, "log.parquet")["recognised"]["findings"]

    assert "with 'app', nobody clicks at positions 4 to 5, as if that were not logged. Name it" in finding["said"]


@pytest.mark.slow
def test_no_column_is_a_cell_that_only_goes_with_how_much_is_clicked_or_with_what_is_relevant(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    fewer = (pl.col("session") % 3 == 0) & (pl.concat_str("session", "position").hash(3) % 2 == 0)
    log.with_columns(
        pl.when(fewer).then(0).otherwise(CLICK).alias("click"),
        block=pl.col("session") % 3 == 0,
        layout=pl.col("session") // 3 % 4,
        ai=pl.col("session").hash(5) % 10 == 0,
    ).write_parquet(tmp_path / "log.parquet")

    found = checked(run_in_process, "log.parquet")

    assert (found["command"], found["recognised"]["findings"]) == (["run", "log.parquet"], [])


@pytest.mark.slow
def test_pages_under_a_name_of_exports_are_recognised_where_they_have_several_lists(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    at = pl.col("position") - 1
    lists = log.with_columns(carousel=at // 2, position=at % 2 + 1).rename({"session": "request_id"})
    lists.write_csv(tmp_path / "log.csv")

    found = checked(run_in_process, "log.csv")

    assert found["command"] == ["run", "log.csv", "--session", "request_id", "--cell", "carousel"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "certain"), [("carousel", True), ("kind", False)])
def test_lists_of_a_page_are_a_cell_where_positions_begin_anew_in_each(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, name: str, *, certain: bool
) -> None:
    at = pl.col("position") - 1
    words = {0: "for you", 1: "new", 2: "popular"}
    log.with_columns((at // 2).replace_strict(words).alias(name), position=at % 2 + 1).write_csv(tmp_path / "log.csv")

    found = checked(run_in_process, "log.csv")
    (finding,) = found["recognised"]["findings"]

    assert found["command"] == ["run", "log.csv", "--cell", name]
    assert f"positions begin anew in each {name!r} of a page" in finding["said"]
    assert ("If each is a page of its own" in finding["said"]) is not certain
    assert found["totals"]["impressions"] == log.height
    assert totals_of_run(run_in_process, found["command"], tmp_path)["clicks"] == found["totals"]["clicks"]
