"""What is asked of an exploration: how much more can be shown, and how many documents of a query matter."""

from dataclasses import dataclass
from typing import Annotated

from posbias.cli.options.option import option

_EXPLORING = "Exploring"
_MOST = 10**12


@dataclass(frozen=True)
class ExplorationOptions:
    """What is to be learnt, and from how much."""

    pages: Annotated[
        int,
        option("--pages", "Number of further pages to plan.", _EXPLORING, min=1, max=_MOST, metavar="N"),
    ] = 10_000
    top: Annotated[
        int,
        option("--top", "How many documents count as the best of a query.", _EXPLORING, min=1, max=_MOST, metavar="K"),
    ] = 10
    ucb: Annotated[
        float | None,
        option(
            "--ucb",
            "Order documents by mean attractiveness and ALPHA standard deviations; without it, by the 97.5 % quantile.",
            _EXPLORING,
            metavar="ALPHA",
        ),
    ] = None
