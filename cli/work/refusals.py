"""Options that mean nothing beside others: the first that is asked for is said."""

from collections.abc import Iterable

from posbias.core.errors import UsageError

Refusal = tuple[object, str | None, str]
"""Whether an option is asked for, how it was said, and why it means nothing."""


def refuse(refusals: Iterable[Refusal]) -> None:
    """See that none of them is asked for.

    Raises:
        UsageError: one is.
    """
    for is_asked, option, reason in refusals:
        if is_asked:
            raise UsageError(f"{option}: {reason}.")
