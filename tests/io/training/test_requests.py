"""Training files that cannot be made as asked: one message, nothing written, and where possible no log read."""

from collections.abc import Generator
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner, Result

from posbias.cli.main import app

ROWS = [(s, f"q{s % 3}", (s + k) % 4, k, int((2 * s + k) % 3 == 0), 0.5) for s in range(60) for k in range(1, 5)]
COLUMNS = ["session", "query", "doc", "position", "click", "price"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """Yield a directory with logs, a fit and tables of features."""
    folder = tmp_path_factory.mktemp("requests")
    log = pl.DataFrame(ROWS, schema=COLUMNS, orient="row")
    log.write_parquet(folder / "log.parquet")
    log.with_columns(position=pl.col("position") - 1).write_parquet(folder / "unreadable.parquet")
    log.with_columns(click=0).write_parquet(folder / "unclicked.parquet")
    log.filter(pl.col("position") == 1).write_parquet(folder / "alone.parquet")
    pairs = log.select("query", "doc").unique()
    pairs.with_columns(price=pl.lit(2.0)).write_parquet(folder / "prices.parquet")
    pairs.with_columns(label=pl.lit(2.0)).write_parquet(folder / "taken.parquet")
    pairs.with_row_index("").write_csv(folder / "numbered.csv")
    pairs.with_columns(pl.lit(2.0).alias("*")).write_parquet(folder / "pattern.parquet")
    pairs.select("query", price=pl.lit(2.0)).write_parquet(folder / "keyless.parquet")
    pairs.select("doc", seen=pl.lit("2026-01-01").str.to_date()).unique("doc").write_parquet(folder / "days.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert invoke("fit", "log.parquet", "-o", "fit", "--no-compare").exit_code in (0, 1)
        yield folder


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, words, catch_exceptions=False)


def refused(place: Path, log: str, *options: str) -> str:
    """The message of a run that must fail and leave nothing behind."""
    done = invoke("weight", log, "--propensities", "fit", "-o", "out", *options)
    assert done.exit_code == 2, done.output
    assert not (place / "out").exists()
    return " ".join(done.output.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--features nowhere.parquet", "nowhere.parquet: no such file"),
        ("--features keyless.parquet", "keyless.parquet: no column says which document"),
        ("--features taken.parquet", "the feature 'label' has a name that is reserved in training files"),
        ("--features days.parquet", "the feature 'seen' holds Date"),
        ("--features numbered.csv", "the column '' looks like the row numbers that pandas writes"),
        ("--features pattern.parquet", "the name of the column '*' is a pattern"),
        ("--features prices.parquet --feature price", "there is another feature 'price'"),
        ("--features prices.parquet --features prices.parquet", "there is another feature 'price'"),
        ("--layout session --feature position", "--feature position: this name is reserved"),
        ("--feature colour", "there is no column 'colour' (--feature)"),
        ("--missing drop", "--missing drop: has no effect here: only a table of features"),
        (
            "--layout-options rate=ips",
            "--layout-options rate=ips: has no effect here: it applies only to --layout judgments",
        ),
        (
            "--layout-options grades=4",
            "--layout-options grades=4: has no effect here: it applies only to --layout judgments",
        ),
        ("--layout judgments --self-normalize", "--self-normalize: has no effect here: --layout judgments"),
        (
            "--layout session --layout-options validation_by=session",
            "--layout-options validation_by=session: has no effect here",
        ),
        (
            "--layout session --layout-options negatives=posterior",
            "--layout-options negatives=posterior: has no effect here: it applies only",
        ),
        ("--validation 1", "--validation 1: must be at least 0 and below 1"),
        ("--format lightgbm", "--format lightgbm writes what a model learns from, and there are no features"),
    ],
)
def test_wrong_requests_are_found_before_the_log_is_read(place: Path, options: str, message: str) -> None:
    assert message in refused(place, "unreadable.parquet", *options.split())


def test_a_log_that_teaches_nothing_is_refused_where_only_clicks_make_rows(place: Path) -> None:
    for layout in ("clicked-group", "pairs"):
        said = refused(place, "unclicked.parquet", "--layout", layout)
        assert f"--layout {layout}: there is nothing to learn from: no click carries a weight" in said
    assert "has another document beside it" in refused(place, "alone.parquet", "--layout", "pairs")


def test_rows_without_features_are_named_where_nothing_is_left(place: Path) -> None:
    pl.DataFrame({"query": ["q0"], "doc": [0], "x": [1.0]}).write_parquet(place / "one.parquet")
    said = refused(place, "log.parquet", "--layout", "pairs", "--features", "one.parquet", "--missing", "drop")
    assert "11 rows without features were left out." in said


def test_a_log_without_a_click_is_doubtful_in_the_other_layouts(place: Path) -> None:
    for layout in ("pointwise", "session", "judgments"):
        options = ("--propensities", "fit", "-o", str(place / f"unclicked-{layout}"), "--layout", layout)
        done = invoke("weight", "unclicked.parquet", *options)
        assert done.exit_code == 1
        assert "No click has a weight" in done.output


@pytest.mark.parametrize(
    ("share", "empty", "advice"), [("0.000001", "validation", "more"), ("0.999999", "training", "less")]
)
def test_a_split_that_chance_leaves_empty_is_refused(place: Path, share: str, empty: str, advice: str) -> None:
    said = refused(place, "log.parquet", "--validation", share)
    assert f"{empty}/ would be empty: no row is left. Set {advice} apart with --validation." in said


def test_force_never_deletes_the_features_that_are_read(place: Path) -> None:
    old = place / "old"
    old.mkdir()
    (place / "prices.parquet").rename(old / "prices.parquet")
    try:
        words = ("--propensities", "fit", "--features", "old/prices.parquet", "-o", "old", "--force")
        done = invoke("weight", "log.parquet", *words)
        assert done.exit_code == 2
        assert "--force" in done.output
        assert (old / "prices.parquet").is_file()
    finally:
        (old / "prices.parquet").rename(place / "prices.parquet")
