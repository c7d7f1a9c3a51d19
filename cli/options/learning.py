"""Options of training files, learners and evaluation."""

from typing import Any

from posbias.cli.options.option import (
    CSV,
    FEATURE,
    FEATURES,
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
    Grouping,
    Missing,
    Negatives,
    OnBadRows,
    Rate,
    Source,
    settings_of,
)


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
    learner_options: dict[str, Any] | None = option(
        "An option of the learner itself, e.g. trees=100. Repeatable.",
        "NAME=VALUE",
        complete=one_of([f"{name}=" for name in settings_of(SETTINGS["learner_options"])]),
    )


@options("Weighting")
class TrainingOptions:
    """How clicks become training weights."""

    layout: str = option("Training rows by {layouts}.", "NAME", default="pointwise", complete=one_of(LAYOUTS))
    format: str = option(
        "Format of the training files: {formats}.", "NAME", default="parquet", complete=one_of(FORMATS)
    )
    group: Grouping | None = option("What is ranked together: all pages of a query, or each page on its own.")
    features: list[str] | None = FEATURES
    feature: list[str] | None = FEATURE
    missing: Missing = MISSING_FEATURES
    validation: float = VALIDATION
    validation_by: Grouping = option("What to hold out: whole queries or sessions.", default="query")
    propensity: Source = PROPENSITY
    min_propensity: float = MIN_PROPENSITY
    self_normalize: bool = option("Scale click weights to a mean of 1.")
    replicates: int = option(
        "N further columns of weights, which vary with the errors of the propensities.", "N", default=0, min=0, max=1000
    )
    negatives: Negatives = option(
        "Negative weights of pointwise: clamp (n - W+, at least 0) or posterior (expected labels).", default="clamp"
    )
    rate: Rate = option(
        "Label of judgments: posterior attractiveness, clicks over expected clicks (coec), weighted clicks (ips).",
        default="posterior",
    )
    grades: int = option("Number of grades of judgments, from 0.", "N", default=5, min=2, max=31)
    search_index: str | None = option("For --format elasticsearch: the index that holds the documents.", "NAME")
    unidentified: OnBadRows = option(
        "Clicks in cells without a propensity: drop them with a warning, or stop.", default="drop"
    )


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
    cutoff: int = option("Number of ranks that count in DCG and NDCG.", "K", default=10, short="-k", min=1)
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
