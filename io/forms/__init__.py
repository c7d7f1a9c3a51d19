"""The raw files of known sources, which hold queries and events and no rows of impressions.

A source is one file here: a class below `Form`. A line in `core/choices.py` names it.
"""

from posbias.core.choices import FORMS, Room
from posbias.io.forms.form import Form

__all__ = ["Form", "form_names", "forms", "get_form"]

_FORMS = Room[Form](FORMS, "--input-format")

form_names, get_form = _FORMS.names, _FORMS.get


def forms() -> list[Form]:
    """The forms, in that order."""
    return list(_FORMS.plugins.values())
