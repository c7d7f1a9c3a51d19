"""Names that lie in the rooms of their plug-ins: they are looked up when help or a shell asks, not when posbias starts.

A help text says `{methods}` where they belong.
"""

import re
from collections.abc import Callable, Mapping


def filled(text: str) -> str:
    """A help text with the names in it."""
    return re.sub(r"\{(\w+)\}", lambda match: IN_WORDS[match[1]](), text)


def models() -> list[str]:
    """Click models: first those that have a propensity by cell."""
    from posbias.core.models import click_model_names

    return list(dict.fromkeys([*cell_models(), *click_model_names()]))


def cell_models() -> list[str]:
    """Click models that have a propensity by cell."""
    from posbias.core.models import model_names

    return model_names()


def methods() -> list[str]:
    """Ways to estimate."""
    from posbias.core.estimators import method_names

    return method_names()


def shapes() -> list[str]:
    """Shapes of the propensity curve."""
    from posbias.core.shapes import shape_names

    return shape_names()


def learners() -> list[str]:
    """Ways to learn a ranker."""
    from posbias.core.learners.methods import learner_names

    return learner_names()


def layouts() -> list[str]:
    """Layouts of training files."""
    from posbias.core.training.layouts import layout_names

    return layout_names()


def formats() -> list[str]:
    """Formats of training files."""
    from posbias.io.formats import format_names

    return format_names()


def forms() -> list[str]:
    """Forms of logs."""
    from posbias.io.forms import form_names

    return ["auto", "flat", "nested", *form_names()]


def _shapes_in_words() -> str:
    from posbias.core.shapes import shapes_in_words

    return shapes_in_words()


def _layouts_in_words() -> str:
    from posbias.core.training.layouts import layouts_in_words

    return layouts_in_words()


def _sources() -> str:
    from posbias.io.forms import form_names

    return ", ".join(form_names())


def _methods_of_rows() -> str:
    from posbias.core.estimators import methods_of_rows

    return " or ".join(methods_of_rows())


def _largest_error() -> str:
    from posbias.core.fit.refinements import LARGEST_ERROR

    return str(LARGEST_ERROR)


def _penalties() -> str:
    from posbias.core.learners.factorizing import USUAL_PENALTY, WEIGHTED_PENALTY

    return f"{USUAL_PENALTY:g} unless said, {WEIGHTED_PENALTY:g} for propensity-mf"


IN_WORDS: Mapping[str, Callable[[], str]] = {
    "cell_models": lambda: ", ".join(cell_models()),
    "page_models": lambda: ", ".join(models()[len(cell_models()) :]),
    "other_methods": lambda: ", ".join(methods()[1:]),
    "other_learners": lambda: ", ".join(learners()[1:]),
    "shapes": _shapes_in_words,
    "layouts": _layouts_in_words,
    "formats": lambda: ", ".join(formats()),
    "sources": _sources,
    "methods_of_rows": _methods_of_rows,
    "largest_error": _largest_error,
    "penalties": _penalties,
}
"""By what a help text calls them."""
