"""What is asked of a comparison, and what of its outcome counts as a failure."""

from typing import Literal, get_args

from posbias.cli.options.option import option, options
from posbias.core.errors import UsageError

Condition = Literal["change", "rejected", "not-converged", "unidentified"]


@options("Comparing")
class ComparingOptions:
    """What is compared, and what ends with exit code 3."""

    by: Literal["day"] | None = option("Compare the days of one store with each other.")
    max_change: float | None = option(
        "Exit with 3 if a propensity changes by a larger share, and by more than its error.", "X"
    )
    fail_if: list[str] | None = option(
        "Exit with 3 if this is so. Repeatable.", "[" + "|".join(get_args(Condition)) + "]"
    )

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
