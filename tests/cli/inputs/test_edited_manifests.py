"""A manifest is data from outside: whatever is done to it is one clear error, or changes no number."""

import copy
import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
from command_results import manifest_of, reseal
from hypothesis import given, settings
from hypothesis import strategies as st
from workshop import RunPosbias as Run

from posbias import open_result
from posbias.core.errors import LogFormatError, PosbiasError, StatisticsError
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.fits.saved_fit import read_fit
from posbias.io.jobs.click_models import read_fitted
from posbias.io.jobs.comparing import open_fit
from posbias.io.jobs.exploring import open_explored, whole_queries
from posbias.io.reports.report import open_results, report_html
from posbias.io.results.manifest import checksum_of_content
from posbias.io.stores.store import Statistics, checked, find_statistics, one_by_one
from posbias.io.training.rankers import read_model

Way = tuple[str | int, ...]

GONE = object()
HUGE = 10**30
VALUES: list[object] = [
    GONE,
    None,
    [],
    {},
    "",
    "x",
    True,
    -1,
    0,
    1.5,
    HUGE,
    -0.5,
    [None],
    {"x": None},
    "\x1b[31m\u0000",
]
READ_OF_STATISTICS = ("schema", "version", "counted", "key_types", "decay", "rows", "statistics", "segments")


@pytest.fixture
def there(made: Callable[[str], Path], shared: Path, tmp_path: Path) -> Path:
    """The statistics `s` of two days and a context, the fit `f` to them, and their log."""
    for name in ("s", "f"):
        made(name)
    shutil.copy(shared / "log.parquet", tmp_path)
    return tmp_path


def ways(value: object, way: Way = ()) -> Iterator[Way]:
    """The way to every field of a manifest, the outer ones first."""
    if way:
        yield way
    inner: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        inner = list(cast("dict[str | int, object]", value).items())
    elif isinstance(value, list):
        inner = list(enumerate(cast("list[object]", value)))
    for step, found in inner:
        yield from ways(found, (*way, step))


def edited(content: dict[str, Any], way: Way, value: object) -> dict[str, Any]:
    """The manifest with another value there, or without it."""
    changed: Any = copy.deepcopy(content)
    holder = changed
    for step in way[:-1]:
        holder = holder[step]
    if value is GONE:
        del holder[way[-1]]
    else:
        holder[way[-1]] = value
    return changed


