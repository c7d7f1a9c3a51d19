"""A log that does not fit into memory is split by query: nothing but the order of the rows may tell."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from command_results import Output, Posbias, invoke
from numpy.typing import NDArray
from polars.testing import assert_frame_equal

from posbias.core.counts import counting_plan
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.engines import local
from posbias.io.engines import local as local_parts
from posbias.io.engines.local import Buckets

TOLERANCE = 1e-12
TINY_MEMORY = 800_000  # bytes: some eight buckets for the logs below
MODELS = ["pbm", "ubm"]


InBuckets = Callable[[], None]


@pytest.fixture
def in_buckets(monkeypatch: pytest.MonkeyPatch) -> InBuckets:
    """Return a function after which commands have next to no memory."""

    def tiny(_: str) -> int:
        return TINY_MEMORY

    def shrink() -> None:
        monkeypatch.setattr("posbias.cli.work.execution.parse_memory", tiny)

    return shrink


@pytest.fixture(scope="module")
def pages() -> pl.DataFrame:
    """Return 500 shuffled pages of 5 positions, 25 queries, with a weight, a segment and a day."""
    frame = simulate(SimulationOptions(n_sessions=500, n_queries=25, docs_per_query=8, n_positions=5, seed=4)).log
    return frame.with_columns(
        weight=pl.col("session") % 3 + 0.5,
        segment=pl.col("session") % 2,
        day=pl.format("2026-01-0{}", pl.col("session") % 2 + 1),
    ).sample(fraction=1.0, shuffle=True, seed=2)


@pytest.fixture
def path(pages: pl.DataFrame, tmp_path: Path) -> Path:
    """Return the pages as a Parquet file."""
    file = tmp_path / "log.parquet"
    pages.write_parquet(file)
    return file


def assert_same_rows(found: pl.DataFrame, expected: pl.DataFrame, keys: list[str]) -> None:
    """The same rows in any order: keys to the letter, numbers up to the order of additions."""
    found, expected = found.sort(keys), expected.sort(keys)
    assert found.schema == expected.schema
    exact = [name for name in expected.columns if expected.schema[name] != pl.Float64]
    assert found.select(exact).equals(expected.select(exact))
    for name in set(expected.columns) - set(exact):
        assert found[name].is_null().equals(expected[name].is_null())
        np.testing.assert_allclose(found[name], expected[name], rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)


def part_files(output: Output, folder: str = ".") -> int:
    return len(list((output.folder / folder).glob("part-*")))


def cell_columns(model: str) -> list[str]:
    return ["position", "previous_click"] if model == "ubm" else ["position"]


OPTIONS = {
    "plain": (),
    "weights": ("--weight-column", "weight"),
    "strata": ("--stratify", "segment"),
    "days": ("--timestamp", "day", "--period", "day"),
    "bins": ("--position-bins", "1,2,4"),
    "errors by session": ("--cluster", "session", "--stratify", "segment"),
    "largest": ("--max-position", "3"),
    "joint": ("--method", "joint"),
    "no query": ("--no-query",),  # not of UBM
}


WITH_OPTIONS = [  # each option with one of the models, and what tells most with both
    *(("ubm", name) for name in [*OPTIONS][:-1]),
    *(("pbm", name) for name in ("plain", "strata", "joint", "no query")),
]


@pytest.mark.parametrize(("model", "name"), WITH_OPTIONS)
@pytest.mark.slow
def test_buckets_give_the_propensities_errors_attractiveness_and_weights_of_one(
    model: str, name: str, path: Path, posbias: Posbias, in_buckets: InBuckets
) -> None:
    arguments = ("run", path, "--model", model, *OPTIONS[name])
    whole = posbias(*arguments)
    in_buckets()
    found = posbias(*arguments)

    assert part_files(whole, "training/rows") == 1
    assert part_files(found, "training/rows") > 3
    if name == "joint":  # EM stops within its tolerance: the order of additions tells there
        columns = ["propensity", "joint_propensity"]
        np.testing.assert_allclose(found.propensities[columns], whole.propensities[columns], rtol=1e-6)
        return
    assert_same_rows(
        found.propensities.drop("joint_propensity"), whole.propensities.drop("joint_propensity"), cell_columns(model)
    )
    assert_same_rows(found.attractiveness, whole.attractiveness, ["query", "doc"])
    assert_same_rows(found.training, whole.training, ["query", "doc", "label"])
    assert found.manifest["rows"] == whole.manifest["rows"]
    assert found.manifest["totals"] == pytest.approx(whole.manifest["totals"])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.slow
def test_statistics_collected_merged_and_fitted_in_buckets_are_those_of_one(
    model: str, pages: pl.DataFrame, path: Path, posbias: Posbias, in_buckets: InBuckets, tmp_path: Path
) -> None:
    days = [tmp_path / f"day-{number}.parquet" for number in range(2)]
    for number, day in enumerate(days):
        pages.filter(pl.col("session") % 2 == number).write_parquet(day)
    whole = posbias("fit", path, "--model", model)
    in_buckets()
    collected = [posbias("collect", day, "--model", model) for day in days]
    merged = posbias("collect", *(output.folder for output in collected))

    assert min(map(part_files, [*collected, merged])) > 1
    for inputs in ([output.folder for output in collected], [merged.folder]):
        found = posbias("fit", *inputs)
        assert_same_rows(
            found.propensities.drop("joint_propensity"),
            whole.propensities.drop("joint_propensity"),
            cell_columns(model),
        )
        assert_same_rows(found.attractiveness, whole.attractiveness, ["query", "doc"])


@pytest.mark.parametrize("form", ["text", "binary", "several"])
@pytest.mark.slow
def test_buckets_split_queries_of_any_type(
    form: str, pages: pl.DataFrame, posbias: Posbias, in_buckets: InBuckets, tmp_path: Path
) -> None:
    text = pl.col("query").cast(pl.String)
    keys: tuple[str, ...] = ()
    if form == "several":
        typed = pages.with_columns(tens=pl.col("query") // 10, ones=pl.col("query") % 10).drop("query")
        keys = ("--query", "tens", "--query", "ones", "--session", "session", "--session", "segment")
    else:
        typed = pages.with_columns(query=text.cast(pl.Binary) if form == "binary" else text)
    typed.write_parquet(tmp_path / "log.parquet")
    arguments = ("run", tmp_path / "log.parquet", "--model", "ubm", "--layout", "session", *keys)
    whole = posbias(*arguments)
    in_buckets()
    found = posbias(*arguments)

    assert part_files(found, "training/rows") > 1
    assert_same_rows(found.training, whole.training, ["session", "position"])
    assert_same_rows(found.attractiveness, whole.attractiveness, ["query", "doc"])


def broken_pages(pages: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Some good pages copied to new sessions and broken in one way, over many queries."""
    good = pages.filter(pl.col("session") < 40).with_columns(pl.col("session") + 10_000)
    changes = {
        "several queries": pl.when(pl.col("position") == 2)
        .then(24 - pl.col("query"))
        .otherwise("query")
        .alias("query"),
        "document twice": pl.when(pl.col("position") < 3).then(0).otherwise(pl.col("doc") + 100).alias("doc"),
        "position twice": pl.when(pl.col("position") == 3).then(4).otherwise("position").alias("position"),
    }
    changed = good.with_columns(changes[kind].cast(pl.Int32))
    return changed.filter(pl.col("query").n_unique().over("session") > 1) if kind == "several queries" else changed


