"""A plug-in is found because its file lies in its room, and nowhere else."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from posbias.core.errors import UsageError
from posbias.core.estimators import estimator_names
from posbias.core.models import FactorisedModel, get_model, model_names
from posbias.core.models.pbm import PositionBasedModel
from posbias.core.registry import Plugin, Room
from posbias.core.training.layouts import layout_names
from posbias.io.formats import format_names


class _Elsewhere(PositionBasedModel):
    name = "elsewhere"


class _Base(Plugin):
    """Of the rooms that the tests below make."""


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Room[_Base]]:
    """Return a function that makes a room of files, whose classes have these names and ranks."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def make(package: str, **files: str) -> Room[_Base]:
        folder = tmp_path / package
        folder.mkdir()
        (folder / "__init__.py").touch()
        for file, body in files.items():
            (folder / f"{file}.py").write_text(body)
        return Room(package, [str(folder)], (_Base,), "--thing")

    return make


def _plugin(name: str, rank: int = 100) -> str:
    return (
        "from posbias.core.registry import Plugin\n"
        "base = next(kind for kind in Plugin.__subclasses__() if kind.__name__ == '_Base')\n"
        f"class A(base):\n    name = {name!r}\n    rank = {rank}\n"
    )


def test_the_order_of_help_is_that_of_the_ranks_whatever_the_files_are_called() -> None:
    assert model_names() == ["pbm", "ubm"]
    assert estimator_names() == ["conditional", "joint", "allpairs", "adjacent-chain", "randomized", "ctr"]
    assert layout_names() == ["pointwise", "clicked-group", "session", "pairs", "judgments"]
    of_trainers = ["parquet", "csv", "lightgbm", "lightgbm-csv", "xgboost", "catboost", "ranklib"]
    assert format_names() == [*of_trainers, "qrels", "opensearch", "elasticsearch", "quepid"]


def test_a_class_from_elsewhere_is_no_plugin_of_a_room() -> None:
    assert issubclass(_Elsewhere, FactorisedModel)
    assert _Elsewhere.name not in model_names()


def test_a_new_plugin_stands_behind_those_with_a_rank(room: Callable[..., Room[_Base]]) -> None:
    assert room("ordered", a=_plugin("zebra", 1), b=_plugin("new"), c=_plugin("apple")).names == [
        "zebra",
        "apple",
        "new",
    ]


def test_two_plugins_of_one_name_are_an_error_that_names_them(room: Callable[..., Room[_Base]]) -> None:
    with pytest.raises(TypeError, match="two of same, same have one name"):
        _ = room("doubled", a=_plugin("same"), b=_plugin("same")).names


def test_a_name_that_is_none_is_an_error_that_lists_them(room: Callable[..., Room[_Base]]) -> None:
    with pytest.raises(UsageError, match=r"--thing other: unknown name; choose from one\."):
        room("listed", a=_plugin("one")).get("other")


def test_plugins_are_equal_by_what_they_are() -> None:
    assert PositionBasedModel() == get_model("pbm")
    assert get_model("pbm") != get_model("ubm")
