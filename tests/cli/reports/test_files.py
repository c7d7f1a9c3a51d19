"""The file of a report: whole or not at all, and never over what posbias did not make; its forms, and what it says."""

import json
import os
import re
import struct
from collections.abc import Callable
from html import escape
from importlib.resources import files
from pathlib import Path
from resource import RLIM_INFINITY
from typing import Any

import polars as pl
import pytest
from command_results import manifest_of, reseal
from small_logs import log_by_value
from workshop import RunPosbias as Run
from workshop import refused

from posbias.io.reports.charts import SERIES, picture
from posbias.io.reports.report import ReportedResult, ReportManifest, figure_by_name, open_results, report_title
from posbias.io.results.manifest import checksum_of_content

Made = Callable[..., Path]


@pytest.fixture
def fit(result: Made) -> Path:
    """Return a fit."""
    return result("other")


# --- what stands there already -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".html", ".svg", ".png"])
@pytest.mark.slow
def test_what_posbias_did_not_make_or_what_was_changed_is_never_replaced(
    run_in_process: Run, fit: Path, tmp_path: Path, ending: str
) -> None:
    target = tmp_path / f"report{ending}"
    run_in_process("report", fit, "-o", target, code=0)
    genuine = target.read_bytes()
    refused(run_in_process("report", fit, "-o", target), f"{target}: already exists", "--force")
    run_in_process("report", fit, "-o", target, "--force", code=0)
    for content in (
        b"",
        b"my notes",
        genuine[:-1],
        genuine + b"<p>my notes</p>",
        genuine[:2000] + bytes([genuine[2000] ^ 1]) + genuine[2001:],
        b'<meta name="generator" content="posbias 0.1.0">',
    ):
        target.write_bytes(content)
        refused(run_in_process("report", fit, "-o", target, "--force"), target.name, "no report of posbias")
        assert target.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == [target.name]


