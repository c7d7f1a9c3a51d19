"""POSBIAS_* variables that no option has.

A variable that is nearly an option's is a typing error, and would change the numbers in silence: it is refused. Any
other may be somebody else's (Kubernetes sets POSBIAS_SERVICE_HOST where a service has that name): it is only named.
"""

import difflib
from collections.abc import Collection, Mapping

from posbias.core.errors import UsageError

PREFIX = "POSBIAS_"
_TYPING_ERROR = 0.8
"""Likeness of two names (difflib), without the prefix, from which one of them is taken for a typing error."""


def check_environment(environment: Mapping[str, str], known: Collection[str]) -> list[str]:
    """Find variables that are meant for posbias and that it does not know. An empty one counts as not set.

    Args:
        environment: of the process.
        known: the variables of all options.

    Returns:
        A warning for each variable that may be somebody else's.

    Raises:
        UsageError: one is written nearly like an option's, or holds nothing but blanks.
    """
    warnings: list[str] = []
    for name, value in sorted(environment.items()):
        if not name.upper().startswith(PREFIX) or not value:
            continue
        if name in known:
            if not value.strip():
                raise UsageError(f"{name}: contains only whitespace. Unset it, or give it a value.")
            continue
        close = closest(name, known)
        if close is not None:
            raise UsageError(f"{name}: no such option. Did you mean {close}? If not, rename or unset the variable.")
        warnings.append(f"{name}: no such option; the variable is ignored.")
    return warnings


def closest(name: str, known: Collection[str]) -> str | None:
    """The known variable that was probably meant."""
    by_option = {variable.removeprefix(PREFIX): variable for variable in known}
    option = name.upper().removeprefix(PREFIX)
    found = difflib.get_close_matches(option, sorted(by_option), n=1, cutoff=_TYPING_ERROR)
    return by_option[found[0]] if found else None
