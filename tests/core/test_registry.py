"""A plug-in is found because its file lies in its room, and nowhere else."""

import pkgutil
import sys
from collections.abc import Callable
from importlib import import_module
from inspect import isabstract
from pathlib import Path
from typing import cast

import pytest

from posbias.cli.options import names
from posbias.core.errors import UsageError
from posbias.core.estimators import estimator_names, method_names, methods_of_rows
from posbias.core.learners.methods import learner_names
from posbias.core.models import FactorisedModel, click_model_names, get_model, model_names
from posbias.core.models.pbm import PositionBasedModel
from posbias.core.registry import Plugin, Room
from posbias.core.shapes import shape_names
from posbias.core.training.layouts import layout_names
from posbias.io.formats import format_names
from posbias.io.forms import form_names

ROOMS = [
    *("posbias.core.models", "posbias.core.estimators", "posbias.core.shapes", "posbias.core.evaluation.measures"),
    *("posbias.core.training.layouts", "posbias.core.learners.methods", "posbias.io.formats", "posbias.io.forms"),
]


def below(base: type[Plugin]) -> set[type[Plugin]]:
    """Return the classes below a class, at any depth."""
    return {deeper for kind in base.__subclasses__() for deeper in (kind, *below(kind))}


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
        "_Base = next(kind for kind in Plugin.__subclasses__() if kind.__name__ == '_Base')\n"
        f'class A(_Base):\n    name = "{name}"\n    rank = {rank}\n'
    )


def test_the_order_of_help_is_that_of_the_ranks_whatever_the_files_are_called() -> None:
    assert model_names() == ["pbm", "ubm"]
    assert estimator_names() == ["conditional", "joint", "allpairs", "adjacent-chain", "randomized", "ctr"]
    assert layout_names() == ["pointwise", "clicked-group", "session", "pairs", "judgments"]
    of_trainers = ["parquet", "csv", "lightgbm", "xgboost", "catboost", "ranklib"]
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


@pytest.mark.parametrize("package", ROOMS)
def test_what_a_file_declares_is_what_its_class_says(package: str) -> None:
    held = cast("list[object]", list(vars(import_module(package)).values()))
    rooms = [cast("Room[Plugin]", room) for room in held if isinstance(room, Room)]
    assert rooms
    for room in rooms:
        for name, plugin in room.plugins.items():
            assert (plugin.name, not isabstract(type(plugin))) == (name, True)
            assert plugin.rank == room.declared[name].said.get("rank", Plugin.rank)
        for file in pkgutil.iter_modules(room.folders):
            import_module(f"{package}.{file.name}")
        named = {kind for base in room.bases for kind in below(base) if hasattr(kind, "name") and not isabstract(kind)}
        assert {kind for kind in named if kind.__module__.startswith(package)} == set(map(type, room.plugins.values()))


def test_help_names_what_there_is() -> None:
    assert (names.cell_models(), names.methods(), names.methods_of_rows()) == (
        model_names(),
        method_names(),
        methods_of_rows(),
    )
    assert set(names.models()) == {*model_names(), *click_model_names()}
    assert (names.shapes(), names.learners(), names.layouts()) == (shape_names(), learner_names(), layout_names())
    assert (names.formats(), names.forms()[3:]) == (format_names(), form_names())


def test_plugins_are_equal_by_what_they_are() -> None:
    assert PositionBasedModel() == get_model("pbm")
    assert get_model("pbm") != get_model("ubm")
