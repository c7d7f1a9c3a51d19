"""Files, columns, outputs and statistics that cannot work, and odd input that happens: refused, or read right."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import polars as pl
import pytest
from command_results import manifest_of
from workshop import Make, MountTmpfs, RunPosbias, Workshop, assert_refused, attempt, case, good_rows

from posbias.core.simulation.simulate import SimulationOptions, simulate

# --- files ----------------------------------------------------------------------------------------------------


def truncated(w: Workshop) -> list[str | Path]:
    whole = w.parquet("whole.parquet").read_bytes()
    return ["run", w.write("log.parquet", whole[: len(whole) // 2])]


def corrupted(w: Workshop) -> list[str | Path]:
    whole = bytearray(w.parquet("whole.parquet").read_bytes())
    whole[4:400] = bytes(396)
    return ["run", w.write("log.parquet", bytes(whole))]


def damaged_footer(w: Workshop) -> list[str | Path]:
    whole = bytearray(w.parquet("whole.parquet").read_bytes())
    whole[-60:-8] = b"\xff" * 52
    return ["run", w.write("log.parquet", bytes(whole))]


def same_file_by_link(w: Workshop) -> list[str | Path]:
    log = w.log()
    (w.folder / "link.csv").symlink_to(log)
    return ["run", log, w.folder / "link.csv"]


FILES = [
    case("a truncated Parquet file", truncated, "log.parquet", "truncated"),
    case("a Parquet file with a damaged middle", corrupted, "log.parquet", "cannot be read as parquet"),
    case("a Parquet file with a damaged footer", damaged_footer, "log.parquet", "cannot be read as parquet"),
    case("the same file twice, once by a link", same_file_by_link, "link.csv", "twice"),
]


@pytest.mark.parametrize(("make", "says"), FILES)
def test_a_file_that_cannot_be_read_is_named(workshop: Workshop, make: Make, says: tuple[str, ...]) -> None:
    assert_refused(attempt(workshop, *make(workshop)), workshop, *says)


@pytest.mark.parametrize(("column", "renamed"), [("click", "clicked"), ("doc", "thing id"), ("position", "rank")])
def test_a_column_that_was_renamed_is_read_by_the_query_that_is_advised(
    workshop: Workshop, column: str, renamed: str
) -> None:
    pl.DataFrame(good_rows()).write_parquet(workshop.folder / "a.parquet")
    later = pl.DataFrame(good_rows()).with_columns(pl.col("session") + "b").rename({column: renamed})
    later.write_parquet(workshop.folder / "b.parquet")

    done = attempt(workshop, "collect", workshop.folder)
    assert_refused(done, workshop, f"b.parquet: has no column {column!r}", "read them as one: --sql")
    advised = shlex.split(done.stderr[done.stderr.index("--sql") :].strip().removesuffix("."))
    assert attempt(workshop, "collect", workshop.folder, *advised).returncode == 0
    assert manifest_of(workshop.output)["statistics"]["impressions"] == 2 * len(good_rows())


# --- the output -----------------------------------------------------------------------------------------------


@pytest.fixture
def read_only_place(tmp_path: Path, mount_tmpfs: MountTmpfs) -> Path:
    """Return a directory that even root cannot write in."""
    return mount_tmpfs(tmp_path / "read-only", "ro,size=1m")


@pytest.mark.parametrize("name", ["out", "new/parents/out"])
def test_a_read_only_place_is_named(workshop: Workshop, read_only_place: Path, name: str) -> None:
    done = workshop.run("run", workshop.log(), "-o", read_only_place / name)
    assert_refused(done, workshop, str(read_only_place), "Read-only file system")


def test_a_read_only_place_for_temporary_files_is_named(workshop: Workshop, read_only_place: Path) -> None:
    done = workshop.run("run", workshop.log(), "-o", workshop.output, "--temp-dir", read_only_place)
    assert_refused(done, workshop, str(read_only_place), "Read-only file system")


# --- odd input ------------------------------------------------------------------------------------------------


@pytest.fixture
def frame() -> pl.DataFrame:
    """A small log that works."""
    return simulate(SimulationOptions(n_sessions=300, n_queries=5, docs_per_query=5, n_positions=4, seed=4)).log


@pytest.fixture
def log(frame: pl.DataFrame, tmp_path: Path) -> Path:
    """The same on disk."""
    path = tmp_path / "log.parquet"
    frame.write_parquet(path)
    return path


def test_files_whose_ids_only_128_bits_hold_are_refused(
    run_in_process: RunPosbias, frame: pl.DataFrame, tmp_path: Path
) -> None:
    for name, dtype in {"a": pl.Int64, "b": pl.UInt64}.items():
        frame.with_columns(pl.int_range(pl.len()).cast(dtype).alias("doc")).write_parquet(tmp_path / f"{name}.parquet")
    done = run_in_process("run", tmp_path / "a.parquet", tmp_path / "b.parquet", "-o", tmp_path / "out", code=2)
    said = " ".join(done.stderr.split())
    assert "'doc' holds Int64" in said
    assert "Write the files with the same type" in said


@pytest.mark.parametrize("form", ["flat", "lists", "structs"])
def test_ids_of_ndjson_that_are_not_exact_beside_fractions_are_refused(
    run_in_process: RunPosbias, tmp_path: Path, form: str
) -> None:
    options = {"flat": (), "lists": (), "structs": ("--doc", "shown.doc", "--click", "shown.click")}[form]
    for largest, code in ((2**53 - 1, 0), (2**53 + 1, 2)):
        page = pl.DataFrame({"doc": [json.dumps(id_) for id_ in (1.5, largest - 2, largest)], "click": [1, 0, 0]})
        rows = page.with_columns(session=1, query=pl.lit("q"), position=pl.int_range(1, 4))
        if form != "flat":
            rows = rows.drop("position").group_by("session", "query").agg("doc", "click")
        if form == "structs":
            rows = page.select(session=1, query=pl.lit("q"), shown=pl.struct("doc", "click").implode()).head(1)
        lines = re.sub(r'"([0-9.]+)"', r"\1", rows.write_ndjson())
        (tmp_path / "log.ndjson").write_text(lines, encoding="utf-8")
        done = run_in_process("collect", "log.ndjson", *options, "-o", f"out{code}")
        assert done.returncode == code, done.stderr
    column = "shown.doc" if form == "structs" else "doc"
    assert f"log.ndjson: column '{column}' holds fractions" in done.stderr


@pytest.mark.slow
def test_a_result_among_the_logs_is_not_read_as_a_log(run_in_process: RunPosbias, log: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    log.rename(logs / log.name)

    first = run_in_process("run", logs, "-o", logs / "out")
    again = run_in_process("run", logs, "-o", logs / "out", "--force")

    assert (first.returncode, again.returncode) == (0, 0), again.stderr
    assert manifest_of(logs / "out")["rows"]["read"] == 1200


def test_a_name_that_looks_like_a_pattern_is_a_name(
    run_in_process: RunPosbias, frame: pl.DataFrame, tmp_path: Path
) -> None:
    frame.write_ndjson(tmp_path / "a[1] *?.ndjson")

    run_in_process("fit", "a[1] *?.ndjson", "-o", "out", code=0)


def test_folders_of_a_partitioned_log_are_decoded(
    run_in_process: RunPosbias, frame: pl.DataFrame, tmp_path: Path
) -> None:
    for name, folder in (("q 0", "query=q%200"), (None, "query=__HIVE_DEFAULT_PARTITION__")):
        (tmp_path / "logs" / folder).mkdir(parents=True)
        some = frame.filter(pl.col("query") == (0 if name else 1)).drop("query")
        some.write_parquet(tmp_path / "logs" / folder / "part.parquet")

    done = run_in_process("fit", "logs", "-o", "out", "--on-bad-rows", "drop", "--max-bad-rows", "1", code=0)

    assert pl.read_parquet(tmp_path / "out" / "attractiveness.parquet")["query"].unique().to_list() == ["q 0"]
    assert "because the query is missing" in done.stderr


def test_statistics_of_one_table_and_of_two_add_up(
    run_in_process: RunPosbias, frame: pl.DataFrame, tmp_path: Path
) -> None:
    first, second = frame.filter(pl.col("session") < 150), frame.filter(pl.col("session") >= 150)
    first.write_parquet(tmp_path / "first.parquet")
    second.drop("click").write_parquet(tmp_path / "shown.parquet")
    clicked = second.filter(pl.col("click") == 1).select("session", "doc")
    stray = pl.DataFrame({"session": [9999], "doc": [1]}, schema=clicked.schema)
    pl.concat([clicked, stray]).write_parquet(tmp_path / "clicks.parquet")
    run_in_process("collect", "first.parquet", "-o", "s1", code=0)
    run_in_process("collect", "shown.parquet", "--clicks", "clicks.parquet", "-o", "s2", code=0)

    run_in_process("fit", "s1", "s2", "-o", "out", code=0)

    rows = manifest_of(tmp_path / "out")["rows"]
    lost = {"clicks on a page that was not recorded": 1}
    clicks = {"read": clicked.height + 1, "joined": clicked.height, "repeated": 0, "lost": lost, "by_position": {}}
    assert rows == {"read": 1200, "used": 1200, "clicks": clicks, "rejected": {}}


Run = Callable[..., CompletedProcess[str]]

LOG = pl.DataFrame({"our search": ["a", "b"], "theItem": [1, 2], "gridPlace": [1, 2], "tapped": [0, 1]})


def test_the_command_to_try_works(run_in_process: Run, tmp_path: Path) -> None:
    LOG.write_csv(tmp_path / "log.csv")

    refused = run_in_process("collect", "-o", "out", "--", "log.csv", code=2)

    assert "I cannot tell which columns are the " in refused.stderr
    line = refused.stderr.partition("Try: posbias ")[2].splitlines()[0]
    assert "--query 'our search' --doc theItem --position gridPlace --click tapped" in line
    done = run_in_process(*shlex.split(line), code=0)
    assert "guessed" not in done.stderr


def test_columns_that_are_guessed_are_said_even_in_quiet(run_in_process: Run, tmp_path: Path) -> None:
    names = dict(zip(LOG.columns, ("search_term", "objectID", "slot", "is-click"), strict=True))
    LOG.rename(names).write_csv(tmp_path / "log.csv")

    done = run_in_process("collect", "log.csv", "-o", "out", "--quiet", code=0)

    said = [line for line in done.stderr.splitlines() if "guessed" in line]
    named = "--query search_term --doc objectID --position slot"
    assert said[-1] == f"! Columns were guessed from their names: {named}. Name them, or others, to be sure."
