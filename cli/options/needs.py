"""What each option needs to have an effect, command by command. What does not stand here always has one."""

from collections.abc import Mapping
from dataclasses import fields

from posbias.cli.options import plugin_needs as plugins
from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.effects import Need, Situation, only_where
from posbias.cli.options.learning import LearningOptions
from posbias.cli.options.options import CountingOptions, DecayOptions, EstimationOptions, GateOptions, StoreOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.options.training import TrainingOptions

Needs = Mapping[str, tuple[Need, ...]]


def _names(group: type) -> tuple[str, ...]:
    """The parameters of a group of options."""
    return tuple(entry.name for entry in fields(group))


# --- reading and counting ---------------------------------------------------------------------------------------


def _logs(asked: Situation) -> str | None:
    if asked.statistics is None:
        return None
    return f"{asked.inputs[0]} holds statistics, and this option is about reading logs"


_of_rows = only_where(
    lambda asked: asked["input_format"] in {"auto", "flat", "nested"}, "a source's raw events say what a click is"
)
_table_of_events = only_where(
    lambda asked: bool(asked["impression_where"] or asked["click_where"]),
    "it applies only to a table of events (--impression-where COLUMN=VALUE --click-where COLUMN=VALUE)",
)
_numbered = only_where(
    lambda asked: asked["input_format"] in {"auto", "flat", "nested", "ubi"},
    "positions are places in the lists of what was shown",
)
_no_table_of_events = only_where(
    lambda asked: not (asked["impression_where"] or asked["click_where"]),
    "in a table of events, --click-where says what a click is",
)
_at_a_time = only_where(lambda asked: asked["page_time"] is not None, "clicks are joined by page, without --page-time")
_of_columns = only_where(
    lambda asked: asked["input_format"] in {"auto", "flat", "nested"}, "raw files of a source have no column of pages"
)
_of_pages = only_where(
    lambda asked: asked["page_size"] is not None, "no column numbers pages (--page COLUMN --page-size N)"
)
_no_ranks = only_where(lambda asked: asked["click_ranks"] is None, "with --click-ranks, a cell is a rank, or empty")
_ubi = only_where(
    lambda asked: asked["input_format"] == "ubi", "it applies only to OpenSearch UBI (--input-format ubi)"
)
_clicks_apart = only_where(lambda asked: bool(asked["clicks"]), "there is no table of clicks (--clicks FILE)")
_click_column = only_where(
    lambda asked: asked["input_format"] in {"auto", "flat", "nested"},
    "an event of raw files is one click, and no column says so",
)
_flat_or_nested = only_where(
    lambda asked: asked["input_format"] in {"auto", "flat", "nested"},
    "in raw files, a page shows a document once",
)
_text = only_where(
    lambda asked: not all(map(_is_typed, [*asked.inputs, *(asked["clicks"] or ())])),
    "it is about files of text, and Parquet and Arrow are none",
)
_flat_text = only_where(lambda asked: asked["input_format"] != "ubi", "UBI writes numbers as JSON does")
_fields = only_where(lambda asked: asked["input_format"] != "ubi", "UBI is NDJSON, and that has no separators")
_no_header = only_where(lambda asked: asked["no_header"], "columns have the names of the header without --no-header")
_one_by_one = only_where(lambda asked: asked["impressions"] is None, "--impressions makes the click column a number")
_timestamp = only_where(lambda asked: asked["timestamp"] is not None, "there is no --timestamp COLUMN to read")
_dropping = only_where(
    lambda asked: asked["on_bad_rows"] == "drop", "bad rows stop the run, unless --on-bad-rows drop leaves them out"
)
_spark = only_where(lambda asked: asked["engine"] == "spark", "only --engine spark has a master")


def _is_typed(name: str) -> bool:
    """Whether a file is, by its name, of a format that has types."""
    return name.lower().endswith((".parquet", ".pq", ".arrow", ".ipc", ".feather"))


def _days(asked: Situation) -> str | None:
    if asked.statistics is not None:
        return None if asked.statistics.period else "the statistics were collected without days"
    known = asked["timestamp"] is not None or asked["date"] is not None
    return None if known else "the log has no days without --timestamp COLUMN"


