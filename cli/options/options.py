"""What is counted and estimated: options in groups, which commands take whole."""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated

from posbias.cli.options.option import on_disk, option, read_name
from posbias.cli.options.shared import MODEL_HELP, Csv
from posbias.cli.options.values import LARGEST_POSITION
from posbias.core.choices import Cluster, Period, Shrink
from posbias.core.errors import UsageError

_COUNTING, _ESTIMATING, _OUTPUT = "Counting", "Estimating", "Output"


@dataclass(frozen=True)
class CountingOptions:
    """What is counted."""

    model: Annotated[
        str | None,
        option(
            "--model",
            MODEL_HELP,
            _COUNTING,
            metavar="NAME",
        ),
    ] = None
    max_position: Annotated[
        int | None,
        option(
            "--max-position",
            "Ignore results shown below this position.",
            _COUNTING,
            min=2,
            max=LARGEST_POSITION,
            metavar="N",
        ),
    ] = None
    position_bins: Annotated[
        str | None,
        option(
            "--position-bins",
            "First position of each bin, e.g. 1,2,3,5,10,20: positions 5 to 9 share one propensity.",
            _COUNTING,
            metavar="FIRST,...",
        ),
    ] = None
    period: Annotated[
        Period,
        option(
            "--period",
            "Let attractiveness vary by hour, day or week, for rankers that learn from clicks. auto: as needed.",
            _COUNTING,
        ),
    ] = "auto"
    date: Annotated[
        str | None,
        option("--date", "Day of the whole log, if no column holds it.", _COUNTING, metavar="YYYY-MM-DD"),
    ] = None


@dataclass(frozen=True)
class DecayOptions:
    """How fast the past is forgotten."""

    decay: Annotated[
        float | None,
        option(
            "--decay",
            "Weight of a day relative to the next, e.g. 0.98. Needs days: --date or --timestamp.",
            _COUNTING,
            metavar="X",
        ),
    ] = None


@dataclass(frozen=True)
class EachOptions:
    """Whether there is one fit, or one for each value of a column."""

    for_each: Annotated[
        str | None,
        option(
            "--for-each",
            "Fit for each value of this column of the log by itself, such as the market: a result each, and a table.",
            _COUNTING,
            metavar="COLUMN",
        ),
    ] = None


@dataclass(frozen=True)
class GateOptions:
    """Which days are let into a store."""

    gate: Annotated[
        float | None,
        option(
            "--gate",
            "Keep a day out of a store if the click rate of a position differs by more than this, e.g. 0.5 for 50 %.",
            _COUNTING,
            metavar="X",
        ),
    ] = None

    def limit(self) -> float | None:
        """The largest relative change of a click rate.

        Raises:
            UsageError: it is none.
        """
        if self.gate is not None and not 0 < self.gate < inf:
            raise UsageError(f"--gate {self.gate:g}: give a relative change above 0, e.g. 0.5 for 50 %.")
        return self.gate


@dataclass(frozen=True)
class StoreOptions:
    """What becomes of a day in a store."""

    into: Annotated[
        Path | None,
        option(
            "--into",
            "Store to add the day to (--date), in one step.",
            _OUTPUT,
            metavar="STORE",
            parser=on_disk(
                "object stores have no locks, so that of two runs at once one could lose the other's day. Keep the "
                "store in a directory, and copy it with `posbias collect STORE -o URL --force`."
            ),
        ),
    ] = None
    replace_day: Annotated[
        bool, option("--replace-day", "With --into: replace the day if it is there from other logs.", _OUTPUT)
    ] = False
    remove_day: Annotated[
        str | None,
        option("--remove-day", "With --into: remove this day, and count nothing.", _OUTPUT, metavar="YYYY-MM-DD"),
    ] = None


@dataclass(frozen=True)
class EstimationOptions:
    """How propensities and attractiveness are estimated."""

    method: Annotated[
        str,
        option(
            "--method",
            "conditional: consistent on sparse logs, with standard errors. For comparison: {other_methods}.",
            _ESTIMATING,
            metavar="NAME",
        ),
    ] = "conditional"
    reference: Annotated[
        str | None,
        option(
            "--reference",
            "Reference position (ubm: position and last click, e.g. 1,0); the first by default.",
            _ESTIMATING,
            metavar="CELL",
        ),
    ] = None
    shape: Annotated[
        str,
        option("--shape", "Shape of the propensity curve: {shapes}.", _ESTIMATING, metavar="SHAPE"),
    ] = "free"
    shrink: Annotated[
        Shrink,
        option(
            "--shrink",
            "Shrink each context towards the others: none, or auto (as far as the log says).",
            _ESTIMATING,
            metavar="HOW",
        ),
    ] = "auto"
    cluster: Annotated[
        Cluster | None,
        option(
            "--cluster",
            "Unit for clustering standard errors: query (the default), pair, session (which needs the log; default of "
            "features), column or two-way (query and --cluster-column, the default with it).",
            _ESTIMATING,
            metavar="UNIT",
        ),
    ] = None
    bootstrap: Annotated[
        int,
        option(
            "--bootstrap",
            "Standard errors from N bootstrap replicates over queries.",
            _ESTIMATING,
            min=0,
            metavar="N",
        ),
    ] = 0
    seed: Annotated[int, option("--seed", "Random seed.", _ESTIMATING, min=0, metavar="N")] = 0
    attractiveness_prior: Annotated[
        str,
        option(
            "--attractiveness-prior",
            "Beta prior on attractiveness: estimate, or MEAN:STRENGTH, the strength in impressions.",
            _ESTIMATING,
            metavar="M:S",
        ),
    ] = "estimate"
    examination_prior: Annotated[
        str,
        option(
            "--examination-prior", "Beta prior on examination in joint EM, MEAN:STRENGTH.", _ESTIMATING, metavar="M:S"
        ),
    ] = "0.5:2"
    max_iterations: Annotated[
        int | None,
        option("--max-iterations", "Stop after N iterations, converged or not.", _ESTIMATING, min=1, metavar="N"),
    ] = None
    tolerance: Annotated[
        float | None,
        option("--tolerance", "Relative change at which an estimate has converged.", _ESTIMATING, min=0, metavar="X"),
    ] = None
    no_acceleration: Annotated[
        bool, option("--no-acceleration", "Run joint EM without SQUAREM acceleration.", _ESTIMATING)
    ] = False
    compare: Annotated[
        bool | None,
        option(
            "--compare/--no-compare",
            "Run joint EM as well, for comparison. On by default up to 200,000 signatures and 1,000 cells.",
            _ESTIMATING,
        ),
    ] = None
    trust: Annotated[
        str | None,
        option(
            "--trust",
            "Table of the trust bias of --model tpbm: position, alpha and beta.",
            _ESTIMATING,
            metavar="FILE",
            parser=read_name,
        ),
    ] = None
    csv: Csv = False
    strict: Annotated[bool, option("--strict", "Exit with code 1 if any cell is not identified.", _ESTIMATING)] = False
