"""Functions do what commands do, to the bit: the same options, the same numbers, the same refusals."""

import inspect
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import duckdb
import narwhals as nw
import numpy as np
import polars as pl
import pytest
from command_results import Posbias
from patience import ended
from polars.testing import assert_frame_equal

import posbias as door
from posbias import Result, fit
from posbias.core.errors import LogFormatError, OutputExistsError, PosbiasError, RoleError, SchemaError, UsageError

pd: Any = import_module("pandas")

FITS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "pbm": ((), {}),
    "contexts": (("--context", "device"), {"context": "device"}),
    "cells": (("--cell", "device"), {"cell": ["device"]}),
    "ubm": (("--model", "ubm"), {"model": "ubm"}),
    "weights": (("--weight-column", "stands_for"), {"weight_column": "stands_for"}),
    "times": (("--timestamp", "day"), {"timestamp": "day"}),
    "the first positions": (("--max-position", "3"), {"max_position": np.int64(3)}),
    "joint": (("--method", "joint", "--tolerance", "1e-09"), {"method": "joint", "tolerance": 1e-9}),
    "a switch that is off": (("--no-compare",), {"compare": False}),
    "several columns": (("--query", "query", "--query", "device"), {"query": ["query", "device"]}),
}
OF_THE_PLACE = ("inputs", "options", "next", "sources", "files", "digests", "checksum")


