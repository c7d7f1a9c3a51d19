"""What holds for every format: what it carries, what it refuses, the rows beside, and the script on its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from posbias.core.errors import UsageError
from posbias.core.training.layouts import get_layout, layout_names
from posbias.io.formats import check_format, format_names, get_format

LAYOUTS_OF = {
    form: [layout for layout in layout_names() if get_format(form).carries(get_layout(layout))]
    for form in format_names()
}
CARRIED = [(form, layout) for form, layouts in LAYOUTS_OF.items() for layout in layouts]
REFUSED = [(form, layout) for form in format_names() for layout in layout_names() if layout not in LAYOUTS_OF[form]]
PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
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
def test_the_rows_beside_say_what_each_line_is(form: str, sample: Callable[..., Any], tmp_path: Path) -> None:
    rows = sample(LAYOUTS_OF[form][0])
    rows.write(form, tmp_path)
    names = [feature.name for feature in rows.of.features]
    assert_frame_equal(pl.read_parquet(tmp_path / "rows-*.parquet"), rows.rows.drop(names))
    assert not list(tmp_path.glob("*.piece"))


@pytest.mark.parametrize(("form", "layout"), [(form, layouts[-1]) for form, layouts in LAYOUTS_OF.items()])
def test_the_script_finds_its_files_from_anywhere_and_writes_nothing(
    form: str,
    layout: str,
    sample: Callable[..., Any],
    load: Callable[[Path], dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = sample(layout).write(form, tmp_path / ODD_NAME / "training")
    written = sorted(folder.iterdir())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    load(folder)
    assert not list(elsewhere.iterdir())
    assert sorted(folder.iterdir()) == written


def test_scripts_read_like_the_code_of_this_repository(sample: Callable[..., Any], tmp_path: Path) -> None:
    for form, layout in CARRIED:
        for features in (True, False):
            if features or not get_format(form).needs_features:
                folder = tmp_path / f"{form}-{layout}-{features}"
                folder.mkdir()
                get_format(form).finish(sample(layout, features=features).of, folder)
                assert (folder / "load.py").read_text(encoding="utf-8").count("\n") <= 42
    printing_scripts = "--extend-ignore=T201,B905,ANN401"
    for command in (["check", printing_scripts], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--config", str(PYPROJECT), str(tmp_path)]
        done = subprocess.run(ruff, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_the_script_is_a_program_of_its_own(sample: Callable[..., Any], tmp_path: Path) -> None:
    folder = sample("clicked-group").write("lightgbm", tmp_path / ODD_NAME / "training")
    command = [sys.executable, "-W", "error", str(folder / "load.py")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "320 rows, 5 features; training ndcg@10 1.0000\n"


@pytest.mark.parametrize(("form", "layout"), CARRIED)
def test_the_same_rows_give_the_same_bytes(form: str, layout: str, sample: Callable[..., Any], tmp_path: Path) -> None:
    once, again = (sample(layout).write(form, tmp_path / name) for name in ("once", "again"))
    assert {path.name: path.read_bytes() for path in once.iterdir()} == {
        path.name: path.read_bytes() for path in again.iterdir()
    }
