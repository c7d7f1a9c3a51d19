"""Results are opened with their tables, charts and weights; temporary ones go with their object; imports are cheap."""

import gc
import re
import sys
from pathlib import Path
from typing import Any, cast

import polars as pl
import pytest
from command_results import Posbias
from patience import ended
from polars.testing import assert_frame_equal

import posbias as door
from posbias import open_result
from posbias.core.errors import LogFormatError, UsageError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of a small log

HEAVY = ("numpy", "pandas", "polars", "pyarrow", "rich", "scipy", "typer")


@pytest.mark.parametrize("command", ["fit", "run"])
def test_a_result_is_opened_with_its_tables_and_its_manifest(posbias: Posbias, path: Path, command: str) -> None:
    written = posbias(command, path, "--context", "device")

    found = open_result(str(written.folder))

    assert_frame_equal(found.propensities, written.propensities)
    assert_frame_equal(found.attractiveness, written.attractiveness)
    assert found.manifest == written.manifest
    assert found.warnings == tuple(written.manifest["warnings"])
    assert repr(found) == f"<posbias {command} of {path}: {found.verdict}>"


@pytest.mark.slow
def test_a_click_model_without_cells_has_no_propensities(posbias: Posbias, path: Path) -> None:
    found = open_result(posbias("fit", path, "--model", "dbn").folder)

    assert found.attractiveness.height > 0
    with pytest.raises(UsageError, match=r"has no propensities\. Its tables: attractiveness"):
        _ = found.propensities


@pytest.mark.slow
def test_a_result_is_found_after_the_directory_has_changed(
    posbias: Posbias, path: Path, monkeypatch: pytest.MonkeyPatch, impressions: pl.DataFrame
) -> None:
    written = posbias("fit", path, "--model", "dbn")
    monkeypatch.chdir(written.folder.parent)
    found = open_result(written.folder.name)
    monkeypatch.chdir("/")

    assert found.attractiveness.height > 0
    assert found.weights(impressions)["weight"].is_not_null().all()


def test_what_is_no_result_is_refused(posbias: Posbias, path: Path, tmp_path: Path) -> None:
    collected = open_result(posbias("collect", path).folder)

    with pytest.raises(LogFormatError, match=r"nowhere: is not there"):
        open_result(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="has no propensities"):
        _ = collected.propensities
    with pytest.raises(UsageError, match="holds no propensities"):
        collected.weights(pl.read_parquet(path))
    with pytest.raises(UsageError, match=r"hdfs://\*\*\*@namenode/x\?\*\*\*: posbias cannot read or write hdfs: URLs"):
        open_result("hdfs://user:secret@namenode/x?token=secret")
    with pytest.raises(UsageError, match="holds a zero byte"):
        open_result("\0")
    with pytest.raises(UsageError, match=r"open_result\(5\): give the name of a directory"):
        open_result(cast("Any", 5))


@pytest.mark.slow
def test_of_a_fit_for_each_value_one_weighs(posbias: Posbias, path: Path) -> None:
    folder = posbias("fit", path, "--for-each", "device").folder

    with pytest.raises(UsageError, match="holds several fits"):
        open_result(folder).weights(pl.read_parquet(path))
    assert open_result(next(folder.glob("*phone*"))).propensities.height == 4


@pytest.mark.slow
def test_a_temporary_result_goes_with_its_object(path: Path) -> None:
    result = door.run(path, model="ubm")
    place, table = Path(result), result.propensities

    assert place.is_dir()
    assert result.training.height > 0
    del result
    gc.collect()
    assert not place.exists()
    assert table.height > 0


@pytest.mark.slow
def test_judgments_are_made_of_the_log_of_the_fit_as_it_was_read(
    posbias: Posbias, path: Path, impressions: pl.DataFrame
) -> None:
    options = ("--doc", "device", "--doc", "doc", "--max-position", "3")
    fit = posbias("fit", path, *options)
    columns = ("--doc", "device", "--doc", "doc")
    written = posbias("weight", path, "--propensities", fit.folder, "--layout", "judgments", *columns).training

    assert_frame_equal(open_result(fit.folder).judgments(), written, check_exact=True)
    of_frame = door.fit(impressions, doc=["device", "doc"], max_position=3)
    assert of_frame.judgments().drop("doc").equals(written.drop("doc"))
    assert of_frame.judgments(impressions.filter(query=impressions["query"][0]), doc="doc").height < written.height


@pytest.mark.slow
def test_a_result_is_drawn_and_shown(path: Path, tmp_path: Path) -> None:
    result = door.fit(path, context="device")
    chart = result.plot()

    assert chart.to_dict()["title"]["text"] == "Attention by position"
    assert chart.to_dict()["config"]
    with pytest.raises(UsageError, match="--chart nothing: these results have no such chart"):
        result.plot("nothing")
    assert result.report(tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!")
    assert "propensities relative to position 1" in str(result)


@pytest.mark.slow
def test_a_card_holds_the_verdict_the_curve_and_the_table_and_no_markup_of_a_log(impressions: pl.DataFrame) -> None:
    hostile = impressions.with_columns(device=pl.col("device") + "<script>alert(1)</script>\x1b[31m")

    card = cast("Any", door.fit(hostile, context="device"))._repr_html_()

    assert card.count("<polyline") == 2
    assert "<table>" in card
    assert "&lt;script&gt;" in card
    assert "<script" not in card
    assert "\x1b" not in card
    assert cast("Any", door.check(impressions))._repr_html_().startswith("<div")


@pytest.mark.slow
def test_no_page_that_holds_a_chart_gets_markup_of_a_log(impressions: pl.DataFrame) -> None:
    hostile = impressions.with_columns(
        pl.format("{}</script><!--<b id=x>", "device").alias("<b id=y>"), age=pl.lit("< 18")
    )
    chart = cast("Any", door.fit(hostile, context=["<b id=y>", "age"])).plot()

    pages = {
        "page": chart.to_html(),
        "notebook": chart._repr_mimebundle_()["text/html"],
        "changed chart": chart.properties(width=99).to_html(),
        "JSON": chart.to_json(),
    }
    for page in pages.values():
        assert not re.findall("<b id|</script><|<!--", page)
        assert r"\\x3c/script>\\x3c!--\\x3cb id=x>" in page
        assert "< 18" in page


def test_a_look_at_a_log_holds_what_the_command_prints_as_json(posbias: Posbias, impressions: pl.DataFrame) -> None:
    del posbias
    look = door.check(impressions)

    assert look.manifest["totals"]["impressions"] == impressions.height
    assert look.verdict in {"good", "with care", "do not use"}
    assert "position" in str(look)


def loaded(statement: str) -> set[str]:
    """Which of the heavy libraries a statement imports."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = ended([sys.executable, "-c", code], check=True)
    return set(done.stdout.split()).intersection(HEAVY)


def test_an_import_is_cheap() -> None:
    assert loaded("import posbias; posbias.__version__; dir(posbias)") == set()
    assert loaded("import posbias.io, posbias.core") == set()
