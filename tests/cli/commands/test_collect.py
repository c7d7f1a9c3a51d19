"""`posbias collect`: a store that grows, and days that do not look like the others."""

import shlex
import shutil
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from subprocess import CompletedProcess
from typing import Protocol

import polars as pl
import pytest
from command_results import Output, contents, manifest_of
from workshop import RunPosbias as Run

from posbias.core.errors import plural
from posbias.core.simulation.simulate import SimulationOptions, simulate

DAYS = ("2026-01-30", "2026-01-31", "2026-02-01", "2026-02-02")  # of a month that is over, and of one that is not


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a log a day, which give no reason for a warning."""
    folder = tmp_path_factory.mktemp("logs")
    options = SimulationOptions(n_sessions=6000, n_queries=40, docs_per_query=6, n_positions=4, query_exponent=0.3)
    log = simulate(options).log
    for number, day in enumerate(DAYS):
        log.filter(pl.col("session") % len(DAYS) == number).write_parquet(folder / f"{day}.parquet")
    return folder


@pytest.fixture
def add(run_in_process: Run, logs: Path, tmp_path: Path) -> Callable[..., CompletedProcess[str]]:
    """Return a function that adds days to `store`, each by its own line, with further options."""
    shutil.copytree(logs, tmp_path / "logs")

    def run(*days: str, options: tuple[str, ...] = (), code: int = 0) -> CompletedProcess[str]:
        done = CompletedProcess[str]("", 0)
        for day in days:
            done = run_in_process(
                "collect", f"logs/{day}.parquet", "--date", day, "--into", "store", *options, code=code
            )
        return done

    return run


CELL = ("--cell", "row", "--cell", "column")


@pytest.mark.slow
def test_days_of_a_grid_add_up_in_a_store_which_says_what_its_cells_are(
    run_in_process: Run, logs: Path, tmp_path: Path
) -> None:
    at = pl.col("position") - 1
    for day in DAYS[:3]:
        grid = pl.read_parquet(logs / f"{day}.parquet").with_columns(row=at // 2 + 1, column=at % 2 + 1)
        grid.drop("position").write_parquet(tmp_path / f"{day}.parquet")
        run_in_process("collect", f"{day}.parquet", *CELL, "--date", day, "--into", "store", code=0)
    run_in_process("collect", "--into", "store", "--remove-day", DAYS[1], code=0)
    run_in_process("collect", f"{DAYS[0]}.parquet", f"{DAYS[2]}.parquet", *CELL, "-o", "both", code=0)

    sums = ["query", "doc", "position", "row", "column"]
    days, both = (
        Output(tmp_path / name).statistics.group_by(sums).agg(pl.col("impressions", "clicks").sum()).sort(sums)
        for name in ("store", "both")
    )
    assert days.equals(both)
    assert manifest_of(tmp_path / "store")["counted"]["cell"] == ["row", "column"]
    assert "row, column" in run_in_process("collect", "--info", "store", code=0).stdout
    refused = {
        ("fit", "store", "--cell", "row", "-o", "out"): "the statistics were collected with --cell row column",
        ("fit", "store", "--context", "row", "-o", "out"): "--context row: the statistics were collected without",
        ("collect", f"{DAYS[1]}.parquet", *CELL[:2], "--position", "column", "--date", DAYS[1], "--into", "store"): (
            "do not count the same: cell ['row', 'column'] and ['row']"
        ),
    }
    for words, message in refused.items():
        assert message in " ".join(run_in_process(*words, code=2).stderr.split())


def parts(store: Path) -> dict[str, bytes]:
    """Its counts, to the byte."""
    return {name: content for name, content in contents(store).items() if name != "manifest.json"}


def days_of(store: Path) -> list[list[str]]:
    """The days of each of its segments."""
    return [segment["days"] for segment in manifest_of(store)["segments"]]


def rows_of(store: Path) -> pl.DataFrame:
    """Its rows, added up and sorted."""
    keys = ("query", "doc", "period", "position")
    rows = pl.concat([pl.read_parquet(part) for part in sorted(store.glob("*.parquet"))])
    return rows.group_by(keys).agg(pl.sum("impressions", "clicks")).sort(keys)


Add = Callable[..., CompletedProcess[str]]


# --- days that come, in any order -----------------------------------------------------------------------------


@pytest.mark.slow
def test_whatever_order_days_come_go_and_are_replaced_in_the_store_is_that_of_one_go(
    add: Add, run_in_process: Run, tmp_path: Path
) -> None:
    first, second, third, fourth = DAYS
    shorter = pl.read_parquet(tmp_path / "logs" / f"{second}.parquet").filter(pl.col("session") % 3 > 0)
    whole = (tmp_path / "logs" / f"{second}.parquet").read_bytes()
    shorter.write_parquet(tmp_path / "logs" / f"{second}.parquet")
    add(third, second, first, second)
    (tmp_path / "logs" / f"{second}.parquet").write_bytes(whole)
    add(second, options=("--replace-day",))
    add(fourth)
    run_in_process("collect", "--into", "store", "--remove-day", third, code=0)
    add(third, third)

    for day in DAYS:
        run_in_process("collect", f"logs/{day}.parquet", "--date", day, "-o", f"days/{day}")
    run_in_process("collect", *(f"days/{day}" for day in DAYS), "-o", "at-once", code=0)
    pl.concat(
        [pl.read_parquet(tmp_path / "logs" / f"{day}.parquet").with_columns(date=pl.lit(day)) for day in DAYS]
    ).write_parquet(tmp_path / "all.parquet")
    run_in_process("collect", "all.parquet", "--timestamp", "date", "-o", "one-log")

    assert days_of(tmp_path / "store") == [[first, second], [third], [fourth]]
    assert parts(tmp_path / "store") == parts(tmp_path / "at-once")
    assert rows_of(tmp_path / "store").equals(rows_of(tmp_path / "one-log"))
    fits = [tmp_path / f"fit-{name}" for name in ("store", "at-once", "one-log")]
    for fit in fits:
        run_in_process("fit", fit.name.removeprefix("fit-"), "--no-compare", "-o", fit, code=0)
    tables = [{path.name: path.read_bytes() for path in fit.glob("*.parquet")} for fit in fits]
    assert tables[0] == tables[1] == tables[2]

    for name in ("store", "one-log"):
        run_in_process("fit", name, "--no-compare", "--decay", "0.98", "-o", f"decayed-{name}")
    found, expected = (
        pl.read_parquet(tmp_path / f"decayed-{name}" / "propensities.parquet")["propensity"].to_list()
        for name in ("store", "one-log")
    )
    assert found == pytest.approx(expected, rel=1e-9)


def test_the_same_line_again_is_a_success_that_changes_no_count(add: Add, tmp_path: Path) -> None:
    add(*DAYS[:2])
    before = parts(tmp_path / "store")
    done = add(DAYS[0])

    assert parts(tmp_path / "store") == before
    assert f"{DAYS[0]}: counted again, and replaced" in done.stderr


def test_the_same_log_read_in_another_way_is_what_the_line_says(add: Add, tmp_path: Path) -> None:
    """A retry after a line that named the wrong column must not pass for done."""
    path = tmp_path / "logs" / f"{DAYS[0]}.parquet"
    pl.read_parquet(path).with_columns(bought=pl.col("click") * (pl.col("doc") % 9 > 0)).write_parquet(path)
    add(*DAYS[:2])
    clicks = rows_of(tmp_path / "store")["clicks"].sum()
    add(DAYS[0], options=("--click", "bought"))

    assert rows_of(tmp_path / "store")["clicks"].sum() < clicks
    assert days_of(tmp_path / "store") == [[DAYS[0]], [DAYS[1]]]


@pytest.mark.slow
def test_a_day_from_a_log_that_has_changed_is_an_error_that_names_the_option(add: Add, tmp_path: Path) -> None:
    add(*DAYS[:3])
    before = contents(tmp_path / "store")
    path = tmp_path / "logs" / f"{DAYS[0]}.parquet"
    pl.read_parquet(path).head(2000).write_parquet(path)
    refused = add(DAYS[0], code=2)

    assert f"store: holds {DAYS[0]} already, from other logs" in " ".join(refused.stderr.split())
    assert "--replace-day" in refused.stderr
    assert contents(tmp_path / "store") == before
    add(DAYS[0], options=("--replace-day",))
    assert rows_of(tmp_path / "store").filter(pl.col("period").cast(pl.String) == DAYS[0])["impressions"].sum() == 2000


def test_a_day_may_have_several_logs_and_is_known_by_all_of_them(add: Add, run_in_process: Run, tmp_path: Path) -> None:
    """A retry with all of them is the same day; with some of them it is another one."""
    log = pl.read_parquet(tmp_path / "logs" / f"{DAYS[0]}.parquet")
    for number in range(2):
        log.filter(pl.col("session") % 8 // 4 == number).write_parquet(tmp_path / f"{number}.parquet")
    line = ("collect", "0.parquet", "1.parquet", "--date", DAYS[0], "--into", "store")
    add(DAYS[1])
    for _ in range(2):
        run_in_process(*line, code=0)
    run_in_process("collect", "0.parquet", "--date", DAYS[0], "--into", "store", code=2)

    assert days_of(tmp_path / "store") == [[DAYS[0]], [DAYS[1]]]


@pytest.mark.slow
def test_a_removed_day_is_gone_and_the_same_line_again_says_so(add: Add, run_in_process: Run, tmp_path: Path) -> None:
    add(*DAYS[:3])
    for number in range(2):
        done = run_in_process("collect", "--into", "store", "--remove-day", DAYS[1], "--quiet", code=0)
        assert ("holds no" in done.stderr) == (number == 1)
        assert days_of(tmp_path / "store") == [[DAYS[0]], [DAYS[2]]]
    run_in_process("collect", "--into", "store", "--remove-day", DAYS[0])
    last = run_in_process("collect", "--into", "store", "--remove-day", DAYS[2], code=2)
    assert "holds no other day" in last.stderr
    assert days_of(tmp_path / "store") == [[DAYS[2]]]


# --- odd days -------------------------------------------------------------------------------------------------


# --- what is refused ------------------------------------------------------------------------------------------

DATED = (f"logs/{DAYS[2]}.parquet", "--date", DAYS[2], "--into")
REFUSED = [
    ((*DATED, "fitted"), "fitted: holds no store"),
    ((*DATED, "logs"), "logs: holds no store"),
    ((*DATED, "times"), "times: keeps times of day"),
    ((*DATED, "decayed"), "decayed: its counts have decayed"),
    ((f"logs/{DAYS[0]}.parquet", "--date", DAYS[0], "--into", "week"), "was counted together with other days"),
    (("two-days.parquet", *DATED[1:], "week"), f"as {DAYS[0]} to {DAYS[1]} already"),
    ((*DATED[:2], DAYS[0], "--into", "week", "--replace-day"), "was counted together with other days"),
    (("--into", "week", "--remove-day", DAYS[0]), "was counted together with other days"),
]


@pytest.fixture
def others(add: Add, run_in_process: Run, tmp_path: Path) -> Path:
    """Return the directory with what cannot become a store, beside `store` with a day."""
    add(DAYS[0])
    log = pl.read_parquet(tmp_path / "logs" / f"{DAYS[1]}.parquet")
    log.with_columns(at=pl.lit(f"{DAYS[1]} 10:20:00").str.to_datetime()).write_parquet(tmp_path / "timed.parquet")
    first = pl.read_parquet(tmp_path / "logs" / f"{DAYS[0]}.parquet")
    pl.concat([first.with_columns(on=pl.lit(DAYS[0])), log.with_columns(on=pl.lit(DAYS[1]))]).write_parquet(
        tmp_path / "two-days.parquet"
    )
    for words in (
        ("collect", "timed.parquet", "--timestamp", "at", "-o", "times"),
        ("collect", "store", "--decay", "0.9", "-o", "decayed"),
        ("collect", "two-days.parquet", "--timestamp", "on", "-o", "week"),
        ("fit", "store", "--no-compare", "-o", "fitted"),
    ):
        run_in_process(*words, code=0)
    return tmp_path


@pytest.mark.slow
def test_what_cannot_work_is_refused_and_changes_nothing(run_in_process: Run, others: Path) -> None:
    before = {path: path.read_bytes() for path in others.rglob("*") if path.is_file()}
    for words, says in REFUSED:
        done = run_in_process("collect", *words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert says in " ".join(done.stderr.split()), (words, done.stderr)
    assert {path: path.read_bytes() for path in others.rglob("*") if path.is_file()} == before


def test_a_file_of_others_in_the_store_is_never_replaced(add: Add, tmp_path: Path) -> None:
    add(DAYS[0])
    (tmp_path / "store" / "notes.txt").write_text("mine")
    before = contents(tmp_path / "store")
    refused = add(DAYS[1], code=2)

    assert "notes.txt is not part of the result there" in " ".join(refused.stderr.split())
    assert contents(tmp_path / "store") == before


Change = Callable[[pl.DataFrame], pl.DataFrame]


class MakeDay(Protocol):
    """Counts the last day, changed, under a name and a date, and says the name."""

    def __call__(self, change: Change = ..., name: str = ..., day: date = ...) -> str:
        """Count it."""
        ...


FIRST, N_DAYS = date(2026, 1, 5), 6
ODD = FIRST + timedelta(days=3)
NEW = FIRST + timedelta(days=N_DAYS)
POSITION, CLICK, TOP = pl.col("position"), pl.col("click"), pl.col("position") == 1
HALF = pl.col("session") % 2 == 0


def longer(day: pl.DataFrame) -> pl.DataFrame:
    """A day with a further position below the last one."""
    last = day.filter(POSITION == 5).with_columns(POSITION + 1, pl.col("doc") + 1000)
    return pl.concat([day, last])


FAULTS: dict[str, tuple[Change, str]] = {
    "shifted": (
        lambda day: day.with_columns(POSITION + 1),
        "its positions go from 2 to 6, and theirs from 1 to 5, as if they were shifted or counted from another base",
    ),
    "shifted and cut": (
        lambda day: day.with_columns(POSITION + 1).filter(POSITION <= 5),
        "its positions go from 2 to 5, and theirs from 1 to 5",
    ),
    "a new last position": (longer, "it has impressions at position 6, where they have hardly any"),
    "a last position that is gone": (
        lambda day: day.filter(POSITION < 5),
        "it has hardly anything at position 5, where they have",
    ),
    "no clicks": (lambda day: day.with_columns(click=pl.lit(0, pl.Int8)), "it has no clicks, where about "),
    "a third of the clicks": (
        lambda day: day.with_columns(click=CLICK * (pl.col("session") % 3 == 0)),
        "further positions are far off as well",
    ),
    "another click rate at the top": (
        lambda day: day.with_columns(click=pl.when(TOP & (pl.col("session") % 3 > 0)).then(0).otherwise(CLICK)),
        "the click rate of position 1 is ",
    ),
}
EACH = pytest.mark.parametrize("fault", list(FAULTS))


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Return a log of a week."""
    options = SimulationOptions(
        *("pbm", 7 * 1000, 50, 8, 5), query_exponent=0.3, attractiveness_shape=(2.0, 2.0), days=N_DAYS + 1, seed=5
    )
    return simulate(options).log.with_columns(date=pl.col("timestamp").cast(pl.Date)).drop("timestamp")


