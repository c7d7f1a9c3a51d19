"""Options of counting, estimating, comparing, exploring and simulating, in groups that commands take whole."""

from pathlib import Path
from typing import Literal

from posbias.cli.options.option import (
    CHECK_PAGES,
    CSV,
    FEATURE,
    FEATURES,
    LARGEST_POSITION,
    METHODS,
    MISSING_FEATURES,
    MODEL,
    RANKER_SCORE,
    REQUIRED,
    on_disk,
    one_of,
    option,
    options,
    read_name,
    several_of,
)
from posbias.cli.options.output import CONFIG, FORCE, QUIET, TARGET
from posbias.core.choices import (
    CLICK_MODELS,
    FREE,
    SHAPES,
    CheckPages,
    Cluster,
    Ids,
    Missing,
    Period,
    Shrink,
    Warehouse,
)


@options("Counting")
class CountingOptions:
    """Options of what is counted."""

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


@options("Counting", output="Output")
class WarehouseOptions:
    """Dialect and options of a query for a warehouse, and its file."""

    dialect: Warehouse = option(
        "The dialect of the query. Not run yet: bigquery, snowflake, databricks, redshift and trino.",
        "NAME",
        default=REQUIRED,
    )
    model: str | None = MODEL
    check_pages: CheckPages = CHECK_PAGES | {"default": "all"}
    ids: Ids | None = option("Keep ids in the warehouse: hash (with --salt), or number, for `posbias fit` alone.")
    salt: str | None = option("With --ids hash: a secret that makes hashes hard to guess.", "TEXT")
    min_impressions: int = option("Leave out queries with fewer impressions.", "N", default=0, min=0, max=10**12)
    output: Path | None = TARGET | {"parser": on_disk("a query is a file on disk. Write it there.")}
    force: bool = FORCE
    quiet: bool = QUIET
    config: Path | None = CONFIG


DECAY = option(
    "Weight of a day relative to the next, e.g. 0.98. Needs days: --date or --timestamp.", "X", section="Counting"
)
FOR_EACH = option(
    "Fit for each value of this column of the log by itself, such as the market: a result each, and a table.",
    "COLUMN",
    section="Counting",
)
GATE = option(
    "Keep a day out of a store if the click rate of a position differs by more than this, e.g. 0.5 for 50 %.",
    "X",
    section="Counting",
)


@options("Output")
class StoreOptions:
    """Options of a day in a store."""

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


@options("Estimating", ranker_score="Learning from features (--method {methods_of_rows})")
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
    ranker_score: str | None = RANKER_SCORE
    sample_pages: int = option(
        "Learn relevance and position from N pages at most; all pages are then scored.", "N", default=20_000, min=2
    )


@options("Features")
class FeatureOptions:
    """Options of the features to learn from."""

    features: list[str] | None = FEATURES
    feature: list[str] | None = FEATURE
    missing: Missing = MISSING_FEATURES


@options("Click models")
class ModelsOptions:
    """Which click models are judged, and by which sessions."""

    models: str | None = option(
        "Click models to judge instead of rankings, with commas, e.g. pbm,ubm,dbn; or all.",
        "LIST",
        complete=several_of((*CLICK_MODELS, "all")),
    )
    split: Literal["session", "time"] = option(
        "Which sessions are held out: some, by a hash of the session, or the latest.", default="session"
    )
    test_share: float = option("The share of the sessions that is held out.", "X", default=0.25)
    test: list[str] | None = option(
        "A log to judge by, instead of holding sessions out. Repeatable.", "LOG", parser=read_name
    )
    samples: int = option("Bootstrap samples of sessions, for standard errors.", "N", default=200, min=20, max=10_000)
    seed: int = option("Random seed.", "N", default=0, min=0)