REASONS = {
    "several queries": "the session holds several queries",
    "document twice": "the session shows a document twice",
    "position twice": "the session shows a position twice",
}
CHECKS = [  # the UBM finds every such page by itself, whatever is asked for
    *(("pbm", "all", kind) for kind in REASONS),
    *(("ubm", "sample", kind) for kind in REASONS),
    ("ubm", "all", "document twice"),
]


@pytest.mark.parametrize(("model", "check", "kind"), CHECKS)
@pytest.mark.slow
def test_one_impossible_page_in_any_bucket_stops_the_run(
    model: str, check: str, kind: str, pages: pl.DataFrame, in_buckets: InBuckets, tmp_path: Path
) -> None:
    in_buckets()
    broken = broken_pages(pages, kind)
    for session in sorted(set(broken["session"]))[:4]:
        log = tmp_path / f"{session}.parquet"
        pl.concat([pages, broken.filter(session=session)]).write_parquet(log)
        done = invoke("fit", log, "-o", tmp_path / "out", "--model", model, "--check-pages", check, code=2)

        assert f"1 x {REASONS[kind]}" in done.stderr
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("model", MODELS)
def test_a_log_without_a_good_row_is_refused_in_buckets_too(model: str, tmp_path: Path, in_buckets: InBuckets) -> None:
    path = tmp_path / "log.parquet"
    simulate(SimulationOptions(n_sessions=300)).log.with_columns(click=pl.lit(7)).write_parquet(path)
    in_buckets()

    done = invoke("fit", path, "--model", model, "--on-bad-rows", "drop", "-o", tmp_path / "out", code=2)

    assert "every row was rejected (3,000 x the click is neither 0 nor 1)" in done.stderr


