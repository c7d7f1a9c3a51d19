"""An option that is given on the command line has an effect, or is refused.

What stands in posbias.toml or in the environment may be meant for several commands and methods: where it has no effect,
it is left aside. What is typed for this one command is meant for it. Plug-ins are loaded for options that are given.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from posbias.cli.options.estimating import CountingOptions, EstimationOptions, StoreOptions
from posbias.cli.options.learning import TrainingOptions
from posbias.cli.options.log import LogOptions
from posbias.cli.options.option import METHODS, SETTINGS
from posbias.core.choices import CLICK_MODELS, FORMATS, LAYOUTS, LEARNERS, METHODS_OF_ROWS, MODELS, settings_in
from posbias.core.errors import UsageError
from posbias.io.sources import NAMES as SOURCES
from posbias.io.sources import event_source

if TYPE_CHECKING:
    from posbias.core.counts.counting_plan import StatisticsPlan
    from posbias.io.log.exports import Export
    from posbias.io.stores.store import Statistics


@dataclass(frozen=True)
class Situation:
    """A command with the values of its parameters, which are also its attributes."""

    command: str
    values: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of whatever type the option has
        return self.values[name]

    def has(self, name: str) -> bool:
        """Whether an option is set: to something, if only to the number 0; a share of 0 is nothing."""
        value = self.values[name]
        form = self.values.get("input_format")
        if form in SOURCES and f"--{name.replace('_', '-')}" in event_source(form).options:
            return True
        return bool(value) or (value == 0 and type(value) is int)

    @property
    def inputs(self) -> list[str]:
        """Logs or statistics, as named by the user."""
        return cast("list[str]", self.values.get("inputs") or self.values.get("logs") or [])

    @cached_property
    def collected(self) -> "list[Statistics]":
        """The inputs, where they are statistics; looked up only if an option asks."""
        from posbias.io.stores.store import find_statistics

        return find_statistics(self.inputs)

    @cached_property
    def export(self) -> "Export | None":
        """The inputs, where they are counts of a warehouse; looked up only if an option asks."""
        from posbias.cli.options.inputs import exported

        return exported(self.inputs, cast("LogOptions", self))

    @property
    def statistics(self) -> "StatisticsPlan | None":
        """The plan of statistics or of counts of a warehouse."""
        from posbias.io.counting.warehouse import about_export

        if self.collected:
            return self.collected[0].metadata.plan
        return None if self.export is None else about_export(self.export).counted.plan()


Reason = Callable[[Situation, str], str | bool | None]
"""Why an option, by parameter name, has no effect in a situation; nothing where it has one."""

Rules = tuple[tuple[str, str | Reason], ...]
"""Options with a rule that `_lacks` reads, or with what finds a reason. The first reason that holds counts."""


def check_effects(given: Mapping[str, str], situation: Situation) -> None:
    """Refuse an option of the command line, given as it was typed by parameter name, that has no effect.

    Raises:
        UsageError: one has no effect.
    """
    for name, typed in given.items():
        reason = why_without_effect(name, situation)
        if reason is not None:
            raise UsageError(f"{typed}: has no effect here: {reason}. Leave it out.")


def why_without_effect(option: str, situation: Situation) -> str | None:
    """Why an option, by parameter name, has no effect; None where it has one."""
    for options, rule in RULES.get(situation.command, ()):
        if option in options.split():
            reason = _lacks(situation, rule) if isinstance(rule, str) else rule(situation, option)
            if reason:
                return str(reason)
    return None


def _lacks(o: Situation, rule: str) -> str | None:
    """The reason of a rule `needs: reason`, unless all are met: `a`, `a|b`, `a=value,value`, `!a`."""
    needs, _, reason = rule.partition(": ")
    for need in needs.split():
        name, _, values = need.partition("=")
        without, names_of_others = name.startswith("!"), name.removeprefix("!").split("|")
        is_so = str(o.values[names_of_others[0]]) in values.split(",") if values else any(map(o.has, names_of_others))
        if is_so is without:
            return reason
    return None


def _names(*groups: type, without: str = "") -> str:
    """The parameters of groups of options."""
    listed = [entry.name for group in groups for entry in fields(group)]
    return " ".join(name for name in listed if name not in without.split())


# --- reading and counting ---------------------------------------------------------------------------------------

_OF_MACHINES = "memory threads engine master temp_dir"  # merging statistics needs them as well
_OF_FITS = "period_column stratify cluster_column arm randomized_where"
_GROUPS = f"context {_OF_FITS}"  # may agree with what was collected
_OF_LOGS = f"{_names(LogOptions, without=f'{_OF_MACHINES} {_GROUPS}')} date"
_OF_TABLES = _names(LogOptions, without=f"{_OF_MACHINES} {_GROUPS} on_bad_rows max_bad_rows")
_TYPED = (".parquet", ".pq", ".arrow", ".ipc", ".feather")


def _statistics(o: Situation, _: str) -> str | bool:
    return bool(o.collected) and f"{o.inputs[0]} holds statistics, and this option is about reading logs"


def _counts(o: Situation, _: str) -> str | bool:
    return o.export is not None and f"{o.inputs[0]} holds counts of a warehouse, and this option is about reading logs"


def _without_actions(o: Situation, _: str) -> str | None:
    from posbias.io.forms import forms

    able = [form.name for form in forms() if form.has_actions]
    return None if o.input_format in able else f"it applies only to --input-format {' and '.join(able)}"


def _without_days(o: Situation, _: str) -> str | bool:
    if o.statistics is not None:
        return not o.statistics.period and "the statistics were collected without days"
    return o.timestamp is None and o.date is None and "the log has no days without --timestamp COLUMN"


def _typed_files(o: Situation, _: str) -> str | bool:
    typed = all(name.lower().endswith(_TYPED) for name in (*o.inputs, *(o.clicks or ())))
    return typed and "it is about files of text, and Parquet and Arrow are none"


_OF_EVENTS = "--impression-where COLUMN=VALUE --click-where COLUMN=VALUE"
_OF_ROWS = "input_format=auto,flat,nested"
_OF_QUERIES = ",".join(SOURCES)
_READING: Rules = (
    (_OF_LOGS, _statistics),
    (_OF_TABLES, _counts),
    ("clicks_session clicks_doc clicks_click clicks_where", "clicks: there is no table of clicks (--clicks FILE)"),
    ("ubi_impressions", "input_format=ubi: it applies only to OpenSearch UBI (--input-format ubi)"),
    ("click_actions", _without_actions),
    ("position_base", f"{_OF_ROWS},ubi,{_OF_QUERIES}: positions are places in the lists of what was shown"),
    ("impression_where click_where", f"{_OF_ROWS}: a source's raw events say what a click is"),
    ("page page_size page_base", f"{_OF_ROWS}: raw files of a source have no column of pages"),
    ("sql", f"{_OF_ROWS}: raw files of a source are read as they are"),
    ("duplicate_docs", f"{_OF_ROWS},{_OF_QUERIES}: in raw files, a page shows a document once"),
    ("null_click click_ranks true false", f"{_OF_ROWS}: an event of raw files is one click, and no column says so"),
    ("page_time click_window", f"impression_where|click_where: it applies only to a table of events ({_OF_EVENTS})"),
    ("click_window", "page_time: clicks are joined by page, without --page-time"),
    (
        "click click_counts null_click click_ranks",
        "!impression_where !click_where: in a table of events, --click-where says what a click is",
    ),
    ("true false", "!impressions: --impressions makes the click column a number"),
    ("null_click true false", "!click_ranks: with --click-ranks, a cell is a rank, or empty"),
    ("page_base", "page_size: no column numbers pages (--page COLUMN --page-size N)"),
    ("clicked list_separator click_suffix", "input_format=auto,nested: a row is one impression, and holds no lists"),
    ("order_is_position", "click_suffix: it is about lists with --click-suffix"),
    ("separator no_header columns encoding", _typed_files),
    ("separator no_header columns", "!input_format=ubi: UBI is NDJSON, and that has no separators"),
    ("decimal", "!input_format=ubi: UBI writes numbers as JSON does"),
    ("columns", "no_header: columns have the names of the header without --no-header"),
    ("timestamp_format", "timestamp: there is no --timestamp COLUMN to read"),
    ("master", "engine=spark: only --engine spark has a master"),
    ("table", "engine=spark: only --engine spark reads tables"),
)
_BAD_ROWS: Rules = (
    ("max_bad_rows", "on_bad_rows=drop: bad rows stop the run, unless --on-bad-rows drop leaves them out"),
)

# --- estimating -------------------------------------------------------------------------------------------------


_KNOWN = {"method": METHODS, "layout": LAYOUTS, "format": FORMATS, "learner": LEARNERS}


def _not_for(flag: str) -> Reason:
    """Options of some methods, layouts, formats or learners; a name of none is for the command to refuse."""

    def reason(o: Situation, option: str) -> str | None:
        if flag == "method":
            from posbias.core.estimators import methods_that_take as takers
        elif flag == "layout":
            from posbias.core.training.layout import layouts_that_take as takers
        elif flag == "format":
            from posbias.io.training import formats_that_take as takers
        else:
            from posbias.core.learners.learning import learners_that_take as takers
        able, name = takers(option), o.values[flag]
        if not able or name in able or name not in _KNOWN[flag]:
            return None
        if flag == "method":
            return f"--method {name} does not support it. Methods that do: {', '.join(able)}"
        return f"it applies only to --{flag} {', '.join(able)}"

    return reason


def _unused_clusters(o: Situation, _: str) -> str | None:
    from posbias.core.estimators import get_method

    if o.bootstrap:
        return "--bootstrap resamples queries"
    if o.shape != "free":
        return f"the standard errors of --shape {o.shape} are clustered by query"
    if o.cluster not in {None, "column", "two-way"}:
        return f"--cluster {o.cluster} does not use it"
    return None if "column" in get_method(o.method).clusters else f"--method {o.method} does not support it"


def _nothing_shrunk(o: Situation, _: str) -> str | bool:
    if o.shape != "free":
        return f"contexts are not shrunk under --shape {o.shape}"
    contexts = o.context if o.statistics is None else o.statistics.context
    return not contexts and "only contexts are shrunk (--context COLUMN)"


def _from_counts(o: Situation, _: str) -> str | bool:
    able = METHODS_OF_ROWS
    return o.method not in able and f"only --method {' and '.join(able)} learn from rows"


def _nothing_random(o: Situation, _: str) -> str | bool:
    drawn = o.bootstrap > 0 or o.method in METHODS_OF_ROWS
    return not drawn and "only --bootstrap N, and methods that sample pages, are random"


def _no_joint(o: Situation, _: str) -> str | bool:
    run = o.method == "joint" or o.compare is not False
    return not run and "it applies only to joint EM, which is not run (--no-compare)"


def _by_document(o: Situation, _: str) -> str | bool:
    """A model without propensities by cell; one that does not exist is for the command to refuse."""
    known = o.model is not None and o.model in CLICK_MODELS and o.model not in MODELS
    return known and f"under --model {o.model}, nothing is estimated by cell"


_OF_CELLS = (
    f"{_GROUPS} method reference shape shrink cluster bootstrap seed examination_prior tolerance no_acceleration "
    "compare strict position_bins period date decay ranker_score sample_pages timestamp propensity"
)
_ESTIMATING: Rules = (
    *_READING,
    *_BAD_ROWS,
    ("trust", "model=tpbm: only --model tpbm corrects for trust in positions"),
    (
        _names(EstimationOptions, without="seed no_acceleration examination_prior ranker_score sample_pages"),
        _not_for("method"),
    ),
    ("period", _without_days),
    ("cluster_column", _unused_clusters),
    ("arm", "method=conditional: arms are compared with the estimate from all movement (--method conditional)"),
    ("shrink", _nothing_shrunk),
    ("seed", _nothing_random),
    ("ranker_score sample_pages", _from_counts),
    ("no_acceleration examination_prior", _no_joint),
)

_WITH_TABLES = ("missing", "features: only a table of features (--features FILE) can lack rows")

# --- weighting and learning -----------------------------------------------------------------------------------------


def _no_click_weights(o: Situation, option: str) -> str | bool:
    from posbias.core.training.layout import get_layout

    layout = get_layout(o.layout)
    if layout.weighted is None and option != "min_propensity":
        return f"--layout {layout.name} has rates, not click weights"
    if "negatives" in layout.takes and o.negatives == "posterior":
        return "--layout-options negatives=posterior has no click weights"
    by_posterior = "rate" in layout.takes and o.rate == "posterior" and option == "min_propensity"
    return by_posterior and "--layout-options rate=posterior does not divide by propensities"


def _given_table(o: Situation, _: str) -> str | bool:
    from posbias.io.fits.saved_fit import is_own

    named = o.values.get("propensities")
    return named is not None and is_own(named) and f"--propensities {named} has no smooth curve"


def _learns_without(o: Situation, option: str) -> str | bool:
    from posbias.core.learners.learning import get_learner, learners_from_randomized

    learner = get_learner(o.learner)
    if option == "randomized_where":
        able = ", ".join(learners_from_randomized())
        return not learner.needs_randomized and f"it applies only to --learner {able}"
    if learner.theta_for is not None and not o.values[learner.theta_for]:
        return f"--learner-options {learner.theta_for}=false takes no propensities"
    return not learner.uses_propensities and f"--learner {learner.name} takes no propensities"


def _of_the_fit(o: Situation, _: str) -> str:
    what = {"weight": "training files", "train": "learners", "evaluate": "rankings", "predict": "rankings"}[o.command]
    return f"{what} do not depend on it; it belongs to the fit, where the propensities come from"


_CLICK_WEIGHTS = "self_normalize replicates min_propensity"
_OF_LAYOUTS = f"{_names(TrainingOptions, without=f'{_CLICK_WEIGHTS} missing')} group negatives rate grades search_index"
_WEIGHTING: Rules = (
    (_OF_LAYOUTS, _not_for("layout")),
    (_OF_LAYOUTS.replace("propensity", ""), _not_for("format")),
    (_CLICK_WEIGHTS, _no_click_weights),
    ("validation_by", "validation: nothing is held out. Say how much to hold out, e.g. --validation 0.1"),
    _WITH_TABLES,
    ("propensity", _given_table),
)
_TIMES_AND_GROUPS = "timestamp period_column stratify cluster_column arm"

# --- evaluating, collecting, simulating -----------------------------------------------------------------------------


def _no_split_by_time(o: Situation, option: str) -> str | bool:
    if o.models is None:
        return _of_the_fit(o, option)
    by_time = o.split == "time" and not o.test
    return not by_time and "click models do not depend on it, unless --split time holds the latest out"


def _nothing_gated(o: Situation, _: str) -> str | bool:
    gated = len(o.collected) > 1 or o.into is not None
    return not gated and "days are let into a store where statistics are merged, or with --into STORE"


def _not_of_model(o: Situation, option: str) -> str | None:
    """An option of some models; one that does not exist is for the command to refuse."""
    from posbias.core.simulation.options import CELL_MODELS, parameters_by_pair, shared_parameters, uses_theta

    def takes(model: str) -> bool:
        match option:
            case "eta" | "theta":
                return uses_theta(model)
            case "satisfaction":
                return "satisfaction" in parameters_by_pair(model)
            case "parameters":
                return bool(shared_parameters(model))
            case "attractiveness_scale" | "click_noise":
                return bool(parameters_by_pair(model))
            case _:
                return model in CELL_MODELS

    if o.model not in CLICK_MODELS or takes(o.model):
        return None
    if option in {"attractiveness_scale", "click_noise"}:
        return f"under --model {o.model} all documents have the same click rate"
    return f"it only works with --model {', '.join(filter(takes, CLICK_MODELS))}"


_OF_CELL_MODELS = "eta theta device readiness theta_shock"
_COUNTED = f"{_names(LogOptions, CountingOptions, without=_OF_MACHINES)} decay gate"
_DESCRIBED = f"{_COUNTED} memory threads engine master {_names(StoreOptions)} output force quiet dry_run"

RULES: Mapping[str, Rules] = {
    "run": ((_OF_CELLS, _by_document), *_ESTIMATING, *_WEIGHTING),
    "fit": (
        (f"{_OF_CELLS} features feature missing for_each", _by_document),
        *_ESTIMATING,
        ("features feature missing", _from_counts),
        _WITH_TABLES,
    ),
    "collect": (
        (_DESCRIBED, "!info: --info writes nothing"),
        (f"{_COUNTED} dry_run", "!remove_day: --remove-day counts nothing"),
        ("period", _statistics),
        ("period", _without_days),
        ("gate", _nothing_gated),
        ("replace_day remove_day", "into: it is about a day of a store (--into STORE)"),
        ("replace_day", "!remove_day: --remove-day counts nothing"),
        ("output", "!into: --into STORE says where to write"),
        ("force", "!into: --into STORE replaces the store in one step anyway"),
        *_READING,
        *_BAD_ROWS,
    ),
    "weight": ((f"{_TIMES_AND_GROUPS} randomized_where", _of_the_fit), *_READING, *_BAD_ROWS, *_WEIGHTING),
    "train": (
        (_TIMES_AND_GROUPS, _of_the_fit),
        *_READING,
        *_BAD_ROWS,
        ("randomized_where propensity", _learns_without),
        (f"ranker_score {' '.join(settings_in(SETTINGS['learner_options']))}", _not_for("learner")),
        ("propensity", _given_table),
        _WITH_TABLES,
    ),
    "predict": (
        (_OF_FITS, _of_the_fit),
        *_READING,
        *_BAD_ROWS,
    ),
    "evaluate": (
        ("timestamp", _no_split_by_time),
        (_OF_FITS, _of_the_fit),
        (
            "propensities scores rankings candidates baseline min_propensity bound propensity context",
            "!models: click models are judged by pages (--models)",
        ),
        ("bound", "candidates=page: weights by query (--candidates query) have no bound"),
        ("bound", "!weight_column: pages with weights are no independent pages"),
        ("cutoff", lambda o, _: not (o.models is None or o.judgments) and "without --judgments there is no NDCG"),
        ("split test_share test samples seed", "models: it is about click models (--models)"),
        ("split test_share", "!test: --test is what models are judged by"),
        *_READING,
        *_BAD_ROWS,
        ("propensity", _given_table),
    ),
    "simulate": (
        (f"{_OF_CELL_MODELS} satisfaction parameters attractiveness_scale click_noise", _not_of_model),
        ("queries docs_per_query attractiveness", "!labels: the labels determine it"),
        ("click_noise ranker ranker_queries", "labels: it only works with --labels FILE"),
        ("ranker_queries", "ranker=weak: it only works with --ranker weak"),
        ("eta", "!theta: --theta sets it"),
        ("eta theta", "!device: --device sets it"),
        ("swap_share", "swap: it needs --swap, which names the positions"),
        ("segment_difference", "!segments=1: it needs --segments 2 or more"),
    ),
    "check": (
        *_READING,
        ("period", _without_days),
        ("force", "write_config: nothing is written without --write-config FILE"),
    ),
    "sql": (
        ("salt", "ids=hash: only --ids hash has a salt"),
        ("true false", "!click_counts: with --click-counts, the click column holds numbers"),
        ("check_pages", "session: without --session COLUMN there are no pages to check"),
    ),
    "compare": (("csv force", "output: nothing is written without --output DIR"),),
    "show": (("plot", "format=table: it is drawn below --format table"),),
    "report": (("chart", lambda o, _: o.output.suffix.lower() not in {".svg", ".png"} and "a page has them all"),),
}
"""Rules by command."""