@options("World", labels="Labels", ranker_strength="Ranker", segments="Users", randomized_share="Experiments")
class WorldOptions:
    """Options of a simulated world: documents, position bias, users, and random placement."""

    model: str = MODEL | {"default": "pbm"}
    sessions: int = option("Number of results pages.", "N", default=50_000, min=1, max=10**9)
    positions: int = option("Positions per page.", "N", default=10, min=1)
    queries: int | None = option("Number of queries; 1000 by default.", "N", min=1)
    docs_per_query: int | None = option("Candidate documents per query; 20 by default.", "N", min=1)
    query_exponent: float = option("Zipf exponent of query frequencies; 0: all equally frequent.", "S", default=0.7)
    eta: float = option("Examination is position^-eta; 0: no position bias.", "X", default=1.0, min=0)
    theta: str | None = option("Examination probability of each position instead, e.g. 1,.7,.5.", "T,T,...")
    attractiveness: str | None = option("Beta distribution of attractiveness; 1:2 by default.", "A:B")
    attractiveness_scale: float = option("Scale all attractiveness by this factor, up to 1.", "X", default=1.0)
    satisfaction: str | None = option("Beta distribution of satisfaction (dbn, sdbn); 1:1 by default.", "A:B")
    parameters: list[str] | None = option(
        "A parameter of all documents: one value, or one per position, e.g. continuation=.9. Once per name.",
        "NAME=P[,P,...]",
    )
    seed: int = option("Random seed.", "N", default=0, min=0)
    labels: str | None = option("Judged documents: query, doc, label (a grade) and features.", "FILE", parser=read_name)
    click_noise: float | None = option("P(click | examined) at grade 0; 0.1 by default.", "P")
    ranker: Literal["label", "weak"] | None = option(
        "Source of the ranker's scores: the labels, or a ranker trained on a few of them."
    )
    ranker_queries: int | None = option("Queries to train the weak ranker on; 20 by default.", "N", min=1)
    ranker_strength: str = option(
        "How closely pages follow the scores. 0: random order; inf: always the same order.", "X|inf", default="1"
    )
    score_weight: float = option(
        "Share of a score that is quality; the rest is noise, drawn once per document.", "W", default=1.0
    )
    days: int = option("Days to spread the sessions over; 0: no timestamp.", "N", default=7, min=0)
    feedback_strength: float = option("How strongly each update re-ranks by the clicks so far.", "X", default=0.0)
    updates_per_day: int = option("Updates per day of a ranker with --feedback-strength.", "N", default=1, min=1)
    segments: int = option("Number of user segments, known to the ranker.", "N", default=1, min=1)
    segment_difference: float = option("Share of documents whose attractiveness differs by segment.", "P", default=0.5)
    device: list[str] | None = option("A device's own eta, or theta cell by cell. Once per device.", "ETA|T,T,...")
    depth: str | None = option("P(one more position is shown), or weights of page lengths 1, 2, ...", "P|W,W,...")
    readiness: str | None = option("Factors on P(click), one drawn per session, e.g. .3,1.7.", "X,X,...")
    theta_shock: float = option("Standard deviation of log theta, shared by a query's sessions.", "SD", default=0.0)
    randomized_share: float = option("Share of sessions in random order; column `policy`.", "P", default=0.0)
    swap: list[str] | None = option("Swap two positions half of the time; column `experiment`.", "1-5")
    swap_share: float = option("Share of sessions in swap experiments, if any.", "P", default=0.1)


_MOST = 10**12
FURTHER_PAGES = option("Number of further pages to plan.", "N", min=1, max=_MOST, section="Exploring")
TOP = option("How many documents count as the best of a query.", "K", min=1, max=_MOST, section="Exploring")
UCB = option(
    "Order documents by mean attractiveness and ALPHA standard deviations; without it, by the 97.5 % quantile.",
    "ALPHA",
    section="Exploring",
)

BY_DAY = option("Compare the days of one store with each other.", section="Comparing")
MAX_CHANGE = option(
    "Exit with 3 if a propensity changes by a larger share, and by more than its error.", "X", section="Comparing"
)
FAIL_IF = option(
    "Exit with 3 if this holds. Repeatable.", "[change|rejected|not-converged|unidentified]", section="Comparing"
)
