"""What is asked of a comparison, and what of its outcome counts as a failure."""

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from posbias.cli.options.option import option
from posbias.core.errors import UsageError

Condition = Literal["change", "rejected", "not-converged", "unidentified"]

_COMPARING = "Comparing"


@dataclass(frozen=True)
class ComparingOptions:
    """What is compared, and what ends with exit code 3."""

    by: Annotated[
        Literal["day"] | None, option("--by", "Compare the days of one store with each other.", _COMPARING)
    ] = None
    max_change: Annotated[
        float | None,
        option(
            "--max-change",
            "Exit with 3 if a propensity changes by a larger share, and by more than its error.",
            _COMPARING,
            metavar="X",
        ),
    ] = None
    fail_if: Annotated[
        list[str] | None,
        option(
            "--fail-if",
            "Exit with 3 if this is so. Repeatable.",
            _COMPARING,
            metavar=f"[{'|'.join(get_args(Condition))}]",
        ),
    ] = None

    def check(self) -> None:
        """See that the values can be meant.

        Raises:
            UsageError: they cannot.
        """
        if self.max_change is not None and not 0 < self.max_change < float("inf"):
            raise UsageError(f"--max-change {self.max_change:g}: give a share above 0: 0.2 for a fifth.")
        for condition in self.fail_if or ():
            if condition not in get_args(Condition):
                raise UsageError(f"--fail-if {condition}: must be one of {', '.join(get_args(Condition))}.")
