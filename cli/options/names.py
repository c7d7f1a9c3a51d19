"""Names of plug-ins for help and the shell: no plug-in is loaded. A help text says `{methods}` where they belong."""

import re
from collections.abc import Mapping

from posbias.core.choices import (
    CLICK_MODELS,
    ESTIMATORS,
    FORMATS,
    FORMS,
    FREE,
    LARGEST_ERROR,
    LEARNERS,
    METHODS_OF_ROWS,
    MODELS,
)

METHODS = (*ESTIMATORS, *METHODS_OF_ROWS)


def filled(text: str) -> str:
    """A help text with the names in it."""
    return re.sub(r"\{(\w+)\}", lambda match: IN_WORDS[match[1]], text)


IN_WORDS: Mapping[str, str] = {
    "cell_models": ", ".join(MODELS),
    "page_models": ", ".join(name for name in CLICK_MODELS if name not in MODELS),
    "other_methods": ", ".join(METHODS[1:]),
    "other_learners": ", ".join([*LEARNERS][1:]),
    "shapes": f"{FREE}, monotone (never rising), power (position^-eta), smooth (near a power, for thin logs)",
    "layouts": "document (pointwise, judgments), click (clicked-group), page (session), or preference (pairs)",
    "formats": ", ".join(FORMATS),
    "sources": ", ".join(FORMS),
    "methods_of_rows": " or ".join(METHODS_OF_ROWS),
    "largest_error": str(LARGEST_ERROR),
}
"""By what a help text calls them."""