# --- forms -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_picture_is_the_chart_that_is_named(run_in_process: Run, result: Made, tmp_path: Path) -> None:
    for name, words, title in (
        ("plain", (), "Attention by position"),
        ("ubm", ("--chart", "browsing"), "Attention by position and last click above"),
    ):
        run_in_process("report", result(name), *words, "-o", "chart.svg", "--force", code=0)
        text = (tmp_path / "chart.svg").read_text(encoding="utf-8")
        assert text.startswith("<svg")
        assert f">{title}</text>" in text
        assert "var(" not in text
    run_in_process("report", result("compared"), "--chart", "differences", "-o", "chart.png", code=0)
    picture = (tmp_path / "chart.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">I", picture[16:20])[0] > 1000  # pixels


@pytest.mark.slow
@pytest.mark.parametrize(("name", "chart"), [("harmful", "curve"), ("predicted", "differences")])
def test_pictures_show_names_as_text(run_in_process: Run, result: Made, tmp_path: Path, name: str, chart: str) -> None:
    run_in_process("report", result(name), "--chart", chart, "-o", "chart.svg", code=0)
    text = (tmp_path / "chart.svg").read_text(encoding="utf-8")
    assert "&lt;" in text
    assert not re.search("<[bi]>|<script", text)
    assert "\x1b" not in text


@pytest.mark.slow
def test_the_page_runs_no_script_and_names_no_other_place(report: Made) -> None:
    page = report("plain").read_text(encoding="utf-8")

    assert not re.findall(r'(?:src|href|action)="(?!#)', page)
    assert "<script" not in page
    assert "@import" not in page
    assert "url(" not in page
    assert "default-src 'none'; style-src 'unsafe-inline';" in page
    assert len(page) < 120_000


DARK_SERIES = ["#56B4E9", "#E69F00", "#2BBE8F", "#E29CC4", "#F0E442", "#F08A4B"]
"""The hues of the charts, lighter."""


def test_style_sheet_and_charts_have_the_same_colours() -> None:
    style = files("posbias.io.reports").joinpath("page.css").read_text(encoding="utf-8")
    light, dark, paper = (
        [colour.upper() for colour in re.findall(r"--series-\d: (#\w{6})", part)]
        for part in re.split(r"@media \(prefers|@media print", style)
    )

    assert light == paper == list(SERIES)
    assert dark == DARK_SERIES


# --- what is reported on ------------------------------------------------------------------------------------------


def test_a_page_says_what_the_result_says(report: Made, result: Made) -> None:
    page = report("plain").read_text(encoding="utf-8")
    table = pl.read_parquet(result("plain") / "propensities.parquet")
    manifest = manifest_of(result("plain"))
    fifth = table.row(4, named=True)

    for value in table["propensity"]:
        assert f">{value:.3f}<" in page
    assert f"<strong>{fifth['propensity']:.0%}</strong>" in page
    assert f"{fifth['linking_clicks']:,.0f} of {table['clicks'].sum():,.0f}" in page
    for sentence in (manifest["verdict"], manifest["conclusion"], manifest["next"]):
        assert escape(sentence) in page
    for reason in manifest["reasons"]:
        assert escape(reason["sentence"]) in page


@pytest.mark.parametrize(
    ("inputs", "days", "title"),
    [
        (["logs/web_search.parquet"], ("2026-01-05", "2026-01-11"), "web_search, 5 to 11 January 2026"),
        (["logs/a.csv.gz", "logs/b.csv.gz"], ("2026-01-30", "2026-02-02"), "logs, 30 January to 2 February 2026"),
        (["a/x.csv", "b/y.csv"], ("2025-12-31", "2026-01-01"), "x and y, 31 December 2025 to 1 January 2026"),
        (["s3://bucket/logs/"], ("2026-01-05", "2026-01-05"), "logs, 5 January 2026"),
        (["a/x", "b/y", "c/z"], ("today", "<b>"), "x and 2 more, today to <b>"),
    ],
)
def test_the_title_names_the_log_and_its_days(inputs: list[str], days: tuple[str, str], title: str) -> None:
    described = ReportManifest(command="fit", inputs=tuple(inputs), days={"first": days[0], "last": days[1]})

    assert report_title([ReportedResult("name", described, "", None, ())]) == title


def changed(result: Made, folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a fit with a changed manifest, whose checksum is right."""
    copy = folder / "changed"
    copy.mkdir()
    for path in result("other").iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    manifest = manifest_of(copy)
    change(manifest)
    manifest["checksum"] = checksum_of_content(manifest)
    (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return copy


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("estimate", "method"), 3, "$.estimate.method"),
        (("estimate", "clicks", "observed"), [1.0], "other cells"),
        (("verdict",), "all is well", "verdict"),
        (("reasons",), [{"code": "none"}], "reasons"),
        (("totals",), {"clicks": -1}, "totals"),
        (("counted", "model"), "none", "model"),
    ],
)
def test_an_edited_manifest_is_refused(
    run_in_process: Run, result: Made, tmp_path: Path, keys: tuple[str, ...], value: object, said: str
) -> None:
    def change(manifest: dict[str, Any]) -> None:
        for key in keys[:-1]:
            manifest = manifest[key]
        manifest[keys[-1]] = value

    refused(run_in_process("report", changed(result, tmp_path, change), "-o", "a.html"), said)


def test_values_that_no_fit_writes_are_left_out_of_charts(run_in_process: Run, result: Made, tmp_path: Path) -> None:
    copy = changed(result, tmp_path, lambda _: None)
    path = copy / "propensities.parquet"
    odd = pl.read_parquet(path).with_columns(
        ci_low=pl.lit(float("nan")), ci_high=pl.lit(float("inf")), joint_propensity=pl.lit(None, pl.Float64)
    )
    odd.write_parquet(path)
    reseal(copy)
    run_in_process("report", copy, "-o", "a.html", code=0)

    assert "NaN" not in (tmp_path / "a.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_ten_thousand_positions_are_cut_and_the_page_says_so(run_in_process: Run, result: Made, tmp_path: Path) -> None:
    n = 10_000

    def many(manifest: dict[str, Any]) -> None:
        manifest["estimate"]["clicks"] = {"observed": [5.0] * n, "expected": [5.0] * n}
        del manifest["estimate"]["effective_clusters"]

    copy = changed(result, tmp_path, many)
    (copy / "theta_covariance.parquet").unlink()
    first = pl.read_parquet(copy / "propensities.parquet").tail(1)
    rows = pl.concat([first] * n).with_columns(position=pl.int_range(1, n + 1, dtype=pl.Int32))
    rows.write_parquet(copy / "propensities.parquet")
    reseal(copy)
    run_in_process("report", copy, "-o", "a.html", code=0)
    page = (tmp_path / "a.html").read_text(encoding="utf-8")

    assert "Of 10,000 positions, 100 are drawn: the first 50, then ever fewer, to position 10,000." in page
    assert len(page) < 400_000


def test_what_draws_is_not_started_where_it_cannot_reserve_its_addresses(
    run_in_process: Run, result: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def few_addresses(_: int) -> tuple[int, int]:
        return 8 << 30, RLIM_INFINITY

    def crash(_: str) -> None:
        pytest.fail("V8 would have ended this process")

    monkeypatch.setattr("posbias.io.reports.report.getrlimit", few_addresses)
    monkeypatch.setattr("vl_convert.vegalite_to_svg", crash)
    for name in ("a.html", "a.svg"):
        refused(run_in_process("report", result("plain"), "-o", name), "reserves 65 GiB of addresses", "ulimit -v")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_missing_library_is_said_before_anything_is_read(run_posbias: Run, fit: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\nfind = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'vl_convert' else find(name, *rest)\n",
        encoding="utf-8",
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = run_posbias("report", fit, "-o", "a.html", PYTHONPATH=path)

    refused(done, "python3 -m pip install vl-convert-python")
    assert not (tmp_path / "a.html").exists()


def test_a_grid_is_a_heat_map_that_is_gray_where_nothing_is_known(run_in_process: Run, tmp_path: Path) -> None:
    log = log_by_value("taste", 1, n_pages=400)
    apart = pl.when(pl.col("session") % 4 == 3).then(pl.lit("only there ")).otherwise(pl.lit(""))
    log = log.with_columns(
        doc=apart + pl.col("doc").cast(pl.String), carousel=pl.format("list {}", pl.col("session") % 4)
    ).filter(pl.col("session") % 8 != 7)  # that list is shown less often, and so has not the reference
    log.write_parquet(tmp_path / "log.parquet")
    run_in_process("fit", "log.parquet", "--cell", "carousel", "-o", "fit")
    with open_results([tmp_path / "fit"]) as results:
        figure = figure_by_name(results, "curve")
    unknown, known, _ = figure.spec["layer"]

    assert figure.title == "Attention by carousel and position"
    assert figure.spec["encoding"]["y"]["sort"] == [f"list {number}" for number in range(4)]
    assert sum(row["context"] == "list 3" for row in unknown["data"]["values"]) == log["position"].max()
    assert {row["context"] for row in known["data"]["values"]} == {f"list {number}" for number in range(3)}
    assert "Relative to position 1, carousel list " in figure.note
    assert unknown["mark"]["style"] == "unknown"
    assert re.search(r'fill="#e3e6ea"', picture(figure, "", "svg").decode())