def edits(content: dict[str, Any], tops: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every edit of every field below some names, with what it is."""
    for way in ways({name: content[name] for name in tops}):
        for value in VALUES:
            changed = edited(content, way, value)
            if json.dumps(changed) != json.dumps(content):
                yield f"{'.'.join(map(str, way))} = {'gone' if value is GONE else value!r}", changed


def made_right(content: dict[str, Any]) -> dict[str, Any]:
    """A manifest with the checksum of its content, as somebody may write it who wants us to read it."""
    return content | {"checksum": checksum_of_content(content)}


def assert_one_error(done: CompletedProcess[str], what: str) -> None:
    """Exit code 2 and one message, no traceback."""
    assert done.returncode == 2, f"{what}: {done.returncode}, {done.stderr}"
    assert done.stdout == "", what
    assert done.stderr.startswith("posbias: error: "), f"{what}: {done.stderr}"
    assert done.stderr.count("\n") == 1, f"{what}: {done.stderr}"
    assert "fault of posbias" not in done.stderr, what


def statistics_at(folder: Path) -> Statistics | None:
    """What every command does with statistics before it uses a number of theirs; None where it refuses them."""
    try:
        (found,) = find_statistics([str(folder)])
        with checked([found], one_by_one):
            return found
    except StatisticsError:
        return None


@pytest.mark.slow
def test_every_edit_of_the_manifest_of_statistics_is_one_error(there: Path, run_in_process: Run) -> None:
    path = there / "s" / "manifest.json"
    content = json.loads(path.read_text())
    all_edits = list(edits(content, READ_OF_STATISTICS))
    assert len(all_edits) > 400
    for number, (what, changed) in enumerate(all_edits):
        path.write_text(json.dumps(changed))
        assert statistics_at(there / "s") is None, what
        if number % 20 == 0:
            assert_one_error(run_in_process("collect", "--info", "s"), what)


@pytest.mark.slow
def test_an_edit_with_the_checksum_made_right_is_one_error_or_changes_no_number(
    there: Path, run_in_process: Run
) -> None:
    path = there / "s" / "manifest.json"
    content = json.loads(path.read_text())
    accepted = dict[str, dict[str, Any]]()
    for what, changed in edits(content, READ_OF_STATISTICS):
        path.write_text(json.dumps(made_right(changed)))
        found = statistics_at(there / "s")
        if found is not None:
            assert found.totals == content["statistics"], what
            accepted[what] = changed
    assert accepted
    for what, changed in accepted.items():
        path.write_text(json.dumps(made_right(changed)))
        done = run_in_process("fit", "s", "-o", "again", "--no-compare", "--force")
        assert done.returncode in (0, 1), f"{what}: {done.stderr}"
        found, expected = (there / name / "propensities.parquet" for name in ("again", "f"))
        assert found.read_bytes() == expected.read_bytes(), what


# --- what is no manifest at all -------------------------------------------------------------------------------

WRONG_TEXTS = {
    "empty": b"",
    "an array": b"[]",
    "a word": b'"posbias.statistics"',
    "not whole": b'{"schema": "posbias.statistics", ',
    "nested too deeply": b'{"schema": "posbias.statistics", "version": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nested deeply": b'{"schema": "posbias.statistics", "version": 4, "x": ' + b"[" * 950 + b"]" * 950 + b"}",
    "not UTF-8": b'{"schema": "posbias.statistics", "version": 4, "command": "\xff"}',
    "a lone surrogate": b'{"schema": "posbias.statistics", "version": 4, "command": "\\ud800"}',
    "NaN": b'{"schema": "posbias.statistics", "version": 4, "rows": NaN}',
    "another version": b'{"schema": "posbias.statistics", "version": 999}',
    "a version that is none": b'{"schema": "posbias.statistics", "version": "4"}',
    "a version with many digits": b'{"schema": "posbias.statistics", "version": ' + b"9" * 4000 + b"}",
    "a number beyond all": b'{"schema": "posbias.statistics", "version": 1e999}',
    "another schema": b'{"schema": ["posbias.statistics"]}',
}


@pytest.mark.parametrize("text", WRONG_TEXTS.values(), ids=WRONG_TEXTS)
@pytest.mark.parametrize("of", ["s", "f"])
def test_what_is_no_manifest_is_one_error(there: Path, run_in_process: Run, of: str, text: bytes) -> None:
    (there / of / "manifest.json").write_bytes(text)
    words = {"s": ("fit", "s", "-o", "out"), "f": ("weight", "s", "--propensities", "f", "-o", "out")}
    done = run_in_process(*words[of])
    assert_one_error(done, of)
    assert not (there / "out").exists()


def test_a_field_that_stands_twice_counts_as_it_is_read(there: Path, run_in_process: Run) -> None:
    path = there / "s" / "manifest.json"
    whole = path.read_text()
    path.write_text(whole.replace('"version": 4', '"version": 3, "version": 4'))
    run_in_process("collect", "--info", "s", code=0)
    path.write_text(whole.replace('"read": 1600', '"read": 1600, "read": 1601'))
    assert_one_error(run_in_process("collect", "--info", "s"), "rows that stand twice")


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_directory(path: Path) -> None:
    path.mkdir()


def link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def make_enormous(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def make_large(path: Path) -> None:
    path.write_bytes(b'{"schema": "posbias.statistics", "x": "' + b"x" * 100_000_000 + b'"}')


ODD_FILES = [make_fifo, make_directory, link_to_a_device, link_to_itself, make_enormous, make_large]


@pytest.mark.parametrize("make", ODD_FILES)
@pytest.mark.parametrize("of", ["s", "f"])
def test_what_is_no_plain_file_of_a_manifests_size_is_not_read(
    there: Path, run_in_process: Run, of: str, make: Callable[[Path], None]
) -> None:
    (there / of / "manifest.json").unlink()
    make(there / of / "manifest.json")
    words = {"s": ("fit", "s", "-o", "out"), "f": ("weight", "s", "--propensities", "f", "-o", "out")}
    done = run_in_process(*words[of])
    assert_one_error(done, of)
    assert "manifest" in done.stderr


@pytest.mark.parametrize("make", [make_fifo, link_to_a_device, make_enormous])
def test_a_directory_of_logs_may_hold_anything_of_that_name(
    there: Path, run_in_process: Run, make: Callable[[Path], None]
) -> None:
    folder = there / "logs"
    folder.mkdir()
    (there / "log.parquet").rename(folder / "log.parquet")
    make(folder / "manifest.json")
    run_in_process("collect", "logs", "-o", "out", code=0)


# --- names of parts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["/etc/hostname", "../other.parquet", "sub/part-00000.parquet", "..", "", "part-0.parquet"]
)
def test_a_part_has_a_plain_name_of_our_own(there: Path, run_in_process: Run, name: str) -> None:
    shutil.copy(there / "s" / "part-00000.parquet", there / "other.parquet")
    path = there / "s" / "manifest.json"
    content = json.loads(path.read_text())
    content["segments"][0]["parts"][0]["name"] = name
    path.write_text(json.dumps(made_right(content)))
    for words in (("collect", "s", "-o", "out"), ("fit", "s", "-o", "out"), ("collect", "--info", "s")):
        done = run_in_process(*words)
        assert_one_error(done, name)
        assert re.search(r"manifest\.json: is damaged: .*parts\[0\]\.name", done.stderr)
    assert not (there / "out").exists()


# --- results and models ---------------------------------------------------------------------------------------

NAMES = ["..", "../x", "a/../../x", "/etc/passwd", "a//b", "a\0b", ".", "propensities.parquet/..", "\\", "x" * 300]
OF_DAYS = ("--timestamp", "day", "--context", "device", "--max-position", "4")
MADE = {
    "s": ("collect", "log.parquet", *OF_DAYS),
    "f": ("fit", "s", "--no-compare"),
    "fit": ("fit", "log.parquet", "--no-compare"),
    "each": ("fit", "log.parquet", "--no-compare", "--for-each", "device"),
    "clicks": ("fit", "log.parquet", "--model", "dbn"),
    "weighted": ("weight", "log.parquet", "--propensities", "fit"),
    "trees": (
        "train",
        "log.parquet",
        "--learner",
        "naive",
        "--features",
        "features.parquet",
        "--learner-options",
        "trees=3",
    ),
    "network": (
        "train",
        "log.parquet",
        "--learner",
        "single-tower",
        "--features",
        "numbers.parquet",
        "--learner-options",
        "epochs=1",
    ),
    "factors": ("train", "log.parquet", "--learner", "mf", "--learner-options", "steps=3"),
}
ROWS_FOR = {"trees": "features.parquet", "network": "numbers.parquet", "factors": "numbers.parquet"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a log and features, where results are made once."""
    folder = tmp_path_factory.mktemp("results")
    log = simulate(SimulationOptions(n_sessions=400, n_queries=8, docs_per_query=6, n_positions=4, seed=5)).log
    log.with_columns(
        device=pl.when(pl.col("session") % 2 == 0).then(pl.lit("phone")).otherwise(pl.lit("desk")),
        day=pl.when(pl.col("session") % 3 == 0).then(pl.lit("2026-01-05")).otherwise(pl.lit("2026-01-06")),
    ).write_parquet(folder / "log.parquet")
    pairs = log.select("query", "doc").unique(maintain_order=True)
    rng = np.random.default_rng(0)
    numbers = pairs.with_columns(x=rng.standard_normal(pairs.height), y=rng.standard_normal(pairs.height))
    numbers.write_parquet(folder / "numbers.parquet")
    numbers.with_columns(y=pl.Series(rng.choice(["a", "b"], pairs.height))).write_parquet(folder / "features.parquet")
    return folder


@pytest.fixture
def made(shared: Path, run_in_process: Run, tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that returns a copy of a result."""

    def of(name: str) -> Path:
        for needed in ("s" if name == "f" else "fit", name):
            if not (shared / needed).exists():
                run_in_process(*MADE[needed], "-o", needed, cwd=shared, code=(0, 1))
        shutil.copytree(shared / name, tmp_path / name)
        return tmp_path / name

    return of


def read_reported(folder: Path) -> None:
    with open_results([folder]):
        pass


def draw_report(folder: Path) -> None:
    with open_results([folder]) as results:
        report_html(results)


def read_explored(folder: Path) -> None:
    with open_explored(folder) as (explored, _):
        list(whole_queries(explored))


def read_opened(folder: Path) -> None:
    """Read a result as Python does: its manifest, its tables, and what weights are made from."""
    result: Any = open_result(folder)
    str(result)
    for name in ("propensities", "attractiveness"):
        if f"{name}.parquet" in result.files:
            result.table(name)
    _ = result._fitted


_FEW = 25  # of more, reports are drawn as well
READERS = (read_fitted, read_fit, read_reported, read_explored, open_fit, read_opened, read_model)


@st.composite
def random_edits(draw: st.DrawFn, content: dict[str, Any]) -> dict[str, Any]:
    """A manifest with one to three values replaced, gone, or with another name."""
    for _ in range(draw(st.integers(1, 3))):
        places = list(ways(content))
        tops = sorted({way[0] for way in places}, key=str)
        top = draw(st.sampled_from(tops))
        way: Way = draw(st.sampled_from([way for way in places if way[0] == top]))
        if isinstance(way[-1], str) and draw(st.integers(0, 3)) == 0:
            holder: Any = content
            for step in way[:-1]:
                holder = holder[step]
            content = edited(content, (*way[:-1], draw(st.sampled_from(NAMES))), holder[way[-1]])
        else:
            content = edited(content, way, draw(st.sampled_from([*VALUES, GONE, *NAMES, 10**400, 5e-324, 1e308])))
        if not content:
            break
    return content


@pytest.mark.slow
@pytest.mark.parametrize("examples", [12, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [*MADE][2:])
def test_an_edited_manifest_is_one_error_of_every_reader_or_is_read(
    made: Callable[[str], Path], name: str, examples: int
) -> None:
    folder = made(name)
    path, content = folder / "manifest.json", manifest_of(folder)
    readers = (*READERS, draw_report) if examples > _FEW else READERS

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True)
    @given(random_edits(content))
    def holds(changed: dict[str, Any]) -> None:
        path.write_text(json.dumps(made_right(changed)), encoding="utf-8")
        for reader in readers:
            with suppress(PosbiasError):
                reader(folder)

    holds()


def with_array(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """An edit of an array of `model.npz`."""

    def edit(folder: Path) -> None:
        with np.load(folder / "model.npz") as arrays:
            held = dict(arrays)
        np.savez(folder / "model.npz", **(held | {name: change(held[name])}))

    return edit


def with_text(change: Callable[[str], str]) -> Callable[[Path], object]:
    """An edit of `model.txt`."""
    return lambda folder: (folder / "model.txt").write_text(change((folder / "model.txt").read_text()))


def compressed(folder: Path) -> None:
    with np.load(folder / "model.npz") as arrays:
        held = dict(arrays)
    np.savez_compressed(folder / "model.npz", **held)


def larger_than_it_is(folder: Path) -> None:
    with zipfile.ZipFile(folder / "model.npz") as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    wrong = re.sub(rb"'shape': \(.*?\)", b"'shape': (999999999999,)", entries["mean.npy"])
    with zipfile.ZipFile(folder / "model.npz", "w") as archive:
        for name, content in (entries | {"mean.npy": wrong}).items():
            archive.writestr(name, content)


MODEL_EDITS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a number that is none": ("network", with_array("mean", lambda it: it * np.nan), "mean holds a number that is not"),
    "a scale of 0": ("network", with_array("scale", lambda it: it * 0), "scale holds a number that is not above 0"),
    "other layers": ("network", with_array("weight_0", lambda it: it[:, :-1]), "its layers do not fit together"),
    "a layer too many": ("network", with_array("mean", lambda it: it[:1]), "its layers do not fit together"),
    "objects": ("network", with_array("mean", lambda it: it.astype(object)), "holds no array of numbers"),
    "text": ("network", with_array("mean", lambda it: it.astype(str)), "holds no array of numbers"),
    "compressed": ("network", compressed, "is compressed"),
    "larger than it is": ("network", larger_than_it_is, "has not the shape that it says"),
    "scores without end": ("network", with_array("bias_0", lambda it: it + 1e308), "a score is not finite"),
    "no archive": (
        "network",
        lambda at: (at / "model.npz").write_bytes(b"PK") and None,
        "is no model that can be read",
    ),
    "factors of others": ("factors", with_array("item_bias", lambda it: it[1:]), "its factors do not fit together"),
    "ids twice": (
        "factors",
        lambda at: (
            pl.read_parquet(at / "queries.parquet")
            .head(1)
            .pipe(lambda it: pl.concat([it] * 8))
            .write_parquet(at / "queries.parquet")
        ),
        "queries.parquet: does not hold one column 'query' of ids, each once",
    ),
    "no trees": ("trees", lambda at: (at / "model.txt").write_text("tree\n"), "is no model that can be read"),
    "trees cut off": ("trees", with_text(lambda it: it[: it.index("end of trees")]), "is no model that can be read"),
    "leaves too few": (
        "trees",
        with_text(lambda it: re.sub("num_leaves=[0-9]+", "num_leaves=99", it, count=1)),
        "tree 0: its nodes form no tree",
    ),
    "a foreign model": ("trees", with_text(lambda _: "[foreign]\nTree=0\nend of trees\n"), "is no model that can be"),
    "two scores a row": (
        "trees",
        with_text(lambda it: re.sub("(num_class|num_tree_per_iteration)=1", r"\1=2", it)),
        "LightGBM cannot score with it: ",
    ),
    "no text": ("trees", lambda at: (at / "model.txt").write_bytes(b"\xff"), "is no model that can be read"),
}


@pytest.mark.parametrize("what", MODEL_EDITS)
def test_an_edited_model_is_one_error(
    made: Callable[[str], Path], shared: Path, run_in_process: Run, what: str
) -> None:
    name, edit, says = MODEL_EDITS[what]
    folder = made(name)
    edit(folder)
    reseal(folder)
    done = run_in_process("score", shared / ROWS_FOR[name], "--model", folder, "-o", "scored")
    assert_one_error(done, what)
    assert says in done.stderr
    assert not (folder.parent / "scored").exists()


COVARIANCE, PAIRS, CELLS = "theta_covariance.parquet", "attractiveness.parquet", "propensities.parquet"
POSITION = pl.col("position")
NEGATIVE = pl.col("shared_clicks").list.eval(-pl.element())


def third(column: str, value: float | None) -> pl.Expr:
    """Another value in the third row."""
    return pl.when(pl.int_range(pl.len()) == 2).then(value).otherwise(column).alias(column)


TABLE_EDITS: list[tuple[str, str, str, bytes | pl.Expr | list[str] | None, str]] = [
    # the result, the command, the table, what is done to it (None: it is gone; names: columns go), the error
    ("clicks", "weight", "parameters.parquet", b"PAR1", "cannot be read as Parquet"),
    ("clicks", "weight", "parameters.parquet", ["value"], "is damaged"),
    ("clicks", "weight", PAIRS, None, "holds no attractiveness.parquet"),
    ("fit", "weight", COVARIANCE, b"", "theta_covariance.parquet: cannot be read as Parquet"),
    ("fit", "weight", CELLS, b"PAR1", "propensities.parquet: cannot be read as Parquet"),
    ("fit", "explore", COVARIANCE, ["shared_clicks"], "does not say which clicks compare"),
    ("fit", "explore", COVARIANCE, None, "does not say which clicks compare"),
    ("fit", "explore", COVARIANCE, POSITION + 1, "have other cells"),
    ("fit", "explore", COVARIANCE, NEGATIVE, "at least 0 and symmetric"),
    ("fit", "explore", PAIRS, None, "holds no attractiveness.parquet"),
    ("fit", "explore", PAIRS, ["std_dev"], "has no column 'std_dev'"),
    ("fit", "explore", PAIRS, pl.lit(1.5).alias("attractiveness"), "not between 0 and 1"),
    ("fit", "explore", PAIRS, b"PAR1 of another kind", "attractiveness.parquet: cannot be read as Parquet"),
    ("fit", "explore", CELLS, ["ci_low"], "no numbers in a column 'ci_low'"),
    ("fit", "explore", CELLS, pl.lit(0).alias("impressions"), "has no impressions"),
    *(("fit", "report", name, b"no table", f"{name}: cannot be read") for name in (COVARIANCE, PAIRS, CELLS)),
    ("fit", "report", CELLS, ["ctr"], "no column 'ctr'"),
    ("fit", "report", CELLS, ["clicks"], "no column 'clicks'"),
    ("fit", "report", PAIRS, ["std_dev"], "no column 'std_dev'"),
    ("fit", "weight", CELLS, third("propensity", -0.5), "row 3 has a propensity that is not between 1e-30 and 1e+30"),
    *(
        ("fit", "weight", CELLS, third("propensity", value), "row 3 has a propensity")
        for value in (0.0, np.inf, np.nan)
    ),
    ("fit", "weight", CELLS, third("propensity", 1e200), "row 3 has a propensity"),
    ("fit", "weight", CELLS, third("examination", 1.5), "row 3 has an examination"),
    ("fit", "weight", CELLS, third("examination", np.nan), "row 3 has an examination"),
    ("fit", "weight", CELLS, third("weight_propensity", 0.5), "row 3 has a weight_propensity that is neither its"),
    ("fit", "weight", CELLS, third("position", None), "row 3 has no position"),
    ("fit", "weight", CELLS, POSITION - 1, "row 1 has no position: position 0,"),
    (
        "fit",
        "weight",
        CELLS,
        pl.when(POSITION < 3).then(1).otherwise(POSITION).alias("position"),
        "row 2 repeats a cell",
    ),
    ("fit", "weight", CELLS, pl.col("propensity").cast(pl.String), "holds String instead of numbers"),
    ("fit", "weight", CELLS, POSITION + 0.5, "holds Float64 instead of whole numbers"),
    ("fit", "weight", CELLS, ["examination"], "has no column 'examination'"),
    ("fit", "weight", CELLS, ["position"], "has no column 'position'"),
]


@pytest.mark.slow_after(8)
@pytest.mark.parametrize(("name", "command", "table", "edit", "says"), TABLE_EDITS)
def test_a_table_that_no_fit_wrote_is_one_error(
    *,
    made: Callable[[str], Path],
    shared: Path,
    run_in_process: Run,
    name: str,
    command: str,
    table: str,
    edit: bytes | pl.Expr | list[str] | None,
    says: str,
) -> None:
    folder = made(name)
    path = folder / table
    if isinstance(edit, bytes):
        path.write_bytes(edit)
    elif edit is None:
        path.unlink()
    else:
        held = pl.read_parquet(path)
        (held.drop(edit) if isinstance(edit, list) else held.with_columns(edit)).write_parquet(path)
    reseal(folder)
    out = folder.parent / "out.html"
    words = (shared / "log.parquet", "--propensities", folder) if command == "weight" else (folder,)
    done = run_in_process(command, *words, "-o", out)
    assert_one_error(done, says)
    assert says in done.stderr
    assert not out.exists()


def flipped(content: bytes, at: int, bit: int) -> bytes:
    """The same bytes but for one bit."""
    place = at % len(content)
    return content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


@pytest.mark.parametrize("examples", [3, pytest.param(80, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ROWS_FOR)
def test_a_bit_of_a_model_that_was_flipped_is_one_error_and_with_digests_made_right_never_a_traceback(
    made: Callable[[str], Path], shared: Path, run_in_process: Run, name: str, examples: int
) -> None:
    folder = made(name)
    path = next(iter(sorted(folder.glob("model.*"))))
    whole, sealed = path.read_bytes(), (folder / "manifest.json").read_bytes()
    words = ("score", shared / ROWS_FOR[name], "--model", folder, "-o", "scored", "--force", "--quiet")

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True)
    @given(st.integers(0, len(whole) - 1), st.integers(0, 7))
    def holds(at: int, bit: int) -> None:
        path.write_bytes(flipped(whole, at, bit))
        (folder / "manifest.json").write_bytes(sealed)
        done = run_in_process(*words)
        assert_one_error(done, f"bit {bit} of byte {at}")
        assert f"{path}: is damaged: its bytes are not those that were written" in done.stderr
        reseal(folder)
        done = run_in_process(*words)
        if done.returncode:
            assert_one_error(done, f"bit {bit} of byte {at}, sealed")

    holds()


OF_A_FIT = ("weight", "train", "evaluate", "explore", "report", "show", "compare", "open_result")
READ_BY: dict[tuple[str, str], tuple[str, ...]] = {
    ("fit", "propensities.parquet"): OF_A_FIT,
    ("fit", "theta_covariance.parquet"): ("weight", "train", "evaluate", "explore", "report", "compare", "open_result"),
    ("fit", "attractiveness.parquet"): ("explore", "report", "open_result"),
    ("each", "propensities.parquet"): ("show",),
    ("each", "device=desk/propensities.parquet"): ("report",),
    ("clicks", "parameters.parquet"): ("weight", "show", "open_result"),
    ("clicks", "attractiveness.parquet"): ("weight", "open_result"),
    ("trees", "model.txt"): ("score",),
    ("trees", "learning_curve.parquet"): ("show",),
    ("trees", "scores.parquet"): ("judge",),
    ("network", "model.npz"): ("score",),
    ("factors", "documents.parquet"): ("score",),
}


@pytest.mark.parametrize(("name", "table"), READ_BY)
@pytest.mark.slow_after(6)
def test_a_bit_of_a_table_that_was_flipped_is_one_error_of_every_command_that_reads_it(
    made: Callable[[str], Path], shared: Path, run_in_process: Run, tmp_path: Path, name: str, table: str
) -> None:
    folder, other = made(name), shared / "fit"
    path = folder / table
    path.write_bytes(flipped(path.read_bytes(), path.stat().st_size // 2, 3))
    log, features = shared / "log.parquet", shared / "features.parquet"
    words: dict[str, tuple[str | Path, ...]] = {
        "weight": ("weight", log, "--propensities", folder),
        "train": ("train", log, "--propensities", folder, "--features", features),
        "evaluate": ("evaluate", log, "--propensities", folder, "--scores", features),
        "judge": ("evaluate", log, "--propensities", other, "--scores", path),
        "explore": ("explore", folder),
        "report": ("report", folder),
        "show": ("show", folder),
        "compare": ("compare", folder, other),
        "score": ("score", features, "--model", folder),
    }
    says = f"{path}: is damaged: its bytes are not those that were written. Make the result again"
    for command in READ_BY[name, table]:
        if command == "open_result":
            with pytest.raises(LogFormatError, match=re.escape(says)):
                read_opened(folder)
            continue
        to = () if command == "show" else ("-o", tmp_path / ("out.html" if command == "report" else "out"))
        done = run_in_process(*words[command], *to)
        assert_one_error(done, command)
        assert says in done.stderr
        assert not list(tmp_path.glob("out*"))


def test_a_result_of_an_earlier_version_has_no_digests_and_is_read(
    made: Callable[[str], Path], shared: Path, run_in_process: Run
) -> None:
    folder = made("fit")
    content = {name: value for name, value in manifest_of(folder).items() if name != "digests"}
    (folder / "manifest.json").write_text(json.dumps(made_right(content)), encoding="utf-8")
    done = run_in_process(
        "weight", shared / "log.parquet", "--propensities", folder, "-o", "weighted", "--quiet", code=0
    )
    assert "is damaged" not in done.stderr


@pytest.mark.parametrize("name", NAMES[:-1])
def test_no_name_in_a_manifest_leads_out_of_the_result(
    made: Callable[[str], Path], run_in_process: Run, name: str
) -> None:
    folder = made("each")
    whole = manifest_of(folder)
    value = whole["for_each"]["values"][0] | {"folder": name}
    for changed in (
        whole | {"files": whole["files"] | {name: 3}},
        whole | {"digests": {name: "0" * 32}},
        whole | {"for_each": whole["for_each"] | {"values": [value]}},
    ):
        (folder / "manifest.json").write_text(json.dumps(made_right(changed)), encoding="utf-8")
        done = run_in_process("report", folder, "-o", "out.html")
        assert_one_error(done, name)
        assert "is no name of a file or folder within a result" in done.stderr