def test_ranks_of_the_texts_of_a_bucket_spell_its_rows(tmp_path: Path) -> None:
    number = pl.int_range(5_000)
    log = pl.select(
        query=pl.lit("one"),
        doc=pl.format("d{}", number * 7 % 900),
        device=pl.when(number % 3 > 0).then(pl.lit("phone")),
        position=number % 10,
    )
    buckets = Buckets(tmp_path, 1)
    buckets.write([log.head(3_000).lazy(), log.slice(3_000).lazy()])
    rows, texts = buckets.dictionary_encoded(0, log.columns)
    assert list(texts) == ["query", "doc"]
    assert texts["doc"].equals(log["doc"].unique().sort())
    assert_frame_equal(rows.with_columns(texts[name].gather(rows[name]) for name in texts), log)


@pytest.mark.slow
@pytest.mark.parametrize("ids", ["integers", "texts"])
@pytest.mark.parametrize("model", ["pbm", "ubm"])
def test_a_query_that_is_larger_than_a_bucket_is_worked_on_in_pieces(
    model: str, ids: str, path: Path, posbias: Posbias, in_buckets: InBuckets, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ids == "texts":
        pl.read_parquet(path).with_columns(pl.col("query").cast(pl.String)).write_parquet(path)
    whole = posbias("collect", path, "--model", model, "--timestamp", "none")
    in_buckets()
    at_once = list[int]()
    monkeypatch.setattr(local_parts, "_MOST_ROWS_AT_ONCE", 30)
    monkeypatch.setattr(local_parts, "_MOST_NUMBERS_AT_ONCE", 30)
    watched = [(local_parts, "_count_piece"), (counting_plan, "count_equal")]
    for module, name in [*watched, (local, "pages")] if model == "ubm" else watched:
        monkeypatch.setattr(module, name, noting(getattr(module, name), at_once))
    in_pieces = posbias("collect", path, "--model", model, "--timestamp", "none")
    keys = ["query", "doc", "position", *(["previous_click"] if model == "ubm" else [])]
    one, many = (pl.read_parquet(output.folder / "part-*.parquet").sort(keys) for output in (whole, in_pieces))
    assert_frame_equal(many, one)
    rows = pl.read_parquet(path).height
    assert sum(at_once) >= rows
    assert max(at_once) < rows / 10


def noting(work: Callable[..., Any], sizes: list[int]) -> Callable[..., Any]:
    """The same function, which notes the rows of what it is given first."""

    def noted(rows: pl.LazyFrame | NDArray[Any], *others: object) -> object:
        sizes.append(rows.select(pl.len()).collect().item() if isinstance(rows, pl.LazyFrame) else len(rows))
        return work(rows, *others)

    return noted


def test_a_disk_that_is_too_small_for_temporary_files_is_found_before_it_is_full(
    path: Path, tmp_path: Path, in_buckets: InBuckets, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_buckets()

    def little(_: object) -> SimpleNamespace:
        return SimpleNamespace(free=5_000)

    monkeypatch.setattr("shutil.disk_usage", little)
    done = invoke("fit", path, "-o", tmp_path / "out", "--temp-dir", tmp_path, code=2)
    assert f"{tmp_path}: No space left on device for temporary files: about 0 MB are needed" in done.stderr
    assert sorted(tmp_path.iterdir()) == [path]


WRONG = {
    "clicks only": (pl.col("click") == 1, "impressions are clicked"),
    "down to the last click": (
        pl.col("position") <= pl.col("position").filter(pl.col("click") == 1).max().over("session"),
        "pages with a click end on a click",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.parametrize("model", MODELS)
def test_a_log_of_what_was_clicked_is_refused_in_buckets_with_the_same_words(
    fault: str, model: str, pages: pl.DataFrame, tmp_path: Path, in_buckets: InBuckets
) -> None:
    kept, says = WRONG[fault]
    pages.filter(kept).write_parquet(tmp_path / "log.parquet")
    words = ("fit", tmp_path / "log.parquet", "--model", model, "-o", tmp_path / "out")
    at_once = invoke(*words, code=2)
    in_buckets()
    bucketed = invoke(*words, "--check-pages", "all", code=2)

    assert says in at_once.stderr
    assert bucketed.stderr == at_once.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_row_may_be_wider_than_memory(tmp_path: Path, posbias: Posbias, monkeypatch: pytest.MonkeyPatch) -> None:
    log = simulate(SimulationOptions(n_sessions=20, n_queries=2, docs_per_query=4, n_positions=3, seed=1)).log
    log.with_columns(pl.format("https://example.com/{}", "doc").alias("doc")).write_parquet(tmp_path / "log.parquet")
    expected = posbias("fit", tmp_path / "log.parquet", "--no-compare").propensities
    monkeypatch.setattr("posbias.cli.work.execution.parse_memory", _less_than_a_row)

    assert_frame_equal(posbias("fit", tmp_path / "log.parquet", "--no-compare").propensities, expected)


def _less_than_a_row(_: str) -> int:
    return 1000
