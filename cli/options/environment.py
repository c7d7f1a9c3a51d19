"""POSBIAS_* variables that no option has.

A name that begins so is meant for posbias: one that no option has would change the numbers in silence, and is refused.
Kubernetes sets some by itself, in every container beside a service whose name begins with `posbias`: they mean nothing.
"""

import difflib
import re
from collections.abc import Collection, Mapping

from posbias.core.errors import UsageError

PREFIX = "POSBIAS_"
_OF_KUBERNETES = re.compile(
    rf"{PREFIX}(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


def check_environment(environment: Mapping[str, str], known: Collection[str]) -> None:
    """Find variables that are meant for posbias and that it does not know. An empty one counts as not set.

    Args:
        environment: of the process.
        known: the variables of all options.

    Raises:
        UsageError: one is no option's, or holds nothing but blanks.
    """
    for name, value in sorted(environment.items()):
        if not name.upper().startswith(PREFIX) or not value:
            continue
        if name in known:
            if not value.strip():
                raise UsageError(f"{name}: contains only whitespace. Unset it, or give it a value.")
        elif _OF_KUBERNETES.fullmatch(name) is None:
            close = closest(name, known)
            meant = "" if close is None else f"Did you mean {close}? If not, "
            raise UsageError(f"{name}: no such option. {meant}{'r' if meant else 'R'}ename or unset the variable.")


def closest(name: str, known: Collection[str]) -> str | None:
    """The known variable that was probably meant."""
    by_option = {variable.removeprefix(PREFIX): variable for variable in known}
    option = name.upper().removeprefix(PREFIX)
    found = difflib.get_close_matches(option, sorted(by_option), n=1)
    return by_option[found[0]] if found else None
