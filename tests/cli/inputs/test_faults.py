"""The table of faults: what `check` says of a log every command that reads it says, once; a new fault is one entry."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from string import Formatter

import polars as pl
import pytest
from checked_logs import POSITIONS, checked, good_log
from command_results import manifest_of
from small_logs import log_by_value
from workshop import RunPosbias as Run

from posbias.cli.work import checking
from posbias.core.check import Clients, Robots
from posbias.core.evaluation import interleaving as tdi
from posbias.io.counting import first_rows
from posbias.io.counting import profile as profiles
from posbias.io.jobs import interleaving
from posbias.io.log import faults as columns
from posbias.io.log.faults import TABLE, LogFault, faults_in
from posbias.io.results import conclusions

PAGE = pl.col("session")
POSITION = pl.col("position")


def placed(column: str, *, descending: bool = False) -> pl.Expr:
    """Positions on a page in the order of a column."""
    return pl.col(column).rank("ordinal", descending=descending).over("session").cast(pl.Int64).alias("position")


FAULTY: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
    "top-missing": lambda log: log.filter(POSITION > 1),
    "pages-start-late": lambda log: log.filter((PAGE % 10 > 0) | (POSITION > 1)),
    "pages-with-gaps": lambda log: log.filter((PAGE % 10 > 0) | (POSITION != 3)),
    "positions-missing": lambda log: log.with_columns(POSITION + (POSITION > 3)),
    "positions-without-click": lambda log: log.filter((POSITION < POSITIONS) | (PAGE % 40 == 0)).with_columns(
        pl.when(POSITION < POSITIONS).then("click").otherwise(0).cast(pl.Int8).alias("click")
    ),
    "few-queries": lambda log: log.with_columns(query=PAGE % 4),
    "one-query-dominates": lambda log: log.with_columns(query=pl.when(PAGE % 2 == 0).then(0).otherwise("query")),
    "pages-of-one-row": lambda log: log.with_row_index("row").with_columns(session="row").drop("row"),
    "robots": lambda log: log.with_columns(
        pl.when(PAGE % 10 == 0).then(1).otherwise("click").cast(pl.Int8).alias("click")
    ),
    "one-client-dominates": lambda log: log.with_columns(client=pl.when(PAGE % 10 == 0).then(-1).otherwise("session")),
    "ids-rounded": lambda log: log.with_columns(doc=pl.format("4.0063{}E+12", "doc")),
    "queries-empty": lambda log: log.with_columns(query=pl.when(PAGE % 5 > 0).then("query").otherwise(pl.lit(""))),
    "every-page-clicked": lambda log: log.filter(pl.col("click").max().over("session") == 1),
    "clicked-first": lambda log: log.with_columns(placed("click", descending=True)),
    "order-of-ids": lambda log: log.with_columns(placed("doc")),
    "order-of-ids-descending": lambda log: log.with_columns(placed("doc", descending=True)),
    "column-decides": lambda _: log_by_value("known", 1, 4000).cast({"doc": pl.String}),
    "pages-shifted": lambda log: log.with_columns(POSITION + (PAGE % 5 == 0)),
}


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Return a log without a fault."""
    return good_log().drop("timestamp")


def stated(run: Run, folder: Path) -> dict[str, list[str]]:
    """Codes of the table that each command states, other than those of columns."""
    table = {code for code, _ in TABLE}
    scores = pl.read_parquet(folder / "log.parquet").select("query", "doc", score="position").unique(("query", "doc"))
    scores.write_parquet(folder / "scores.parquet")
    of_rankings = ("--propensities", "power:1", "--scores", "scores.parquet")
    codes = {
        "check": [reason["code"] for reason in json.loads(run("check", "log.parquet", "--json").stdout)["reasons"]]
    }
    for command, words in {
        "collect": (),
        "fit": ("--no-compare",),
        "evaluate": of_rankings,
        "predict": of_rankings,
    }.items():
        run(command, "log.parquet", *words, "-o", command, code=(0, 1))
        codes[command] = [reason["code"] for reason in manifest_of(folder / command)["reasons"]]
    return {command: [code for code in of if code in table] for command, of in codes.items()}