@pytest.fixture(scope="module")
def made(log: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the logs of the days."""
    folder = tmp_path_factory.mktemp("days")
    for (day,), of_day in log.group_by("date"):
        of_day.drop("date").write_parquet(folder / f"{day}.parquet")
    return folder


@pytest.fixture
def store(made: Path, run_in_process: Run, tmp_path: Path) -> Path:
    """Return a store of all days but the last, in the working directory."""
    if not (made / "store").exists():
        for number in range(N_DAYS):
            day = FIRST + timedelta(days=number)
            done = run_in_process(
                "collect", made / f"{day}.parquet", "--date", day, "-o", made / "days" / str(day), code=0
            )
        done = run_in_process("collect", *sorted((made / "days").iterdir()), "-o", made / "store")
        assert (done.returncode, "does not look like" in done.stderr) == (0, False)
    shutil.copytree(made / "store", tmp_path / "store")
    return tmp_path / "store"


def collected(run: Run, log: pl.DataFrame, name: str, *options: str | Path) -> CompletedProcess[str]:
    """Collect a log under a name."""
    log.write_parquet(f"{name}.parquet")
    return run("collect", f"{name}.parquet", "-o", name, *options)


@pytest.fixture
def new_day(log: pl.DataFrame, run_in_process: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeDay:
    """Return a function that counts the last day, changed, and names its statistics."""
    monkeypatch.chdir(tmp_path)

    def make(change: Change = lambda day: day, name: str = "new", day: date = NEW) -> str:
        of_day = change(log.filter(pl.col("date") == NEW).drop("date"))
        done = collected(run_in_process, of_day, name, "--date", str(day))
        assert done.returncode == 0, done.stderr  # alone it has nothing to be compared with
        return name

    return make


def warnings_of(folder: Path) -> list[str]:
    """The warnings in a manifest."""
    return manifest_of(folder)["warnings"]


# --- within a log -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "csv", "csv.gz"])
def test_a_file_whose_positions_start_elsewhere_is_named_in_a_log_without_days(
    log: pl.DataFrame, run_in_process: Run, form: str, tmp_path: Path
) -> None:
    for number in range(4):
        part = log.filter(pl.col("session") % 4 == number).drop("date")
        part = part.with_columns(POSITION + 1) if number == 2 else part
        path = tmp_path / f"{number}.{form}"
        if form == "parquet":
            part.write_parquet(path)
        else:
            part.write_csv(path, compression="gzip" if form.endswith("gz") else "uncompressed")
    run_in_process("collect", f"*.{form}", "-o", "out", code=1)
    late, odd = warnings_of(tmp_path / "out")
    assert late.startswith("25.0% of the pages start below position 1.")
    assert odd.startswith(f"2.{form} does not look like the other files: its positions go from 2 to 6")
    (tmp_path / f"2.{form}").unlink()
    run_in_process("collect", f"*.{form}", "-o", "rest", code=0)


@pytest.mark.slow
def test_clicks_lost_on_several_days_are_named_everywhere_and_without_these_days_all_is_well(
    log: pl.DataFrame, run_in_process: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bad = log.with_columns(click=pl.when((pl.col("date") >= ODD) & (POSITION >= 4)).then(0).otherwise(CLICK))
    bad.write_parquet("bad.parquet")
    says = "Clicks are missing on 4 of 7 days (2026-01-08 to 2026-01-11) at positions 4 to 5: about "
    for command, *to in (["check"], ["fit", "-o", "a"], ["run", "-o", "b"], ["collect", "-o", "counts"]):
        done = run_in_process(command, "bad.parquet", "--timestamp", "date", *to, code=1)
        assert says in " ".join((done.stdout + done.stderr).split())
    run_in_process("fit", "counts", "-o", "c", code=1)
    [advice, *_] = [one for one in manifest_of(tmp_path / "a")["reasons"] if one["code"] == "clicks-of-days-lost"]
    option = shlex.split(advice["sentence"].split("leave these days out: ")[1].split(", or ")[0].rstrip("."))
    for options in (option, ["--max-position", "3"]):
        run_in_process("fit", "bad.parquet", "--timestamp", "date", *options, "-o", "d", "--force", code=0)
        assert "clicks-of-days-lost" not in {one["code"] for one in manifest_of(tmp_path / "d")["reasons"]}


@pytest.mark.slow
def test_a_store_does_not_get_used_to_days_with_lost_clicks(
    log: pl.DataFrame, run_in_process: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bad = log.with_columns(click=pl.when((pl.col("date") >= ODD) & (POSITION >= 4)).then(0).otherwise(CLICK))
    for (day,), of_day in bad.sort("date").group_by("date", maintain_order=True):
        of_day.drop("date").write_parquet(f"{day}.parquet")
        add = ("collect", f"{day}.parquet", "--date", str(day), "--into", "store")
        if day == NEW:
            assert "clicks are missing" in run_in_process(*add, "--gate", "5", code=2).stderr
        run_in_process(*add, code=int(str(day) >= str(ODD)))
    assert "Clicks are missing on 4 of 7 days" in warnings_of(tmp_path / "store")[0]


# --- beside a store -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@EACH
def test_an_odd_day_goes_into_a_store_with_a_warning_and_exit_code_1_and_a_gate_keeps_it_out_with_2(
    store: Path, new_day: MakeDay, run_in_process: Run, fault: str
) -> None:
    change, says = FAULTS[fault]
    name, before = new_day(change), contents(store)
    merge = ("collect", "store", name, "-o", "store", "--force")

    refused = run_in_process(*merge, "--gate", "0.5", code=2)
    said = " ".join(refused.stderr.split())
    assert f"{NEW} is kept out by --gate 0.5, and nothing is written: beside the days of the store, " in said
    assert ("more than 50 %" if "click" in fault and fault != "no clicks" else says) in said
    assert "If it is right, merge it without --gate." in said
    assert contents(store) == before

    run_in_process(*merge, code=1)
    [warning] = warnings_of(store)
    assert warning.startswith(f"{NEW} does not look like the days of the store: ")
    assert says in warning


@pytest.mark.slow
def test_a_day_that_comes_in_several_parts_is_compared_with_other_days_only(
    store: Path, new_day: MakeDay, run_in_process: Run
) -> None:
    morning, evening = (
        new_day(lambda day: day.filter(HALF), "morning"),
        new_day(lambda day: day.filter(~HALF), "evening"),
    )
    for part in (morning, evening):
        done = run_in_process("collect", "store", part, "-o", "store", "--force", "--gate", "0.5", code=0)
        assert "does not look" not in done.stderr
    name = new_day(lambda day: day.filter(HALF).with_columns(POSITION + 1, session=pl.col("session") + 10**6), "night")
    run_in_process("collect", "store", name, "-o", "store", "--force", "--gate", "0.5", code=2)
    assert store.is_dir()


def test_a_store_that_has_decayed_is_compared_as_well(store: Path, new_day: MakeDay, run_in_process: Run) -> None:
    decay = ("--decay", "0.9", "--force", "--gate", "0.5")
    first, shifted = new_day(), new_day(FAULTS["shifted"][0], "shifted", NEW + timedelta(days=1))
    run_in_process("collect", "store", first, "-o", "decayed", *decay, code=0)
    before = contents(store.parent / "decayed")
    run_in_process("collect", "decayed", shifted, "-o", "decayed", *decay, code=2)
    assert contents(store.parent / "decayed") == before


# --- the option ---------------------------------------------------------------------------------------------------


# --- real logs -----------------------------------------------------------------------------------------


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "arguments",
    [
        ("open_bandit_zozo.parquet", "--timestamp", "timestamp", "--query", "campaign", "--doc", "item_id"),
        ("yandex_web_search.parquet",),
    ],
)
def test_real_logs_give_no_warning_of_their_days(
    shared_data: Path, run_in_process: Run, arguments: tuple[str, ...]
) -> None:
    log, *options = arguments
    done = run_in_process("collect", shared_data / log, *options, "-o", "out", code=0)
    assert "look" not in done.stderr


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [
        (1, "clicks", "1 click"),
        (0, "clicks", "0 clicks"),
        (1.2, "clicks", "1 click"),
        (1, "queries", "1 query"),
        (1204, "(query, doc) pairs", "1,204 (query, doc) pairs"),
    ],
)
def test_one_thing_is_counted_in_the_singular(number: float, noun: str, said: str) -> None:
    assert plural(number, noun) == said
