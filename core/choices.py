"""Values and defaults of options, tables of plug-ins, and settings NAME=VALUE.

The command line and its help are made from these tables and from attributes of the plug-in classes. This module imports
little, and a plug-in is imported only when it is used, so that `--help` starts fast.
"""

import operator
import re
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from math import inf
from typing import Any, Generic, Literal, Self, TypeVar, cast, get_args, get_type_hints

from posbias.core.errors import UsageError

# --- reading ----------------------------------------------------------------------------------------------------

Impressions = Literal["hits", "events"]
"""Records of UBI that count as impressions."""

DuplicateDocs = Literal["error", "first", "keep"]
"""Treatment of a document that a page shows several times."""

Warehouse = Literal[
    "duckdb", "sqlite", "postgres", "clickhouse", "spark", "bigquery", "snowflake", "databricks", "redshift", "trino"
]
"""SQL dialects of generated queries; queries in the last five have not been run."""

Ids = Literal["hash", "number"]
"""Replacements of ids that must not leave a warehouse: salted hashes, or numbers that are valid in one result only."""

OnBadRows = Literal["error", "drop"]
"""Treatment of rows that break the row contract."""

MOST_BAD_ROWS = 0.05
"""Default of the largest share of rows that may be dropped because they break the contract."""

CheckPages = Literal["sample", "all"]
"""Pages of a large log that are checked."""

EngineName = Literal["polars", "spark"]
"""Engine that reads and counts rows."""

# --- estimating -------------------------------------------------------------------------------------------------

ServingEngine = Literal["vespa", "opensearch", "elasticsearch", "elasticsearch-ltr", "solr"]
"""Search engines that rankers are exported to; `elasticsearch` is its own `learning_to_rank`, `-ltr` the plug-in."""

CategoriesAs = Literal["sets", "codes"]
"""Export of a text feature: a query for each set of its values, or a field with the number of each value."""

Period = Literal["auto", "none", "hour", "day", "week"]
"""Length of the periods between which attractiveness may differ."""

Cluster = Literal["query", "pair", "session", "column", "two-way"]
"""Clusters of standard errors."""

CellForm = Literal["free", "product"]
"""Form of theta over cells: one parameter per cell, or the product of effects of the position and of other columns."""

Shrink = Literal["auto", "none"]
"""Whether contexts are shrunk towards each other."""

FREE = "free"
"""Name of the choice without a shape: one parameter per position."""

LARGEST_ERROR = 0.25
"""Standard error of log propensity up to which a free estimate is good enough to make weights from."""

# --- training and evaluating ------------------------------------------------------------------------------------

Missing = Literal["error", "drop", "nan"]
"""Treatment of rows without features."""

Grouping = Literal["session", "query"]
"""The unit within which documents are ranked."""

Source = Literal["smooth", "fitted"]
"""Which propensities are used where the fitted ones are not sure."""

Negatives = Literal["clamp", "posterior"]
"""Definition of the negative weight of the pointwise layout."""

Rate = Literal["posterior", "coec", "ips"]
"""Kind of label of the judgments layout."""

MultipleTests = Literal["none", "bonferroni", "fdr"]
"""Error rate that a level of significance bounds."""

Candidates = Literal["page", "query"]
"""Documents among which a ranking is evaluated."""

Credit = Literal["plain", "pairs"]
"""Clicks on an interleaved page that are credited: all below the common prefix of both rankings, or those in rounds in
which the rankers order the two documents differently."""

Order = Literal["score", "rank"]
"""Order of the documents of a ranking: largest score first, or smallest rank first."""

MARGIN_LIMIT = 0.5
"""Weight of -tau^2 from which the objective of gbrank is unbounded below as tau grows."""

Balance = Literal["traffic", "sqrt", "query"]
BALANCES: dict[Balance, float] = {"traffic": 0.0, "sqrt": 0.5, "query": 1.0}
"""Exponent of N / N_q in the weight of an impression of query q, with N the mean of the impressions N_q."""

Vectors = Literal["treatment", "control"]
"""Document factors used for ranking: those of randomised rows, or those of other rows."""

TieDistance = Literal["squared", "absolute"]
"""Distance in the penalty on differences between these two sets of factors."""

