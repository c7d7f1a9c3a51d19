"""Recognition of logs, and raw files of known sources: queries and events, not rows of impressions.

A source is a subclass of `Form`, named by a line in `core/choices.py`.
"""

from posbias.core.choices import FORMS, Room
from posbias.io.forms.form import Form

__all__ = ["Form", "form_names", "forms", "get_form"]

_FORMS = Room[Form](FORMS, "--input-format")

form_names, get_form = _FORMS.names, _FORMS.get


def forms() -> list[Form]:
    """Return all forms, in the order of `core/choices.py`."""
    return list(_FORMS.plugins.values())
