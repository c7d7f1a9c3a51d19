"""A plug-in is a class in its room, and a line in the table of its kind."""

import pkgutil
from importlib import import_module
from inspect import isabstract

import pytest

from posbias.cli.options.option import PLACEHOLDERS
from posbias.core import choices
from posbias.core.choices import LAYOUTS, LEARNERS, SHAPES, Plugin, Room
from posbias.core.errors import UsageError
from posbias.core.estimators.estimate import Estimator, MethodOfRows
from posbias.core.learners.learning import Learner
from posbias.core.models import ClickModel, FactorisedModel
from posbias.core.shapes import CurveShape
from posbias.core.training.layout import LayoutOfCounts, LayoutOfPages
from posbias.io.forms import Form
from posbias.io.training.format import TrainingFormat

KINDS: dict[str, tuple[type[Plugin], ...]] = {
    "MODELS": (FactorisedModel,),
    "CLICK_MODELS": (ClickModel,),
    "ESTIMATORS": (Estimator,),
    "METHODS_OF_ROWS": (MethodOfRows,),
    "SHAPES": (CurveShape,),
    "LAYOUTS": (LayoutOfPages, LayoutOfCounts),
    "FORMATS": (TrainingFormat,),
    "FORMS": (Form,),
}


def below(base: type[Plugin]) -> set[type[Plugin]]:
    """Return the classes below a class, at any depth."""
    return {deeper for kind in base.__subclasses__() for deeper in (kind, *below(kind))}


@pytest.mark.parametrize("table", KINDS)
def test_a_table_names_every_class_of_its_kind_and_no_other(table: str) -> None:
    room = Room[Plugin](getattr(choices, table), "--thing")
    package = next(iter(room.paths.values())).rpartition(".")[0]
    for file in pkgutil.iter_modules(import_module(package).__path__):
        import_module(f"{package}.{file.name}")
    named = {kind for base in KINDS[table] for kind in below(base) if hasattr(kind, "name") and not isabstract(kind)}
    listed = {type(plugin) for plugin in room.plugins.values() if hasattr(type(plugin), "name")}  # others are values
    assert {kind for kind in named if kind.__module__.startswith(package)} == listed
    assert [plugin.name for plugin in room.plugins.values()] == room.names()


def test_the_table_of_learners_names_every_learner_and_no_other() -> None:
    files = {import_module(path.partition(":")[0]) for path in LEARNERS.values()}
    values = [value for file in files for value in vars(file).values() if isinstance(value, Learner)]
    assert {learner.name for learner in values} == set(LEARNERS)
    assert [learner.name for learner in Room[Learner](LEARNERS, "--learner").plugins.values()] == [*LEARNERS]


def test_a_name_that_is_none_is_an_error_that_lists_them() -> None:
    with pytest.raises(UsageError, match=r"--thing pmb: unknown name; choose from pbm\. Did you mean pbm\?"):
        Room[Plugin]({"pbm": ""}, "--thing").get("pmb")


def test_help_has_words_for_every_shape_and_layout() -> None:
    assert all(name in PLACEHOLDERS["shapes"] for name in SHAPES)
    assert all(name in PLACEHOLDERS["layouts"] for name in LAYOUTS)
