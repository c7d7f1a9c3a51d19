"""`fit` of a frame finds what `posbias fit` finds in a file of the same rows, to the bit, and says what that says."""

import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import polars as pl
import pytest
from command_results import Posbias
from polars.testing import assert_frame_equal

from posbias.core.errors import PosbiasError, RoleError, SchemaError, UsageError
from posbias.io import FitResult, fit

pd: Any = import_module("pandas")

FITS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "pbm": ((), {}),
    "contexts": (("--context", "device"), {"context": "device"}),
    "ubm": (("--model", "ubm"), {"model": "ubm"}),
    "weights": (("--weight-column", "stands_for"), {"weight_column": "stands_for"}),
    "times": (("--timestamp", "day"), {"timestamp": "day"}),
    "the first positions": (("--max-position", "3"), {"max_position": 3}),
    "joint": (("--method", "joint"), {"method": "joint"}),
}
OF_THE_PLACE = ("inputs", "options", "sources", "files", "checksum")


@pytest.fixture
def rows(impressions: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the log, in two weeks."""
    return impressions.with_columns(day=pl.date(2026, 1, 5) + pl.duration(days=pl.col("session") % 14))


def quietly(frame: object, **options: Any) -> FitResult:  # noqa: ANN401 - of any kind
    """Fit without the warnings that a small log gets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return fit(frame, **options)


@pytest.mark.parametrize("fitted", FITS)
@pytest.mark.slow_after(2)
def test_a_frame_gives_what_the_command_finds_in_a_file(
    posbias: Posbias, rows: pl.DataFrame, tmp_path: Path, fitted: str
) -> None:
    options, parameters = FITS[fitted]
    rows.write_parquet(tmp_path / "log.parquet")
    expected = posbias("fit", tmp_path / "log.parquet", *options)

    found = quietly(rows, **parameters)

    assert_frame_equal(found.propensities, expected.propensities, check_exact=True)
    assert_frame_equal(found.attractiveness.collect(), expected.attractiveness, check_exact=True)
    of_frame, of_file = (
        {name: value for name, value in manifest.items() if name not in OF_THE_PLACE}
        for manifest in (found.manifest, expected.manifest)
    )
    assert of_frame == of_file
    assert list(found.manifest["sources"].values()) == ["the frame"]


def test_a_pandas_frame_gives_the_same(rows: pl.DataFrame) -> None:
    of_pandas = pd.DataFrame(rows.to_dict(as_series=False), index=range(5, 5 + rows.height))
    arrow: object = cast("Any", rows).to_arrow()

    assert quietly(of_pandas).propensities.equals(quietly(rows).propensities)
    assert quietly(arrow).propensities.equals(quietly(rows.lazy()).propensities)


def test_a_fit_of_a_frame_weighs_as_that_of_a_file(posbias: Posbias, path: Path, impressions: pl.DataFrame) -> None:
    written = posbias("run", path, "--layout", "session", "--model", "ubm").training

    found = quietly(impressions, model="ubm").weights_for(impressions)

    keys = ["session", "position"]
    assert_frame_equal(found.select(written.columns).sort(keys), written.sort(keys), check_exact=True)


def test_what_the_command_warns_of_is_a_warning_of_python(rows: pl.DataFrame) -> None:
    alone = rows.filter(pl.col("query") == rows["query"][0]).rename({"query": "keyword"})

    with pytest.warns(UserWarning, match="columns were guessed from their names: --query keyword") as caught:
        found = fit(alone)

    assert [str(one.message) for one in caught] == list(found.warnings)
    assert {Path(one.filename) for one in caught} == {Path(__file__)}
    assert repr(found).startswith("<FitResult of the frame: pbm, ")


def test_nothing_is_printed(rows: pl.DataFrame, capfd: pytest.CaptureFixture[str]) -> None:
    quietly(rows).weights_for(rows)

    assert tuple(capfd.readouterr()) == ("", "")


def test_rows_that_break_the_rules_are_left_out_where_that_is_asked_for(rows: pl.DataFrame) -> None:
    more = rows.head(3).with_columns(session=pl.lit(9_999, rows["session"].dtype), position=pl.lit(0, pl.Int32))
    faulty = pl.concat([rows, more], how="vertical_relaxed")

    with pytest.raises(SchemaError, match="3 of 1,603 rows are not valid"):
        fit(faulty)
    assert quietly(faulty, on_bad_rows="drop").manifest["rows"]["used"] == rows.height


def test_positions_that_begin_anew_on_each_page_are_refused_until_they_go_on(rows: pl.DataFrame) -> None:
    place = pl.col("position") - 1
    paged = rows.with_columns(position=place % 2 + 1, page=place // 2 + 1)

    with pytest.raises(SchemaError, match=r"the frame: results of later pages .* would count as top positions"):
        fit(paged)
    whole = paged.with_columns(position=(pl.col("page") - 1) * 2 + pl.col("position"))
    assert quietly(whole).propensities.equals(quietly(rows).propensities)


REFUSED: dict[str, tuple[dict[str, Any], type[PosbiasError], str]] = {
    "an unknown column": ({"click": "clack"}, SchemaError, r"the frame: there is no column 'clack' \(--click\)"),
    "an unknown context": ({"context": ["shop"]}, SchemaError, r"there is no column 'shop' \(--context\)"),
    "an unknown model": ({"model": "cbm"}, UsageError, "--model cbm"),
    "a model of pages": ({"model": "dbn"}, UsageError, "It is for `posbias fit` and `run`"),
    "an unknown method": ({"method": "guess"}, UsageError, "--method guess"),
    "a method of features": ({"method": "features"}, UsageError, "needs the features of every impression"),
    "contexts of ubm": ({"model": "ubm", "context": "device"}, UsageError, "--context: works only with --model pbm"),
    "a name of ours": ({"context": "position"}, UsageError, "this name means something else in the results"),
    "one position": ({"max_position": 1}, UsageError, "--max-position 1: give a whole number from 2"),
    "half a position": ({"max_position": 2.5}, UsageError, "--max-position 2.5: give a whole number from 2"),
    "a position as text": ({"max_position": "3"}, UsageError, "--max-position 3: give a whole number from 2"),
    "no position": ({"max_position": float("nan")}, UsageError, "--max-position nan: give a whole number from 2"),
    "a position beyond all": ({"max_position": 10**30}, UsageError, "--max-position 10+: give a whole number from 2"),
    "a number for a column": ({"query": 5}, UsageError, "--query 5: give a name, or a list of names"),
    "a number among columns": ({"context": ["device", 5]}, UsageError, "--context 5: give a name, as text"),
    "a list for a column": ({"position": ["position"]}, UsageError, r"--position \['position'\]: give a name, as text"),
    "no text for a model": ({"model": None}, UsageError, "--model None: give a name, as text"),
    "no text for a method": ({"method": 5}, UsageError, "--method 5: give a name, as text"),
    "a word": ({"on_bad_rows": "keep"}, UsageError, "--on-bad-rows keep: choose error or drop"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_fitted_is_an_error_that_says_why(rows: pl.DataFrame, name: str, tmp_path: Path) -> None:
    options, error, says = REFUSED[name]

    with pytest.raises(error, match=says) as caught:
        fit(rows, **options)

    assert str(tmp_path) not in str(caught.value)


def test_roles_without_a_column_are_said_together(rows: pl.DataFrame) -> None:
    with pytest.raises(RoleError, match="the frame: I cannot tell which columns are the ") as caught:
        fit(rows.drop("doc").rename({"click": "x"}))

    assert "--doc" in caught.value.options
    assert "--click" in caught.value.options
