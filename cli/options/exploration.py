"""What is asked of an exploration: how much more can be shown, and how many documents of a query matter."""

from posbias.cli.options.option import option, options

_MOST = 10**12


@options("Exploring")
class ExplorationOptions:
    """What is to be learnt, and from how much."""

    pages: int = option("Number of further pages to plan.", "N", default=10000, min=1, max=_MOST)
    top: int = option("How many documents count as the best of a query.", "K", default=10, min=1, max=_MOST)
    ucb: float | None = option(
        "Order documents by mean attractiveness and ALPHA standard deviations; without it, by the 97.5 % quantile.",
        "ALPHA",
    )
