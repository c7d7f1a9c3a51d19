"""Groups of options shared by commands: types and defaults; help, ranges and rules are in options.toml."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from posbias.cli.messages import LogFormat
from posbias.core import choices

Decimal = Literal[","]
"""A decimal separator other than the point."""

NullClick = Literal["0"]
"""The meaning of an empty cell of the click column."""

Form = Literal["table", "markdown", "csv", "json"]
"""Formats of `posbias show`."""

SETTINGS: Mapping[str, type] = {"layout_options": choices.LayoutOptions, "learner_options": choices.LearningOptions}
"""Options NAME=VALUE, by parameter name, and the dataclass whose fields they set."""


@dataclass(frozen=True)
class ColumnOptions:
    """Columns of a log, and how their values are read."""

    session: list[str] | None = None
    query: list[str] | None = None
    no_query: bool = False
    doc: list[str] | None = None
    position: str | None = None
    click: str | None = None
    timestamp: str | None = None
    period_column: str | None = None
    cell: list[str] | None = None
    context: list[str] | None = None
    stratify: list[str] | None = None
    cluster_column: str | None = None
    arm: str | None = None
    randomized_where: list[str] | None = None
    position_base: str | None = None
    click_counts: bool = False
    null_click: NullClick | None = None
    true: str | None = None
    false: str | None = None


@dataclass(frozen=True)
class LogOptions(ColumnOptions):
    """Columns of a log and how it is read; a column without a flag is found by well-known names."""

    page: str | None = None
    clicked: str | None = None
    impressions: str | None = None
    weight_column: str | None = None
    input_format: str = "auto"
    sql: str | None = None
    list_separator: str | None = None
    click_suffix: str | None = None
    order_is_position: bool = False
    separator: str | None = None
    encoding: str | None = None
    no_header: bool = False
    columns: str | None = None
    decimal: Decimal | None = None
    timestamp_format: str | None = None
    clicks: list[str] | None = None
    clicks_session: list[str] | None = None
    clicks_doc: list[str] | None = None
    clicks_click: str | None = None
    clicks_where: list[str] | None = None
    impression_where: list[str] | None = None
    click_where: list[str] | None = None
    page_time: str | None = None
    click_window: str = "30m"
    ubi_impressions: choices.Impressions = "hits"
    click_actions: str = "click"
    page_size: int | None = None
    page_base: int | None = None
    click_ranks: int | None = None
    on_bad_rows: choices.OnBadRows = "error"
    max_bad_rows: float = choices.MOST_BAD_ROWS
    duplicate_docs: choices.DuplicateDocs = "error"
    check_pages: choices.CheckPages = "sample"
    memory: str = "2GiB"
    threads: int | None = None
    temp_dir: Path | None = None
    table: list[str] | None = None
    engine: choices.EngineName = "polars"
    master: str | None = None


@dataclass(frozen=True)
class CountingOptions:
    """How impressions and clicks are counted."""

    model: str | None = None
    max_position: int | None = None
    position_bins: str | None = None
    period: choices.Period = "auto"
    date: str | None = None


@dataclass(frozen=True, kw_only=True)
class WarehouseOptions:
    """Dialect and options of a query for a warehouse."""

    dialect: choices.Warehouse
    model: str | None = None
    check_pages: choices.CheckPages = "all"
    ids: choices.Ids | None = None
    salt: str | None = None
    min_impressions: int = 0


@dataclass(frozen=True)
class StoreOptions:
    """Adding, replacing or removing a day of a store."""

    into: Path | None = None
    replace_day: bool = False
    remove_day: str | None = None


@dataclass(frozen=True)
class EstimationOptions:
    """How propensities and attractiveness are estimated."""

    method: str = "conditional"
    reference: str | None = None
    shape: str = "free"
    cell_form: choices.CellForm | None = None
    shrink: choices.Shrink = "auto"
    cluster: choices.Cluster | None = None
    bootstrap: int = 0
    seed: int = 0
    attractiveness_prior: str = "estimate"
    examination_prior: str = "0.5:2"
    max_iterations: int | None = None
    tolerance: float | None = None
    no_acceleration: bool = False
    compare: bool | None = None
    trust: str | None = None
    csv: bool = False
    strict: bool = False
    ranker_score: str | None = None
    sample_pages: int = 20_000


@dataclass(frozen=True)
class FeatureOptions:
    """Features to learn from."""

    features: list[str] | None = None
    feature: list[str] | None = None
    missing: choices.Missing = "error"


@dataclass(frozen=True)
class TrainingOptions:
    """How clicks become training weights."""

    layout: str = "pointwise"
    format: str = "parquet"
    features: list[str] | None = None
    feature: list[str] | None = None
    missing: choices.Missing = "error"
    validation: float = 0.0
    propensity: choices.Source = "smooth"
    min_propensity: float = 0.01
    self_normalize: bool = False
    unidentified: choices.OnBadRows = "drop"
    layout_options: dict[str, Any] | None = None


@dataclass(frozen=True)
class LearningOptions:
    """How a ranker is trained."""

    learner: str = "auto"
    for_engine: choices.ServingEngine | None = None
    features: list[str] | None = None
    feature: list[str] | None = None
    missing: choices.Missing = "error"
    ranker_score: str | None = None
    propensity: choices.Source = "smooth"
    validation: float = 0.0
    early_stopping: int | None = None
    seed: int = 0
    learner_options: dict[str, Any] | None = None


@dataclass(frozen=True)
class WorldOptions:
    """A simulated world: documents, position bias, users, and random placement."""

    model: str = "pbm"
    sessions: int = 50_000
    positions: int = 10
    queries: int | None = None
    docs_per_query: int | None = None
    query_exponent: float = 0.7
    eta: float = 1.0
    theta: str | None = None
    cells: list[str] | None = None
    attractiveness: str | None = None
    attractiveness_scale: float = 1.0
    satisfaction: str | None = None
    parameters: list[str] | None = None
    seed: int = 0
    labels: str | None = None
    click_noise: float | None = None
    ranker: Literal["label", "weak"] | None = None
    ranker_queries: int | None = None
    ranker_strength: str = "1"
    score_weight: float = 1.0
    days: int = 7
    feedback_strength: float = 0.0
    updates_per_day: int = 1
    segments: int = 1
    segment_difference: float = 0.5
    device: list[str] | None = None
    depth: str | None = None
    readiness: str | None = None
    theta_shock: float = 0.0
    users: int = 0
    randomized_share: float = 0.0
    swap: list[str] | None = None
    swap_share: float = 0.1
    interleave: str | None = None


@dataclass(frozen=True)
class PrintOptions:
    """Printing, and replacement of an old result."""

    force: bool = False
    quiet: bool = False
    details: bool = False
    json: bool = False
    config: Path | None = None


@dataclass(frozen=True)
class ResultOptions(PrintOptions):
    """`PrintOptions` of a command that also has `--dry-run`."""

    dry_run: bool = False


@dataclass(frozen=True)
class CommonOptions:
    """Options of every command."""

    log_format: LogFormat = "text"
    print_config: bool = False
    help_all: bool = False
