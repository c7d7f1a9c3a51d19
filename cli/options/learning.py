"""Options of training files, learners and evaluation."""

from typing import Any

from posbias.cli.options.option import (
    CSV,
    FEATURE,
    FEATURES,
    LARGEST_POSITION,
    MIN_PROPENSITY,
    MISSING_FEATURES,
    PROPENSITY,
    RANKER_SCORE,
    SETTINGS,
    VALIDATION,
    one_of,
    option,
    options,
    read_name,
    read_ranking,
)
from posbias.core.choices import (
    FORMATS,
    LAYOUTS,
    LEARNERS,
    Candidates,
    Missing,
    OnBadRows,
    Source,
    settings_in,
)

_SETTINGS = {
    name: option(
        f"An option of the {name.removesuffix('_options')} itself, e.g. {example}. Repeatable.",
        "NAME=VALUE",
        complete=one_of([f"{each}=" for each in settings_in(SETTINGS[name])]),
    )
    for name, example in (("layout_options", "replicates=40"), ("learner_options", "trees=100"))
}


@options("Learning")
class LearningOptions:
    """Options of learning."""

    learner: str = option(
        "auto: learns several on parts of the queries, and takes a blend, or the one that held-out clicks say is "
        "better. Or one by name: {other_learners}.",
        "NAME",
        default="auto",
        complete=one_of(LEARNERS),
    )
    features: list[str] | None = FEATURES
    feature: list[str] | None = FEATURE
    missing: Missing = MISSING_FEATURES
    ranker_score: str | None = RANKER_SCORE
    propensity: Source = PROPENSITY
    validation: float = VALIDATION
    early_stopping: int | None = option(
        "Stop once held-out queries have fared no better for N rounds, and keep the best.", "N", min=1
    )
    seed: int = option("Random seed.", "N", default=0, min=0)
    learner_options: dict[str, Any] | None = _SETTINGS["learner_options"]


@options("Weighting")
class TrainingOptions:
    """How clicks become training weights."""

    layout: str = option("Training rows by {layouts}.", "NAME", default="pointwise", complete=one_of(LAYOUTS))
    format: str = option(
        "Format of the training files: {formats}.", "NAME", default="parquet", complete=one_of(FORMATS)
    )
    features: list[str] | None = FEATURES
    feature: list[str] | None = FEATURE
    missing: Missing = MISSING_FEATURES
    validation: float = VALIDATION
    propensity: Source = PROPENSITY
    min_propensity: float = MIN_PROPENSITY
    self_normalize: bool = option("Scale click weights to a mean of 1.")
    unidentified: OnBadRows = option(
        "Clicks in cells without a propensity: drop them with a warning, or stop.", default="drop"
    )
    layout_options: dict[str, Any] | None = _SETTINGS["layout_options"]


_SCORES = option(
    "A ranking as a table of query, doc and score; NAME=FILE says its name. Repeatable.", "FILE", parser=read_ranking
)
_RANKINGS = option("A ranking as a TREC run; NAME=FILE says its name. Repeatable.", "RUN", parser=read_ranking)


@options("Rankings")
class PredictionOptions:
    """Rankings to predict."""

    scores: list[str] | None = _SCORES
    rankings: list[str] | None = _RANKINGS
    trained_until: str | None = option(
        "The last day whose clicks the rankings have learned from: all pages must be of later days.", "DATE"
    )
    by: str | None = option(
        "Also predict for each class of queries: a column that is the same on all pages of a query, e.g. a category.",
        "COLUMN",
    )
    csv: bool = CSV


@options("Rankings")
class EvaluationOptions:
    """Which rankings are evaluated, and how."""

    scores: list[str] | None = _SCORES
    rankings: list[str] | None = _RANKINGS
    judgments: str | None = option(
        "Judgments for NDCG: TREC qrels, or a table of query, doc and relevance.", "FILE", parser=read_name
    )
    cutoff: int = option(
        "Number of ranks that count in DCG and NDCG.", "K", default=10, short="-k", min=1, max=LARGEST_POSITION
    )
    candidates: Candidates = option(
        "What a document is ranked among: those on its page, or all of its query.", default="page"
    )
    baseline: str | None = option(
        "The ranking that others are compared with: the first by default; logged is the log's own.", "NAME"
    )
    bound: float | None = option(
        "Also give lower bounds on DCG that hold for all rankings at once, for any number of pages, e.g. 0.95.", "C"
    )
    propensity: Source = PROPENSITY
    min_propensity: float = MIN_PROPENSITY
    csv: bool = CSV