@pytest.mark.slow
def test_a_log_without_a_fault_is_said_to_have_none(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    log.write_parquet(tmp_path / "log.parquet")

    assert not any(stated(run_in_process, tmp_path).values())


@pytest.mark.parametrize("code", FAULTY)
@pytest.mark.slow
def test_what_check_says_of_a_log_every_command_says_once(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, code: str
) -> None:
    FAULTY[code](log).write_parquet(tmp_path / "log.parquet")

    found = stated(run_in_process, tmp_path)

    assert {command: of.count(code) for command, of in found.items()} == dict.fromkeys(found, 1)
    assert {command: sorted(of) for command, of in found.items()} == dict.fromkeys(found, sorted(found["check"]))


@pytest.mark.slow
def test_the_option_named_for_a_column_that_decides_relevance_sets_propensities_right(
    run_in_process: Run, tmp_path: Path
) -> None:
    log = log_by_value("known", 1, 4000).rename({"value": "its market"})
    log.write_parquet(tmp_path / "log.parquet")
    run_in_process("fit", "log.parquet", "--no-compare", "-o", "together")
    found = {reason["code"]: reason for reason in manifest_of(tmp_path / "together")["reasons"]}

    option = re.search(r"Keep its values apart: (.*)\.$", found["column-decides"]["sentence"])
    assert option is not None
    run_in_process("fit", "log.parquet", "--no-compare", "-o", "apart", *shlex.split(option[1]), code=0)

    truth = 0.23  # of position 8
    together, apart = (
        pl.read_parquet(tmp_path / name / "propensities.parquet").row(7, named=True) for name in ("together", "apart")
    )
    assert together["ci_high"] < truth
    assert apart["ci_low"] <= truth <= apart["ci_high"]
    assert found["column-decides"]["figures"]["apart"] == pytest.approx(apart["propensity"], rel=1e-6)


BASES = {
    "client": (pl.lit(None), (pl.col("app") == "ios").alias("zero"), "(app 'ios')"),
    "versions": (pl.lit(None), pl.col("version") >= 3, "(version '3', '4')"),
    "date": (pl.date(2026, 1, 1) + pl.duration(days=PAGE // 25), PAGE < 450, "(date '2026-01-01' to '2026-01-18')"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_pages_that_count_from_another_base_are_told_apart_and_the_advice_counts_all_from_one(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, name: str
) -> None:
    date, counts_from_0, which = BASES[name]
    named = log.with_columns(
        app=pl.when(PAGE % 5 == 0).then(pl.lit("ios")).otherwise(pl.lit("web")), version=PAGE % 7 // 2 + 1, date=date
    )
    named = named if name == "date" else named.drop("date")
    named.with_columns(POSITION - counts_from_0.cast(pl.Int64)).write_csv(tmp_path / "log.csv")
    said = json.loads(run_in_process("check", "log.csv", "--json").stdout)
    of_check = next(reason for reason in said["reasons"] if reason["code"] == "pages-shifted")
    for words in (("--position-base", "0"), ("--on-bad-rows", "drop", "--max-bad-rows", "0.9")):
        run_in_process("fit", "log.csv", *words, "--no-compare", "-o", "out", "--force", code=1)
        reason = next(
            reason for reason in manifest_of(tmp_path / "out")["reasons"] if reason["code"] == "pages-shifted"
        )
        assert reason["severity"] == "stop"
        assert tuple(sorted((reason["figures"]["first"], reason["figures"]["usual"]))) == (0, 1)
    assert {"first", "usual", "which"} <= set(of_check["figures"])
    assert which in " ".join(reason["sentence"] for reason in (of_check, reason))
    refused = run_in_process("fit", "log.csv", "-o", "refused", code=2)
    assert "Some pages count from 0, and most from 1" in refused.stderr or "use --position-base 0" in refused.stderr
    advice = shlex.split(of_check["sentence"].partition(": --sql ")[2].partition("; if ")[0].removesuffix("."))
    base = ("--position-base", "0") if "Count all from 0" in of_check["sentence"] else ()
    run_in_process("fit", "log.csv", "--sql", *advice, *base, "--no-compare", "-o", "mended", code=0)
    log.write_parquet(tmp_path / "right.parquet")
    run_in_process("fit", "right.parquet", "--no-compare", "-o", "right", code=0)
    mended, right = (pl.read_parquet(tmp_path / of / "propensities.parquet") for of in ("mended", "right"))
    assert mended["impressions"].to_list() == right["impressions"].to_list()
    assert mended["propensity"].to_list() == pytest.approx(right["propensity"].to_list(), rel=1e-9)


@pytest.mark.slow
def test_weights_count_in_the_profile_of_pages(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    log.with_columns(copies=pl.when(pl.col("query") == 0).then(1000.0).otherwise(1.0)).write_parquet(
        tmp_path / "log.parquet"
    )
    words = ("log.parquet", "--weight-column", "copies", "--propensities", "power:1", "--scores", "log.parquet")

    for command, options in {"fit": words[:3], "collect": words[:3]}.items():
        run_in_process(command, *options, "-o", command)
        codes = [reason["code"] for reason in manifest_of(tmp_path / command)["reasons"]]
        assert "one-query-dominates" in codes


@pytest.mark.slow
def test_pages_of_several_queries_stay_whole_in_a_sample(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.drop("query").write_parquet(tmp_path / "log.parquet")
    monkeypatch.setattr(profiles, "PAGES_OF_OTHERS", 3000)
    monkeypatch.setattr("posbias.io.counting.profile.PAGES_OF_CHECK", 3000)

    pages = checked(run_in_process, "log.parquet", "--no-query")["pages"]
    run_in_process("fit", "log.parquet", "--no-query", "-o", "fit", "--no-compare")

    assert 0 < pages["looked_at"] < 1000
    assert (pages["rows"], pages["with_gaps"]) == (POSITIONS * pages["looked_at"], 0)
    assert not {"pages-with-gaps", "pages-start-late"} & {
        reason["code"] for reason in manifest_of(tmp_path / "fit")["reasons"]
    }


# --- the table ------------------------------------------------------------------------------------------------

FEW = LogFault(
    severity="caution",
    when=("rows", "rows < enough", "share >= 1/3"),
    stop=("share >= 0.5",),
    sentence="There {rows:is|are} {rows:rows} of {name!r}.",
    advice="Add some.",
    figures={"number": "rows"},
)
OTHER = LogFault(severity="note", when=("rows",), sentence="{rows} are enough.")
LATER = LogFault(severity="note", when=("rows",), sentence="That is said.", unless=("few-queries",))


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ({"rows": 1, "enough": 2, "share": 1 / 3, "name": "a"}, [("caution", "There is 1 row of 'a'. Add some.")]),
        ({"rows": 3, "enough": 4, "share": 0.5, "name": "b"}, [("stop", "There are 3 rows of 'b'. Add some.")]),
        ({"rows": 2, "enough": 2, "share": 1.0}, [("note", "2 are enough."), ("note", "That is said.")]),
        ({"rows": 2, "enough": 3}, [("note", "2 are enough."), ("note", "That is said.")]),
        ({"rows": None}, []),
        ({}, []),
    ],
)
def test_the_first_entry_of_a_code_whose_conditions_hold_is_stated(
    monkeypatch: pytest.MonkeyPatch, profile: dict[str, float | str | None], expected: list[tuple[str, str]]
) -> None:
    code = "robot-clients"
    monkeypatch.setattr("posbias.io.log.faults.TABLE", [(code, FEW), (code, OTHER), ("robots", LATER)])
    found = [(reason.code, reason.severity, reason.sentence) for reason in faults_in(profile)]
    if expected and len(expected) == 1:
        expected = [*expected, ("note", "That is said.")]

    assert [entry[1:] for entry in found] == expected
    assert faults_in(profile, [code, "few-queries"]) == []
    assert [reason.code for reason in faults_in(profile, [code])] == ["robots"] * (len(found) > 1)


def test_every_quantity_of_the_table_is_in_a_profile() -> None:
    source = "".join(
        Path(str(module.__file__)).read_text(encoding="utf-8")
        for module in (profiles, first_rows, columns, checking, interleaving, tdi)
    )
    known = set(re.findall(r'"(\w+)"', source))
    for code, fault in TABLE:
        texts = (fault.sentence, fault.advice, fault.details)
        named = {name for text in texts for _, name, _, _ in Formatter().parse(text) if name}
        words = {word for condition in (*fault.when, *fault.stop) for word in condition.split() if word[0].isalpha()}
        assert named | words | set(fault.figures.values()) <= known, code


@pytest.mark.slow
def test_a_new_fault_is_one_entry_for_all_commands(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_parquet(tmp_path / "log.parquet")
    new = LogFault(severity="caution", when=("queries > 10",), sentence="So many: {queries:queries}.")
    monkeypatch.setitem(conclusions.CODES, "many-queries", "there are many queries")
    monkeypatch.setattr("posbias.io.log.faults.TABLE", [*TABLE, ("many-queries", new)])

    found = checked(run_in_process, "log.parquet")
    done = run_in_process("fit", "log.parquet", "-o", "fit", "--no-compare", code=0)

    assert "So many: 60 queries." in found["warnings"]
    assert "there are many queries" in done.stderr
    assert set(manifest_of(tmp_path / "fit")["warnings"]) == set(found["warnings"])


@pytest.mark.slow
def test_a_caution_of_a_fit_is_not_repeated_by_weights_of_the_same_log(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    few = FAULTY["few-queries"](log)
    few.write_parquet(tmp_path / "log.parquet")
    few.head(7000).write_parquet(tmp_path / "other.parquet")

    run_in_process("fit", "log.parquet", "-o", "fit", "--no-compare")
    for name, repeated in {"log": 0, "other": 1}.items():
        run_in_process("weight", f"{name}.parquet", "--propensities", "fit", "-o", f"of-{name}")
        codes = [reason["code"] for reason in manifest_of(tmp_path / f"of-{name}")["reasons"]]
        assert codes.count("few-queries") == repeated


def test_check_gives_the_advice_on_few_queries_once(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    FAULTY["few-queries"](log.filter(PAGE < 300)).write_parquet(tmp_path / "log.parquet")

    printed = " ".join(run_in_process("check", "log.parquet").stdout.split())

    assert printed.count("More different queries") == 1


@pytest.mark.parametrize(("share", "said"), [(0.03, False), (0.3, True)])
def test_a_large_client_is_worth_a_word_unless_robots_are_named(*, share: float, said: bool) -> None:
    robots = Robots(("a",), 0.1, 0.2, 3.0)
    alone, named = (
        faults_in(first_rows.client_quantities(Clients("ip", 100, 6000, share, found, can_query=True)))
        for found in (None, robots)
    )

    assert [reason.sentence for reason in alone] == (
        ["One value of 'ip' has 30% of the first 6,000 rows. If it is a robot, leave its rows out."] if said else []
    )
    assert [(reason.code, reason.severity) for reason in named] == [("robot-clients", "stop")]


def test_where_rounded_ids_repeat_on_a_page_no_option_for_repeated_documents_is_advised(
    log: pl.DataFrame, tmp_path: Path, run_in_process: Run
) -> None:
    log.with_columns(doc=pl.lit(4.00638e12)).write_parquet(tmp_path / "log.parquet")
    message = run_in_process("run", tmp_path / "log.parquet", "-o", tmp_path / "out", code=2).stderr
    assert "'doc' holds ids such as 4006380000000: a spreadsheet rounded long numbers" in message
    assert "--duplicate-docs" not in message


@pytest.mark.parametrize("every", [5, 200])
def test_a_word_for_no_query_is_an_empty_query_unless_it_is_rare(
    log: pl.DataFrame, tmp_path: Path, run_in_process: Run, every: int
) -> None:
    word = pl.when(PAGE % 2 == 0).then(pl.lit("(not set)")).otherwise(pl.lit(" null"))
    said = pl.when(PAGE // 2 % every == 0).then(word).otherwise(pl.col("query").cast(pl.String))
    log.with_columns(query=said).write_parquet(tmp_path / "log.parquet")

    found = checked(run_in_process, "log.parquet", code=None)
    sentences = [reason["sentence"] for reason in found["reasons"] if reason["code"] == "queries-empty"]
    assert len(sentences) == (every == 5)
    for sentence in sentences:
        assert "Column 'query' is '(not set)' or 'null' in 20" in sentence
        query = shlex.split(sentence[sentence.index("--sql") :])[1].rstrip(",")
        rest = checked(run_in_process, "log.parquet", "--sql", query)
        assert rest["totals"]["queries"] == log["query"].n_unique()
