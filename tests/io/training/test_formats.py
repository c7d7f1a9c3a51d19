"""What holds for every format: what it carries, what it refuses, the rows beside, and the script on its own."""

import os
import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import polars as pl
import pytest
import xgboost as xgb
from patience import ended
from polars.testing import assert_frame_equal
from training_sample import load, make_sample

from posbias.core.errors import UsageError
from posbias.core.training.layout import get_layout, layout_names
from posbias.io.training import check_format, format_names, get_format

catboost: Any = import_module("catboost")  # without types
LAYOUTS_OF = {
    form: [layout for layout in layout_names() if get_format(form).carries(get_layout(layout))]
    for form in format_names()
}
CARRIED = [(form, layout) for form, layouts in LAYOUTS_OF.items() for layout in layouts]
REFUSED = [(form, layout) for form in format_names() for layout in layout_names() if layout not in LAYOUTS_OF[form]]
PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
MODELS = {"parquet": "skops", "csv": "skops", "lightgbm": "txt", "xgboost": "json", "catboost": "cbm"}
"""The files in which models are saved."""
ODD_NAME = "rot, weiß & [blau] #1"


@pytest.mark.parametrize(("form", "layout"), REFUSED)
def test_a_layout_that_a_format_cannot_carry_is_an_error_that_names_one_that_it_can(form: str, layout: str) -> None:
    with pytest.raises(UsageError, match=f"--format {form} cannot carry --layout {layout}: ") as error:
        check_format(form, get_layout(layout), has_features=True)
    advice = str(error.value).split(": ", 1)[1]
    assert any(f"--layout {received}" in advice for received in LAYOUTS_OF[form])


@pytest.mark.parametrize(("form", "layout"), CARRIED)
def test_trainers_need_features(form: str, layout: str) -> None:
    check_format(form, get_layout(layout), has_features=True)
    if get_format(form).needs_features:
        with pytest.raises(UsageError, match="--features FILE"):
            check_format(form, get_layout(layout), has_features=False)
    else:
        check_format(form, get_layout(layout), has_features=False)


@pytest.mark.parametrize("form", [form for form in format_names() if form not in {"parquet", "csv"}])
def test_the_rows_beside_say_what_each_line_is(form: str, tmp_path: Path) -> None:
    rows = make_sample(LAYOUTS_OF[form][0])
    rows.write(form, tmp_path)
    names = [feature.name for feature in rows.of.features]
    assert_frame_equal(pl.read_parquet(tmp_path / "rows" / "part-*.parquet"), rows.rows.drop(names))
    assert not list(tmp_path.glob("*.piece"))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("form", "layout"), [(form, layouts[-1]) for form, layouts in LAYOUTS_OF.items()])
def test_the_script_finds_its_files_from_anywhere_and_saves_its_model_beside_the_result(
    form: str, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = tmp_path / "results" / ODD_NAME
    folder = make_sample(layout).write(form, result / "training")
    written = sorted(result.rglob("*"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)

    loaded = load(folder)

    assert not list(elsewhere.iterdir())
    assert sorted(result.rglob("*")) == written
    beside = sorted(path.name for path in result.parent.iterdir())
    assert beside == sorted([ODD_NAME, *([f"{ODD_NAME}-model.{MODELS[form]}"] if "model" in loaded else [])])
    assert ("model" in loaded) == (form in MODELS)


@pytest.mark.parametrize("form", MODELS)
@pytest.mark.slow
def test_a_saved_model_is_the_one_that_was_trained_and_replaces_nothing_unasked(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_sample("pointwise").write(form, tmp_path / "result" / "training")
    monkeypatch.chdir(tmp_path)
    trained = load(folder)["model"]
    saved = tmp_path / f"result-model.{MODELS[form]}"
    assert capsys.readouterr().out.splitlines()[-1] == f"the model is saved as {saved.name}"
    np.testing.assert_array_equal(scores_of(form, saved, trained)[0], scores_of(form, saved, trained)[1])

    saved.write_bytes(b"somebody else's")
    load(folder)
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{saved.name} is there already and stays")
    assert saved.read_bytes() == b"somebody else's"

    monkeypatch.setattr("sys.argv", ["load.py", str(saved)])
    runpy.run_path(str(folder / "load.py"))
    np.testing.assert_array_equal(scores_of(form, saved, trained)[0], scores_of(form, saved, trained)[1])


def scores_of(form: str, saved: Path, trained: Any) -> tuple[Any, Any]:  # noqa: ANN401 - of four libraries
    """What a model that is read back says of a few rows, and what the one in memory says of them."""
    rows = np.array([[0.5, 1.0, 2.0, 0.0, 1e-3], [-1.0, 3.0, np.nan, 1.0, 5.0], [2.0, 2.0, -4.0, 1.0, 0.0]])
    if form == "xgboost":
        again = xgb.Booster(model_file=saved)
        types = ["q", "c", "q", "q", "q"]
        matrix = xgb.DMatrix(rows, feature_types=types, enable_categorical=True, feature_names=trained.feature_names)
        return again.predict(matrix), trained.predict(matrix)
    if form == "catboost":
        again = catboost.CatBoost().load_model(str(saved))
        of_brands = [[row[0], ("acme", "")[int(row[1] > 1)], *row[2:]] for row in rows.tolist()]
        return again.predict(of_brands), trained.predict(of_brands)
    if form.startswith("lightgbm"):
        again = lgb.Booster(model_file=str(saved))
        unchecked = {"predict_disable_shape_check": True}
        return again.predict(rows, **unchecked), trained.predict(rows, **unchecked)
    again = import_module("skops.io").load(
        saved, trusted=["sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor"]
    )
    return again.predict_proba(rows), trained.predict_proba(rows)


def test_scripts_read_like_the_code_of_this_repository(tmp_path: Path) -> None:
    for form, layout in CARRIED:
        for features in (True, False):
            if features or not get_format(form).needs_features:
                folder = tmp_path / f"{form}-{layout}-{features}"
                folder.mkdir()
                get_format(form).finish(make_sample(layout, features=features).of, folder)
                assert (folder / "load.py").read_text(encoding="utf-8").count("\n") <= 90
    printing_scripts = "--extend-ignore=T201,B905,ANN401"
    for command in (["check", printing_scripts], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--config", str(PYPROJECT), str(tmp_path)]
        done = ended(ruff)
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_script_is_a_program_of_its_own(tmp_path: Path) -> None:
    folder = make_sample("clicked-group").write("lightgbm", tmp_path / ODD_NAME / "training")
    command = [sys.executable, "-W", "error", str(folder / "load.py")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = ended(command, env=environment, check=True)
    assert done.stdout.splitlines()[0] == "320 rows, 5 features; training ndcg@10 1.0000"


@pytest.mark.slow_after(13)
@pytest.mark.parametrize(("form", "layout"), CARRIED)
def test_the_same_rows_give_the_same_bytes(form: str, layout: str, tmp_path: Path) -> None:
    once, again = (make_sample(layout).write(form, tmp_path / name) for name in ("once", "again"))
    contents = [
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (once, again)
    ]
    assert contents[0] == contents[1]
    assert len(contents[0]) > 2