_in_lists = only_where(
    lambda asked: asked["input_format"] in {"auto", "nested"}, "a row is one impression, and holds no lists"
)
_suffix = only_where(lambda asked: asked["click_suffix"] is not None, "it is about lists with --click-suffix")

_OF_LOGS = (
    *("session", "query", "no_query", "doc", "position", "page", "impressions", "weight_column", "timestamp", "date"),
    *("input_format", "clicks", "position_base", "on_bad_rows"),
    *("max_bad_rows", "duplicate_docs", "check_pages", "decimal"),
)
_READING: Needs = {
    **dict.fromkeys(_OF_LOGS, (_logs,)),
    **dict.fromkeys(("clicks_session", "clicks_doc", "clicks_click", "clicks_where"), (_logs, _clicks_apart)),
    "ubi_impressions": (_logs, _ubi),
    "click_actions": (_logs, plugins.with_actions),
    "position_base": (_logs, _numbered),
    **dict.fromkeys(("impression_where", "click_where"), (_logs, _of_rows)),
    "page_time": (_logs, _table_of_events),
    "click_window": (_logs, _table_of_events, _at_a_time),
    **dict.fromkeys(("click", "click_counts"), (_logs, _no_table_of_events)),
    "null_click": (_logs, _click_column, _no_table_of_events, _no_ranks),
    "click_ranks": (_logs, _click_column, _no_table_of_events),
    **dict.fromkeys(("page", "page_size"), (_logs, _of_columns)),
    "page_base": (_logs, _of_columns, _of_pages),
    **dict.fromkeys(("clicked", "list_separator", "click_suffix"), (_logs, _in_lists)),
    "order_is_position": (_logs, _suffix),
    "duplicate_docs": (_logs, _flat_or_nested),
    "max_bad_rows": (_logs, _dropping),
    **dict.fromkeys(("separator", "no_header"), (_logs, _text, _fields)),
    "columns": (_logs, _text, _fields, _no_header),
    "encoding": (_logs, _text),
    "decimal": (_logs, _flat_text),
    **dict.fromkeys(("true", "false"), (_logs, _click_column, _one_by_one, _no_ranks)),
    "timestamp_format": (_logs, _timestamp),
    "master": (_spark,),
}


# --- estimating -------------------------------------------------------------------------------------------------


def _contexts(asked: Situation) -> str | None:
    if asked["shape"] != "free":
        return f"contexts are not shrunk under --shape {asked['shape']}"
    contexts = asked["context"] if asked.statistics is None else asked.statistics.context
    return None if contexts else "only contexts are shrunk (--context COLUMN)"


_with_tables = only_where(
    lambda asked: bool(asked["features"]), "only a table of features (--features FILE) can lack rows"
)
_joint = only_where(
    lambda asked: asked["method"] == "joint" or asked["compare"] is not False,
    "it applies only to joint EM, which is not run (--no-compare)",
)


_given_trust = only_where(lambda asked: asked["model"] == "tpbm", "only --model tpbm corrects for trust in positions")
_ESTIMATING: Needs = {
    **{name: (plugins.known_to_method(name),) for name in _names(EstimationOptions)},
    "period": (_days,),
    "cluster_column": (plugins.cluster_column,),
    "shrink": (plugins.known_to_method("shrink"), _contexts),
    "seed": (plugins.random,),
    **dict.fromkeys(("ranker_score", "sample_pages"), (plugins.of_rows_only,)),
    "no_acceleration": (_joint,),
    "examination_prior": (_joint,),
}


# --- weighting --------------------------------------------------------------------------------------------------


_WEIGHTING: Needs = {
    **{name: (plugins.known_to_layout(name), plugins.known_to_format(name)) for name in _names(TrainingOptions)},
    "self_normalize": (plugins.weights, plugins.click_weights),
    "replicates": (plugins.weights, plugins.click_weights),
    "min_propensity": (plugins.click_weights, plugins.rate_by_propensity),
    "validation_by": (
        only_where(
            lambda asked: asked["validation"] != 0,
            "nothing is held out. Say how much to hold out, e.g. --validation 0.1",
        ),
    ),
    "missing": (_with_tables,),
    "propensity": (plugins.known_to_layout("propensity"), plugins.of_a_fit),
}
_OF_FEATURES: Needs = {
    **dict.fromkeys(("features", "feature"), (plugins.of_rows_only,)),
    "missing": (plugins.of_rows_only, _with_tables),
}


