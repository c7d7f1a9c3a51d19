"""What is counted and estimated: options in groups, which commands take whole."""

from math import inf
from pathlib import Path

from posbias.cli.options.complete import one_of
from posbias.cli.options.names import METHODS
from posbias.cli.options.option import on_disk, option, options, read_name
from posbias.cli.options.shared import CSV, MODEL
from posbias.cli.options.values import LARGEST_POSITION
from posbias.core.choices import FREE, SHAPES, Cluster, Period, Shrink
from posbias.core.errors import UsageError


@options("Counting")
class CountingOptions:
    """What is counted."""

    model: str | None = MODEL
    max_position: int | None = option("Ignore results shown below this position.", "N", min=2, max=LARGEST_POSITION)
    position_bins: str | None = option(
        "First position of each bin, e.g. 1,2,3,5,10,20: positions 5 to 9 share one propensity.", "FIRST,..."
    )
    period: Period = option(
        "Let attractiveness vary by hour, day or week, for rankers that learn from clicks. auto: as needed.",
        default="auto",
    )
    date: str | None = option("Day of the whole log, if no column holds it.", "YYYY-MM-DD")


@options("Counting")
class DecayOptions:
    """How fast the past is forgotten."""

    decay: float | None = option(
        "Weight of a day relative to the next, e.g. 0.98. Needs days: --date or --timestamp.", "X"
    )


@options("Counting")
class EachOptions:
    """Whether there is one fit, or one for each value of a column."""

    for_each: str | None = option(
        "Fit for each value of this column of the log by itself, such as the market: a result each, and a table.",
        "COLUMN",
    )


@options("Counting")
class GateOptions:
    """Which days are let into a store."""

    gate: float | None = option(
        "Keep a day out of a store if the click rate of a position differs by more than this, e.g. 0.5 for 50 %.", "X"
    )

    def limit(self) -> float | None:
        """The largest relative change of a click rate.

        Raises:
            UsageError: it is none.
        """
        if self.gate is not None and not 0 < self.gate < inf:
            raise UsageError(f"--gate {self.gate:g}: give a relative change above 0, e.g. 0.5 for 50 %.")
        return self.gate


@options("Output")
class StoreOptions:
    """What becomes of a day in a store."""

    into: Path | None = option(
        "Store to add the day to (--date), in one step.",
        "STORE",
        parser=on_disk(
            "object stores have no locks, so that of two runs at once one could lose the other's day. "
            "Keep the store in a directory, and copy it with `posbias collect STORE -o URL --force`."
        ),
    )
    replace_day: bool = option("With --into: replace the day if it is there from other logs.")
    remove_day: str | None = option("With --into: remove this day, and count nothing.", "YYYY-MM-DD")


@options("Estimating")
class EstimationOptions:
    """How propensities and attractiveness are estimated."""

    method: str = option(
        "conditional: consistent on sparse logs, with standard errors. For comparison: {other_methods}.",
        "NAME",
        default="conditional",
        complete=one_of(METHODS),
    )
    reference: str | None = option(
        "Reference position (ubm: position and last click, e.g. 1,0); the first by default.", "CELL"
    )
    shape: str = option(
        "Shape of the propensity curve: {shapes}.", "SHAPE", default="free", complete=one_of((FREE, *SHAPES))
    )
    shrink: Shrink = option(
        "Shrink each context towards the others: none, or auto (as far as the log says).", "HOW", default="auto"
    )
    cluster: Cluster | None = option(
        "Unit for clustering standard errors: query (the default), pair, session (which needs the log; default of "
        "features), column or two-way (query and --cluster-column, the default with it).",
        "UNIT",
    )
    bootstrap: int = option("Standard errors from N bootstrap replicates over queries.", "N", default=0, min=0)
    seed: int = option("Random seed.", "N", default=0, min=0)
    attractiveness_prior: str = option(
        "Beta prior on attractiveness: estimate, or MEAN:STRENGTH, the strength in impressions.",
        "M:S",
        default="estimate",
    )
    examination_prior: str = option("Beta prior on examination in joint EM, MEAN:STRENGTH.", "M:S", default="0.5:2")
    max_iterations: int | None = option("Stop after N iterations, converged or not.", "N", min=1)
    tolerance: float | None = option("Relative change at which an estimate has converged.", "X", min=0)
    no_acceleration: bool = option("Run joint EM without SQUAREM acceleration.")
    compare: bool | None = option(
        "Run joint EM as well, for comparison. On by default up to 200,000 signatures and 1,000 cells.",
        flag="--compare/--no-compare",
    )
    trust: str | None = option(
        "Table of the trust bias of --model tpbm: position, alpha and beta.", "FILE", parser=read_name
    )
    csv: bool = CSV
    strict: bool = option("Exit with code 1 if any cell is not identified.")
