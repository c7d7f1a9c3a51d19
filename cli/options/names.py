"""Names that lie in the rooms of their plug-ins: read there when help or a shell asks, and no plug-in is loaded.

A help text says `{methods}` where they belong.
"""

import re
from collections.abc import Callable, Mapping

from posbias.core.choices import FREE, LARGEST_ERROR
from posbias.core.declarations import Declaration, declared_plugins


def filled(text: str) -> str:
    """A help text with the names in it."""
    return re.sub(r"\{(\w+)\}", lambda match: IN_WORDS[match[1]](), text)


def models() -> list[str]:
    """Click models: first those that have a propensity by cell."""
    return list(dict.fromkeys([*cell_models(), *_declared("core.models", "ClickModel")]))


def cell_models() -> list[str]:
    """Click models that have a propensity by cell."""
    return list(_declared("core.models", "FactorisedModel"))


def methods() -> list[str]:
    """Ways to estimate."""
    return list(_declared("core.estimators", "Estimator", "MethodOfRows"))


def methods_of_rows() -> list[str]:
    """Those of them that learn from rows with features."""
    return list(_declared("core.estimators", "MethodOfRows"))


def shapes() -> list[str]:
    """Shapes of the propensity curve."""
    return [FREE, *_declared("core.shapes", "CurveShape")]


def learners() -> list[str]:
    """Ways to learn a ranker."""
    return list(_declared("core.learners.methods", "Learner"))


def layouts() -> list[str]:
    """Layouts of training files."""
    return list(_layouts())


def formats() -> list[str]:
    """Formats of training files."""
    return list(_declared("io.formats", "TrainingFormat"))


def forms() -> list[str]:
    """Forms of logs."""
    return ["auto", "flat", "nested", *_sources()]


def _declared(room: str, *bases: str) -> Mapping[str, Declaration]:
    return declared_plugins(f"posbias.{room}", bases)


def _layouts() -> Mapping[str, Declaration]:
    return _declared("core.training.layouts", "LayoutOfPages", "LayoutOfCounts")


def _sources() -> list[str]:
    return list(_declared("io.forms", "Form"))


def _shapes_in_words() -> str:
    """The shapes with what they say, e.g. `free, monotone (never rising)`."""
    declared = _declared("core.shapes", "CurveShape")
    return ", ".join([FREE, *(f"{name} ({shape.said['in_words']})" for name, shape in declared.items())])


def _layouts_in_words() -> str:
    """What a row stands for, and in which layouts: `document (pointwise, judgments), ..., or preference (pairs)`."""
    by_row: dict[str, list[str]] = {}
    for name, layout in _layouts().items():
        by_row.setdefault(layout.said["row"], []).append(name)
    *first, last = [f"{row} ({', '.join(names)})" for row, names in by_row.items()]
    return f"{', '.join(first)}, or {last}"


IN_WORDS: Mapping[str, Callable[[], str]] = {
    "cell_models": lambda: ", ".join(cell_models()),
    "page_models": lambda: ", ".join(models()[len(cell_models()) :]),
    "other_methods": lambda: ", ".join(methods()[1:]),
    "other_learners": lambda: ", ".join(learners()[1:]),
    "shapes": _shapes_in_words,
    "layouts": _layouts_in_words,
    "formats": lambda: ", ".join(formats()),
    "sources": lambda: ", ".join(_sources()),
    "methods_of_rows": lambda: " or ".join(methods_of_rows()),
    "largest_error": lambda: str(LARGEST_ERROR),
}
"""By what a help text calls them."""