def _never(reason: str) -> Need:
    return lambda _: reason


_OF_THE_FIT = _never("training files do not depend on it; it belongs to the fit, where the propensities come from")


# --- learning ---------------------------------------------------------------------------------------------------


_LEARNING: Needs = {
    **{name: (plugins.known_to_learner(name),) for name in _names(LearningOptions)},
    "propensity": (plugins.learns_with_theta, plugins.of_a_fit),
    "missing": _WEIGHTING["missing"],
}


# --- evaluating -------------------------------------------------------------------------------------------------

_OF_PROPENSITIES = _never("rankings do not depend on it; it belongs to the fit, where the propensities come from")
_rankings = only_where(lambda asked: asked["models"] is None, "click models are judged by pages (--models)")
_models = only_where(lambda asked: asked["models"] is not None, "it is about click models (--models)")
_split = only_where(lambda asked: not asked["test"], "--test is what models are judged by")


def _of_time(asked: Situation) -> str | None:
    if asked["models"] is None:
        return _OF_PROPENSITIES(asked)
    by_time = asked["split"] == "time" and not asked["test"]
    return None if by_time else "click models do not depend on it, unless --split time holds the latest out"


_of_judgments = only_where(
    lambda asked: asked["models"] is None or asked["judgments"] is not None, "without --judgments there is no NDCG"
)
_EVALUATING: Needs = {
    **dict.fromkeys(("propensities", "scores", "rankings", "candidates", "baseline", "min_propensity"), (_rankings,)),
    "bound": (
        _rankings,
        only_where(lambda asked: asked["candidates"] == "page", "weights by query (--candidates query) have no bound"),
        only_where(lambda asked: asked["weight_column"] is None, "pages with weights are no independent pages"),
    ),
    "propensity": (_rankings, plugins.of_a_fit),
    "cutoff": (_of_judgments,),
    "context": (_rankings,),
    **dict.fromkeys(("split", "test_share"), (_models, _split)),
    **dict.fromkeys(("test", "samples", "seed"), (_models,)),
    "timestamp": (_of_time,),
    **dict.fromkeys(("period_column", "stratify", "cluster_column", "randomized_where"), (_OF_PROPENSITIES,)),
}


# --- collect ----------------------------------------------------------------------------------------------------

_to_write = only_where(lambda asked: not asked["info"], "--info writes nothing")
_to_count = only_where(lambda asked: asked["remove_day"] is None, "--remove-day counts nothing")
_OF_MACHINES = ("memory", "threads", "engine", "master")  # merging needs them as well
_OF_COUNTING = tuple(
    name
    for group in (ColumnOptions, ReadingOptions, CountingOptions, DecayOptions, GateOptions)
    for name in _names(group)
    if name not in {*_OF_MACHINES, "temp_dir"}  # where statistics are copied to that are looked into
)
_OF_STORES = _names(StoreOptions)
_merged = only_where(
    lambda asked: asked.merges or asked["into"] is not None,
    "days are let into a store where statistics are merged, or with --into STORE",
)
_into = only_where(lambda asked: asked["into"] is not None, "it is about a day of a store (--into STORE)")
_elsewhere = only_where(lambda asked: asked["into"] is None, "--into STORE says where to write")
_of_its_own = only_where(lambda asked: asked["into"] is None, "--into STORE replaces the store in one step anyway")
_COLLECTING: Needs = {
    **_READING,
    "period": (_logs, _days),
    "gate": (_merged,),
    "replace_day": (_into, _to_count),
    "remove_day": (_into,),
    "output": (_elsewhere,),
    "dry_run": (_to_count,),
    "force": (_of_its_own,),
}


def _needs_of_collect(name: str) -> tuple[Need, ...]:
    counting = (_to_count,) if name in _OF_COUNTING else ()
    return (_to_write, *counting, *_COLLECTING.get(name, ()))


# --- check ------------------------------------------------------------------------------------------------------

