"""Names of plug-ins for help and the shell: no plug-in is loaded.

A help text says `{methods}` where they belong.
"""

import re
from collections.abc import Mapping

from posbias.core.choices import (
    CLICK_MODELS,
    ESTIMATORS,
    FORMATS,
    FORMS,
    FREE,
    LARGEST_ERROR,
    LAYOUTS,
    LEARNERS,
    METHODS_OF_ROWS,
    MODELS,
    SHAPES,
)


def filled(text: str) -> str:
    """A help text with the names in it."""
    return re.sub(r"\{(\w+)\}", lambda match: IN_WORDS[match[1]], text)


def models() -> list[str]:
    """Click models: first those that have a propensity by cell."""
    return list(CLICK_MODELS)


def cell_models() -> list[str]:
    """Click models that have a propensity by cell."""
    return list(MODELS)


def methods() -> list[str]:
    """Ways to estimate."""
    return [*ESTIMATORS, *METHODS_OF_ROWS]


def methods_of_rows() -> list[str]:
    """Those of them that learn from rows with features."""
    return list(METHODS_OF_ROWS)


def shapes() -> list[str]:
    """Shapes of the propensity curve."""
    return [FREE, *SHAPES]


def learners() -> list[str]:
    """Ways to learn a ranker."""
    return list(LEARNERS)


def layouts() -> list[str]:
    """Layouts of training files."""
    return list(LAYOUTS)


def formats() -> list[str]:
    """Formats of training files."""
    return list(FORMATS)


def forms() -> list[str]:
    """Forms of logs."""
    return ["auto", "flat", "nested", *FORMS]


IN_WORDS: Mapping[str, str] = {
    "cell_models": ", ".join(MODELS),
    "page_models": ", ".join(name for name in CLICK_MODELS if name not in MODELS),
    "other_methods": ", ".join(methods()[1:]),
    "other_learners": ", ".join(learners()[1:]),
    "shapes": f"{FREE}, monotone (never rising), power (position^-eta), smooth (near a power, for thin logs)",
    "layouts": "document (pointwise, judgments), click (clicked-group), page (session), or preference (pairs)",
    "formats": ", ".join(FORMATS),
    "sources": ", ".join(FORMS),
    "methods_of_rows": " or ".join(METHODS_OF_ROWS),
    "largest_error": str(LARGEST_ERROR),
}
"""By what a help text calls them."""