@pytest.fixture
def rows(impressions: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the log, in two weeks."""
    return impressions.with_columns(day=pl.date(2026, 1, 5) + pl.duration(days=pl.col("session") % 14))


def quietly(inputs: object, **options: object) -> Result:
    """Fit without the warnings that a small log gets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return fit(inputs, **options)


@pytest.mark.parametrize("fitted", FITS)
@pytest.mark.slow
def test_a_frame_gives_what_the_command_gives_for_a_file(
    posbias: Posbias, rows: pl.DataFrame, tmp_path: Path, fitted: str
) -> None:
    words, options = FITS[fitted]
    rows.write_parquet(tmp_path / "log.parquet")
    expected = posbias("fit", tmp_path / "log.parquet", *words)

    result = quietly(rows, **options)

    assert_frame_equal(result.propensities, expected.propensities, check_exact=True)
    assert_frame_equal(result.attractiveness, expected.attractiveness, check_exact=True)
    of_frame, of_file = (
        {name: value for name, value in manifest.items() if name not in OF_THE_PLACE}
        for manifest in (result.manifest, expected.manifest)
    )
    assert of_frame == of_file


@pytest.mark.slow
def test_every_kind_of_input_gives_the_same(rows: pl.DataFrame, tmp_path: Path) -> None:
    first, second = tmp_path / "1.parquet", tmp_path / "2.parquet"
    even = pl.col("session") % 2 == 0
    rows.filter(even).write_parquet(first)
    rows.filter(~even).write_parquet(second)
    arrow: Any = cast("Any", rows).to_arrow()
    inputs: dict[str, object] = {
        "lazy": rows.lazy(),
        "pandas": pd.DataFrame(rows.to_dict(as_series=False), index=range(5, 5 + rows.height)),
        "narwhals": nw.from_native(rows),
        "arrow": arrow,
        "batches": arrow.to_reader(),
        "duckdb": duckdb.connect().from_arrow(arrow),
        "a pattern": str(tmp_path / "*.parquet"),
        "a generator of paths": (path for path in (first, second)),
        "frames": [rows.filter(even), rows.filter(~even)],
    }
    expected = quietly(rows).propensities

    for name, given in inputs.items():
        assert quietly(given).propensities.equals(expected), name


def test_what_the_command_warns_of_is_a_warning_of_python(rows: pl.DataFrame) -> None:
    alone = rows.filter(pl.col("query") == rows["query"][0]).rename({"query": "keyword"})

    known = r"^Columns were guessed|^This log is worth about 1 query of|^Nothing in this log shows whether"
    with pytest.warns(UserWarning, match=known) as caught:
        result = fit(alone, timestamp="none")

    assert str(caught[0].message).startswith("Columns were guessed from their names: --query keyword")
    assert [str(one.message) for one in caught] == list(result.warnings)
    assert {Path(one.filename) for one in caught} == {Path(__file__)}


def test_a_warning_that_is_an_error_leaves_nothing(rows: pl.DataFrame) -> None:
    renamed = rows.rename({"query": "keyword"})

    with pytest.raises(UserWarning, match="guessed"):  # the tests' own filter makes errors of warnings
        fit(renamed)


@pytest.mark.slow
def test_nothing_is_printed(rows: pl.DataFrame, capfd: pytest.CaptureFixture[str]) -> None:
    quietly(rows).weights(rows)
    with warnings.catch_warnings(action="ignore"):  # of few queries
        door.check(rows)

    assert tuple(capfd.readouterr()) == ("", "")


@pytest.mark.slow
def test_two_fits_at_once_keep_their_warnings_apart(rows: pl.DataFrame) -> None:
    logs = [rows.rename({name: guessed}) for name, guessed in (("query", "keyword"), ("doc", "sku"))]

    with warnings.catch_warnings(), ThreadPoolExecutor(2) as pool:
        warnings.simplefilter("ignore", UserWarning)
        results = list(pool.map(fit, logs))

    assert [("keyword" in " ".join(one.warnings), "sku" in " ".join(one.warnings)) for one in results] == [
        (True, False),
        (False, True),
    ]


REFUSED: dict[str, tuple[dict[str, Any], type[PosbiasError], str]] = {
    "a misspelt option": ({"max_positon": 5}, UsageError, r"fit\(max_positon=...\): no such option. Did you mean max_"),
    "no option at all": ({"zzz": 5}, UsageError, r"no such option. help\(posbias.fit\) lists them"),
    "an option of shells": ({"json": True}, UsageError, r"fit\(json=...\): is for the command line: a result has"),
    "threads": ({"threads": 2}, UsageError, "Set POLARS_MAX_THREADS before Python starts"),
    "an unknown column": ({"click": "clack"}, SchemaError, r"the frame: there is no column 'clack' \(--click\)"),
    "an unknown model": ({"model": "cbm"}, UsageError, "cbm"),
    "an unknown method": ({"method": "guess"}, UsageError, "--method guess"),
    "contexts of ubm": ({"model": "ubm", "context": "device"}, UsageError, "--context: works only with --model pbm"),
    "a name of ours": ({"context": "position"}, UsageError, "this name means something else in the results"),
    "half a position": ({"max_position": 2.5}, UsageError, "max-position.*valid integer"),
    "a position that is a switch": ({"max_position": True}, UsageError, "max_position: takes a string or a number"),
    "a switch that is a word": ({"force": "yes"}, UsageError, "force: takes true or false, not a string"),
    "a list for one value": ({"position": ["position"]}, UsageError, "position: takes a string or a number, not a li"),
    "no list": ({"context": []}, UsageError, "context: the list is empty"),
    "an object": ({"method": object()}, UsageError, "method: takes a string or a number, not object"),
    "an empty text": ({"query": ""}, UsageError, "query: is empty"),
    "a word": ({"on_bad_rows": "keep"}, UsageError, "on-bad-rows.*keep"),
    "no effect": ({"shrink": "none"}, UsageError, "--shrink none: has no effect here"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_fitted_is_an_error_that_says_why(rows: pl.DataFrame, name: str, tmp_path: Path) -> None:
    options, error, says = REFUSED[name]

    with pytest.raises(error, match=f"(?s){says}") as caught:
        fit(rows, **options)

    assert str(tmp_path) not in str(caught.value)


def test_inputs_that_are_none_are_errors(rows: pl.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(LogFormatError, match="nowhere"):
        fit(tmp_path / "nowhere.parquet")
    with pytest.raises(UsageError, match="LOGS"):
        fit([])
    with pytest.raises(UsageError, match=r"posbias.fit: reads files, frames and results, not dict"):
        fit(rows.to_dicts())
    with pytest.raises(RoleError, match="the frame: I cannot tell which columns are the doc and the click") as caught:
        fit(rows.drop("doc").rename({"click": "x"}))
    assert {"--doc", "--click"} <= set(caught.value.options)
    assert "Try:" not in str(caught.value)


def test_what_python_prints_of_an_error_has_no_line_and_no_character_of_data_that_acts(rows: pl.DataFrame) -> None:
    odd = rows.with_columns(click=pl.lit("yes\x1b[2K\nwritten: elsewhere"))

    with pytest.raises(SchemaError, match=r"the click is neither 0 nor 1") as of_values:
        door.fit(odd)
    with pytest.raises(LogFormatError, match=r"no file matches this pattern") as of_names:
        door.fit("no\nwritten: log.csv\x1b[2K")
    for error in (of_values, of_names):
        assert "\x1b" not in str(error.value)
        assert "\nwritten" not in str(error.value)


@pytest.mark.slow
def test_an_output_is_written_as_the_command_writes_it(posbias: Posbias, path: Path, tmp_path: Path) -> None:
    expected = posbias("fit", path)

    result = quietly(path, output=tmp_path / "out")

    assert (tmp_path / "out" / "propensities.parquet").read_bytes() == (
        expected.folder / "propensities.parquet"
    ).read_bytes()
    assert Path(result) == tmp_path / "out"
    with pytest.raises(OutputExistsError):
        fit(path, output=tmp_path / "out")
    assert quietly(path, output=tmp_path / "out", force=True).propensities.equals(result.propensities)


@pytest.mark.slow
def test_a_file_of_options_and_variables_are_read_as_the_command_reads_them(
    rows: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "posbias.toml").write_text("max-position = 3\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert quietly(rows).propensities.height == 3
    assert quietly(rows, max_position=2).propensities.height == 2
    monkeypatch.setenv("POSBIAS_MAX_POSITION", "4")
    assert quietly(rows).propensities.height == 4


@pytest.mark.slow
def test_results_and_frames_are_options_and_inputs(rows: pl.DataFrame) -> None:
    features = rows.select("query", "doc").unique().with_columns(quality=pl.col("doc").hash() % 7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        statistics = door.collect(rows)
        fitted = quietly(statistics)
        weighted = door.weight(rows, features=features, propensities=fitted)
        ranker = door.train(rows, learner="factors", propensities=fitted, learner_options={"steps": 5})
        scores = ranker.table("scores").select("query", "doc", "score")
        predicted = door.predict(rows, propensities=fitted, scores=scores)
        evaluated = door.evaluate(rows, propensities=fitted, scores=[scores])

    assert scores.height == features.height
    assert weighted.training["quality"].null_count() == 0
    assert predicted.manifest["command"] == "predict"
    assert evaluated.table("metrics").height > 0


def test_a_signature_has_the_options_of_the_command(posbias: Posbias) -> None:
    del posbias
    parameters = inspect.signature(door.fit).parameters

    assert parameters["method"].default == "conditional"
    assert {"inputs", "session", "max_position", "output"} <= set(parameters)
    assert {"json", "quiet", "help_all"}.isdisjoint(parameters)
    assert "Estimate propensities and attractiveness" in (door.fit.__doc__ or "")
    assert "    max_position: " in (door.fit.__doc__ or "")
    with pytest.raises(AttributeError, match="has no attribute 'fti'"):
        _ = cast("Any", door).fti


INTERRUPTED = """
import os, signal, sys, threading, time
import posbias
def interrupt():
    while not [name for name in os.listdir(sys.argv[2]) if name.startswith("posbias-")]: time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)
posbias.fit  # loads
threading.Thread(target=interrupt, daemon=True).start()
try:
    posbias.fit(sys.argv[1])
except KeyboardInterrupt:
    print("stopped")
print(len(os.listdir(sys.argv[2])))
"""


@pytest.mark.slow
def test_a_fit_that_is_stopped_leaves_nothing(path: Path, tmp_path: Path) -> None:
    place = tmp_path / "scratch"
    place.mkdir()

    done = ended(
        [sys.executable, "-c", INTERRUPTED, str(path), str(place)], env={"TMPDIR": str(place), "PATH": ""}, check=True
    )

    assert done.stdout.split() == ["stopped", "0"]