_CHECKING: Needs = {name: needs for name, needs in _READING.items() if name != "max_bad_rows"} | {"period": (_days,)}


# --- simulate ---------------------------------------------------------------------------------------------------

_labels = only_where(lambda asked: asked["labels"] is not None, "it only works with --labels FILE")
_no_labels = only_where(lambda asked: asked["labels"] is None, "the labels determine it")
_no_device = only_where(lambda asked: not asked["device"], "--device sets it")


_SIMULATING: Needs = {
    "eta": (plugins.depends_on_theta, only_where(lambda asked: asked["theta"] is None, "--theta sets it"), _no_device),
    "theta": (plugins.depends_on_theta, _no_device),
    **dict.fromkeys(("device", "readiness", "theta_shock"), (plugins.examined_by_cell,)),
    "attractiveness_scale": (plugins.documents_differ,),
    "satisfaction": (plugins.users_are_satisfied,),
    "parameters": (plugins.has_parameters,),
    "queries": (_no_labels,),
    "docs_per_query": (_no_labels,),
    "attractiveness": (_no_labels,),
    "click_noise": (_labels, plugins.documents_differ),
    "ranker": (_labels,),
    "ranker_queries": (
        _labels,
        only_where(lambda asked: asked["ranker"] == "weak", "it only works with --ranker weak"),
    ),
    "segment_difference": (only_where(lambda asked: asked["segments"] > 1, "it needs --segments 2 or more"),),
    "swap_share": (only_where(lambda asked: bool(asked["swap"]), "it needs --swap, which names the positions"),),
}


_NOTHING_KEPT = "nothing is written without --output DIR"

_OF_CELLS = (
    *("method", "reference", "shape", "shrink", "cluster", "bootstrap", "seed", "examination_prior", "tolerance"),
    *("no_acceleration", "compare", "strict", "position_bins", "period", "date", "decay", "ranker_score"),
    *("sample_pages", "context", "timestamp", "period_column", "stratify", "cluster_column", "randomized_where"),
)
"""Options of estimates by cell."""


def _estimating(needs: Needs, of_cells: tuple[str, ...]) -> Needs:
    """The needs of a command that estimates: by cell, or the parameters of another click model."""
    return {
        **needs,
        **{name: (plugins.by_cell, *needs.get(name, ())) for name in of_cells},
        "trust": (_given_trust,),
    }


NEEDS: Mapping[str, Needs] = {
    "run": _estimating({**_READING, **_ESTIMATING, **_WEIGHTING}, (*_OF_CELLS, "propensity")),
    "fit": _estimating(
        {**_READING, **_ESTIMATING, **_OF_FEATURES}, (*_OF_CELLS, "features", "feature", "missing", "for_each")
    ),
    "collect": {
        name: _needs_of_collect(name)
        for name in (*_OF_COUNTING, *_OF_MACHINES, *_OF_STORES, "output", "force", "quiet", "dry_run")
    },
    "weight": {
        **_READING,
        **_WEIGHTING,
        **dict.fromkeys(
            ("timestamp", "period_column", "stratify", "cluster_column", "randomized_where"), (_OF_THE_FIT,)
        ),
    },
    "train": {
        **_READING,
        **_LEARNING,
        **dict.fromkeys(
            ("timestamp", "period_column", "stratify", "cluster_column"),
            (_never("learners do not depend on it; it belongs to the fit, where the propensities come from"),),
        ),
        "randomized_where": (plugins.learns_from_placed,),
    },
    "score": {},
    "evaluate": {**_READING, **_EVALUATING},
    "simulate": _SIMULATING,
    "check": _CHECKING,
    "init": _CHECKING,
    "explore": {},
    "compare": dict.fromkeys(("csv", "force"), (only_where(lambda asked: asked["output"] is not None, _NOTHING_KEPT),)),
    "show": {"plot": (only_where(lambda asked: asked["format"] == "table", "it is drawn below --format table"),)},
    "report": {
        "chart": (only_where(lambda asked: asked["output"].suffix.lower() in {".svg", ".png"}, "a page has them all"),)
    },
}
"""By command and parameter. A parameter may have several needs; the first that is not met is said."""