PENALTIES = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Penalties of factors to choose from by held-out impressions."""

# --- plug-ins: what help and options call each, in the order of help, and its class ------------------------------

MODELS = {
    "pbm": "posbias.core.models.position_based:PositionBasedModel",
    "ubm": "posbias.core.models.position_based:UserBrowsingModel",
}
"""Click models with a propensity per cell."""

CLICK_MODELS = {
    **MODELS,
    "tpbm": "posbias.core.models.position_based:TrustBiasModel",
    "gctr": "posbias.core.models.position_based:GCTR",
    "rctr": "posbias.core.models.position_based:RCTR",
    "dctr": "posbias.core.models.position_based:DCTR",
    "rdctr": "posbias.core.models.position_based:RDCTR",
    "cm": "posbias.core.models.cascade:CascadeOfOneClickModel",
    "dcm": "posbias.core.models.cascade:DependentClickModel",
    "ccm": "posbias.core.models.cascade:ClickChainModel",
    "dbn": "posbias.core.models.cascade:DynamicBayesianNetworkModel",
    "sdbn": "posbias.core.models.cascade:SimplifiedDBNModel",
}
"""All click models."""

ESTIMATORS = {
    "conditional": "posbias.core.estimators.methods:ConditionalEstimator",
    "joint": "posbias.core.estimators.methods:JointEstimator",
    "allpairs": "posbias.core.estimators.harvesting:AllPairsEstimator",
    "randomized": "posbias.core.estimators.methods:RandomizedEstimator",
    "ctr": "posbias.core.estimators.methods:ClickRateEstimator",
}
"""Methods that estimate from counts."""

METHODS_OF_ROWS = {
    "features": "posbias.core.estimators.methods:FeaturesMethod",
    "regression-em": "posbias.core.estimators.methods:RegressionEMMethod",
}
"""Methods that estimate from impressions with features."""

SHAPES = {
    "monotone": "posbias.core.shapes.monotone:MonotoneShape",
    "power": "posbias.core.shapes.linear:PowerShape",
    "smooth": "posbias.core.shapes.smooth:SmoothShape",
}
"""Shapes of the propensity curve other than `FREE`."""

LAYOUTS = {
    "pointwise": "posbias.core.training.layout:PointwiseLayout",
    "clicked-group": "posbias.core.training.layout:ClickedGroupLayout",
    "session": "posbias.core.training.layout:SessionLayout",
    "pairs": "posbias.core.training.layout:PairsLayout",
    "judgments": "posbias.core.training.layout:JudgmentsLayout",
}
"""Layouts of training files."""

LEARNERS = {
    "auto": "posbias.core.learners.auto:AUTO",
    "distilled": "posbias.core.learners.trees:DISTILLED",
    "pbm": "posbias.core.learners.trees:PBM",
    "naive": "posbias.core.learners.trees:NAIVE",
    "position-feature": "posbias.core.learners.trees:POSITION_FEATURE",
    "logistic": "posbias.core.learners.networks:LOGISTIC",
    "lambdarank": "posbias.core.learners.trees:LAMBDARANK",
    "ipw-arp": "posbias.core.learners.rank_losses:IPW_ARP",
    "ipw-dcg": "posbias.core.learners.rank_losses:IPW_DCG",
    "dla": "posbias.core.learners.rank_losses:DLA",
    "single-tower": "posbias.core.learners.networks:SINGLE_TOWER",
    "pal-product": "posbias.core.learners.networks:PAL_PRODUCT",
    "pal-sum": "posbias.core.learners.networks:PAL_SUM",
    "factors": "posbias.core.learners.factors:FACTORS",
    "gbrank": "posbias.core.learners.rank_losses:GBRANK",
    "mf": "posbias.core.learners.factors:MF",
    "propensity-mf": "posbias.core.learners.factors:PROPENSITY_MF",
    "cause": "posbias.core.learners.factors:CAUSE",
    "regression-em": "posbias.core.learners.trees:REGRESSION_EM",
}
"""Learners of rankers."""

FORMATS = {
    "parquet": "posbias.io.training.format:PARQUET",
    "csv": "posbias.io.training.format:CSV",
    "lightgbm": "posbias.io.training.trainers:LightGBMFormat",
    "xgboost": "posbias.io.training.trainers:XGBoostFormat",
    "catboost": "posbias.io.training.trainers:CatBoostFormat",
    "ranklib": "posbias.io.training.trainers:RankLibFormat",
    "qrels": "posbias.io.training.trainers:QRELS",
    "opensearch": "posbias.io.training.trainers:OPENSEARCH",
    "elasticsearch": "posbias.io.training.trainers:ELASTICSEARCH",
    "quepid": "posbias.io.training.trainers:QUEPID",
}
"""Formats of training files."""

FORMS = {
    "ubi": "posbias.io.forms.form:Ubi",
    "elasticsearch": "posbias.io.forms.form:Elasticsearch",
    "metarank": "posbias.io.forms.form:Metarank",
    "yandex": "posbias.io.forms.form:Yandex",
}
"""Formats of raw logs of known products."""


LARGEST_STRENGTH = 1e9
"""Largest strength of a prior: more would outweigh any pair of any log."""

SMALLEST_PSEUDO_COUNT = 1e-6
"""Smallest pseudo-count of a prior: less has no effect, and makes quadrature inaccurate (its nodes crowd at 0 or 1)."""


@dataclass(frozen=True)
class BetaPrior:
    """Beta(s v, s (1 - v)) prior of a probability: equivalent to s earlier impressions with mean v.

    Raises:
        UsageError: the mean or the strength is out of range.
    """

    mean: float  # v, 0 < v < 1
    strength: float  # s from 0 to 1e9, in impressions; 0 has no effect

    def __post_init__(self) -> None:
        if not 0 < self.mean < 1:
            raise UsageError(f"A prior's mean must lie between 0 and 1, both excluded, but is {self.mean:g}.")
        if not 0 <= self.strength <= LARGEST_STRENGTH:
            raise UsageError(
                f"A prior's strength must be a number of impressions from 0 to {LARGEST_STRENGTH:g}, "
                f"but is {self.strength:g}."
            )

        if self.strength > 0 and self.strength * min(self.mean, 1 - self.mean) < SMALLEST_PSEUDO_COUNT:
            raise UsageError(
                f"A prior worth {self.strength:g} impressions of mean {self.mean:g} is worth less than "
                f"{SMALLEST_PSEUDO_COUNT:g} clicks or skips: give it strength 0 instead."
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `MEAN:STRENGTH`, e.g. `0.5:2`.

        Raises:
            UsageError: the text has another form, or a value is out of range.
        """
        mean, _, strength = text.partition(":")
        try:
            return cls(float(mean), float(strength))
        except ValueError:
            raise UsageError(
                f"A prior is written MEAN:STRENGTH, for example 0.5:2 (mean 0.5, worth 2 impressions), not {text!r}."
            ) from None

    @property
    def pseudo_clicks(self) -> float:
        """Clicks to which the prior is equivalent, s v."""
        return self.strength * self.mean

    @property
    def pseudo_skips(self) -> float:
        """Impressions without a click to which the prior is equivalent, s (1 - v)."""
        return self.strength * (1 - self.mean)


_FORM = re.compile(r"(?P<column>[^=]+)=(?P<value>.*?)(?:@(?P<positions>\d+(?:,\d+)+))?")


@dataclass(frozen=True)
class RandomizedRows:
    """Description of randomised rows: those with a value in a column, at all positions or at some.

    Attributes:
        positions: the positions, from 1, among which the documents were permuted; empty for all positions of the page.
            Two of them are a swap experiment.
    """

    column: str  # the column that marks randomised rows
    value: str  # its value on them, as text (true and false for booleans)
    positions: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `COLUMN=VALUE` (whole pages) or `COLUMN=VALUE@1,5` (documents swapped between positions 1 and 5).

        Raises:
            UsageError: the text has another form, or names positions that are not at least two different ones from 1.
        """
        match = _FORM.fullmatch(text)
        if match is None:
            raise UsageError(
                f"--randomized-where {text}: write COLUMN=VALUE, for example policy=random, or COLUMN=VALUE@1,5 where "
                "the documents at positions 1 and 5 are swapped at random."
            )
        if re.search(r"@[\d,]*$", match["value"]):
            raise UsageError(f"--randomized-where {text}: at least two positions follow the @, for example @1,5.")
        positions = tuple(map(int, match["positions"].split(","))) if match["positions"] else ()
        if len(set(positions)) < len(positions) or min(positions, default=1) < 1:
            raise UsageError(f"--randomized-where {text}: positions are different whole numbers from 1.")
        return cls(match["column"], match["value"], positions)

    def __str__(self) -> str:
        """Format as on the command line."""
        at = f"@{','.join(map(str, self.positions))}" if self.positions else ""
        return f"{self.column}={self.value}{at}"


@dataclass(frozen=True)
class Plugin(ABC):  # noqa: B024 - those below have some
    """Base of all plug-ins. Plug-ins have no state: all instances of a class are equal, in every process."""

    name: str = field(init=False)  # on the command line
    takes: tuple[str, ...] = field(default=(), init=False)  # options that this plug-in supports and others may not


P = TypeVar("P")  # a subclass of `Plugin`, or a value with its attributes


def unknown_name(flag: str, name: str, known: Sequence[str]) -> UsageError:
    """Return the error for an unknown name, with all known names and the most similar."""
    close = get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return UsageError(f"{flag} {name}: unknown name; choose from {', '.join(known)}.{hint}")


@dataclass(frozen=True)
class Room(Generic[P]):
    """Plug-ins of one kind, by name."""

    paths: Mapping[str, str]  # `module:Class` or `module:VALUE`, by name
    flag: str  # the option that chooses a plug-in

    def names(self) -> list[str]:
        """Return the names of the plug-ins, in the order of help, without importing them."""
        return list(self.paths)

    @cached_property
    def plugins(self) -> dict[str, P]:
        """All plug-ins by name, in the order of help; imports all their modules."""
        return {name: self.get(name) for name in self.paths}

    def that_take(self, option: str) -> list[str]:
        """Return the names of the plug-ins that support an option."""
        return [name for name, plugin in cast("dict[str, Any]", self.plugins).items() if option in plugin.takes]

    def get(self, name: str) -> P:
        """Import and return the plug-in of this name, and no other.

        Raises:
            UsageError: there is none.
        """
        if name not in self.paths:
            raise unknown_name(self.flag, name, self.names())
        module, _, kind = self.paths[name].partition(":")
        choice = getattr(import_module(module), kind)
        return choice() if isinstance(choice, type) else choice


# --- settings NAME=VALUE ----------------------------------------------------------------------------------------

_LIMITS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
_SWITCH = {"true": True, "false": False}
_READERS: Mapping[type, Callable[[str], Any]] = {bool: _SWITCH.__getitem__, int: int, float: float, str: str}


def setting(help_text: str, default: Any = None, **limits: float) -> Any:  # noqa: ANN401 - the value of a field
    """Declare a dataclass field that an option NAME=VALUE sets, with limits `gt`, `ge`, `lt` and `le`."""
    return field(default=default, metadata={"help": help_text, "limits": limits})


def settings_of(kind: type) -> dict[str, Field[Any]]:
    """Return the fields of a dataclass that are settings, by name."""
    return {entry.name: entry for entry in fields(kind) if "help" in entry.metadata}


def range_of(entry: Field[Any], hint: Any) -> str:  # noqa: ANN401 - a type
    """Describe the values of a setting in words."""
    kinds = _kinds(hint)
    if bool in kinds or isinstance(kinds[0], str):
        return " or ".join(_SWITCH if bool in kinds else kinds)
    if str in kinds:
        return "a name"
    limits = " and ".join(f"{_LIMITS[name]} {limit}" for name, limit in entry.metadata["limits"].items())
    return f"a {'whole ' if int in kinds else ''}number {limits}".rstrip()


def _kinds(hint: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a type
    """Return the type of a setting (of `T | None`, T), or the values of its Literal."""
    hint = next((kind for kind in get_args(hint) if get_args(kind)), hint)
    return get_args(hint) or (hint,)


def read_settings(flag: str, texts: Sequence[str], kind: type) -> dict[str, Any]:
    """Parse texts `NAME=VALUE` as settings of a dataclass.

    Raises:
        UsageError: a name is unknown or given twice, or a value is of another type, or out of range.
    """
    known, hints, values = settings_of(kind), get_type_hints(kind), dict[str, Any]()
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        name = name.replace("-", "_")
        if not (equals and value):
            raise UsageError(f"{flag} {text}: write NAME=VALUE, such as {next(iter(known))}=VALUE.")
        if name not in known:
            raise unknown_name(flag, name, list(known))
        if name in values:
            raise UsageError(f"{flag} {text}: {name} is set twice. Set it once.")
        kinds = _kinds(hints[name])
        with suppress(KeyError, ValueError):
            values[name] = value if value in kinds else _READERS[kinds[0]](value)
        limits = known[name].metadata["limits"].items()
        if name not in values or not all(getattr(operator, each)(values[name], limit) for each, limit in limits):
            raise UsageError(f"{flag} {text}: must be {range_of(known[name], hints[name])}.")
    return values


ROW_SHARE = 0.5
"""Share of documents on which each tree is fitted: trees on all documents overfit the noise of clicks."""


@dataclass(frozen=True)
class LearningOptions:
    """Options of learning. Fields with a help text apply to learners that take them; the others to all learners."""

    trees: int = setting("Number of trees; of gbrank, in fits of 20.", 200, ge=1, le=100_000)
    learning_rate: float = setting("Shrinkage of each tree.", 0.05, gt=0, le=1)
    leaves: int = setting("Leaves of a tree.", 15, ge=2, le=4096)
    leaf_documents: int | None = setting(
        "Fewest documents of a leaf; without it a hundredth of them, between 10 and 50.", ge=1, le=10**9
    )
    negative_share: float = setting(
        "Share of the documents without a click to learn from; each counts 1 / share times.", 1.0, gt=0, le=1
    )
    balance: Balance = setting(
        "Who counts: all impressions alike (traffic), all queries alike (query), or between the two (sqrt).", "sqrt"
    )
    never_worse: float = setting(
        "Exit with 1 where the ranker may lose more than this share of the clicks of the log's order.", 0.05, ge=0, lt=1
    )
    position_feature: bool = setting("Whether the position is a feature of the logistic regression.", default=True)
    corrected_rates: bool = setting("Whether click rates are corrected for position.", default=True)
    significance: float = setting("Level at which click rates of two documents differ.", 0.05, gt=0, lt=1)
    multiple_tests: MultipleTests = setting(
        "What the level is about: each pair, any pair (bonferroni), or the share of false ones (fdr).", "none"
    )
    tau: float = setting("Target difference between the scores of a pair.", 1.0, gt=0, lt=inf)
    margin_penalty: float = setting(
        "Weight of -tau^2, by which tau is chosen anew after every fit. 0: it stays.", 0.0, ge=0, lt=MARGIN_LIMIT
    )
    factors: int = setting("Factors of queries and documents.", 4, ge=1, le=1000)
    regularization: float | None = setting(
        "Penalty on the squares of factors and biases; without it, the best on held-out impressions.", ge=0, lt=inf
    )
    steps: int = setting("Most steps of a learner of factors.", 300, ge=1, le=100_000)
    tie: float = setting(
        "Penalty on differences between factors of rows placed at random and of other rows.", 20.0, ge=0, lt=inf
    )
    tie_distance: TieDistance = setting(
        "Penalise half the squares of these differences, or their absolute values (start with tie=2).", "squared"
    )
    vectors: Vectors = setting(
        "Rank by the factors of rows placed at random (treatment), or of the others (control).", "treatment"
    )
    epochs: int = setting(
        "Most passes of a network; it stops once queries set apart fared no better for 6.", 60, ge=1, le=100_000
    )
    observation_dropout: float = setting("Chance with which the position is hidden.", 0.0, ge=0, lt=1)
    gradient_reversal: float = setting(
        "Strength of the reversed gradient that keeps position from predicting clicks.", 0.0, ge=0, lt=inf
    )
    row_share: float = ROW_SHARE  # share of documents, drawn anew for each tree
    early_stopping: int | None = None  # stop after so many rounds without a better likelihood of held-out queries
    seed: int = 0


@dataclass(frozen=True)
class LayoutOptions:
    """Options of the layout of training files."""

    group: Grouping | None = setting("What is ranked together: all pages of a query, or each page on its own.")
    validation_by: Grouping = setting("What to hold out: whole queries or sessions.", "query")
    replicates: int = setting(
        "Further columns of weights, which vary with the errors of the propensities.", 0, ge=0, le=1000
    )
    negatives: Negatives = setting(
        "Negative weights of pointwise: n - W+, at least 0 (clamp), or expected labels.", "clamp"
    )
    rate: Rate = setting(
        "Label of judgments: posterior attractiveness, clicks over expected clicks (coec), weighted clicks (ips).",
        "posterior",
    )
    grades: int = setting("Number of grades of judgments, from 0.", 5, ge=2, le=31)
    search_index: str | None = setting("For --format elasticsearch: the index that holds the documents.")
