"""Options of training files, learners and evaluation."""

from posbias.cli.options.option import (
    CSV,
    FEATURE,
    FEATURES,
    MIN_PROPENSITY,
    MISSING_FEATURES,
    PROPENSITY,
    RANKER_SCORE,
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
    Balance,
    Candidates,
    Grouping,
    Missing,
    MultipleTests,
    Negatives,
    OnBadRows,
    Rate,
    Source,
    TieDistance,
    Vectors,
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
    balance: Balance = option(
        "Who counts: all impressions alike (traffic), all queries alike (query), or between the two (sqrt).",
        default="sqrt",
    )
    never_worse: float = option(
        "Exit with 1 where the ranker may lose more than this share of the clicks of the log's own order.",
        "SHARE",
        default=0.05,
    )
    propensity: Source = PROPENSITY
    validation: float = VALIDATION
    early_stopping: int | None = option(
        "Stop once held-out queries have fared no better for N rounds, and keep the best.", "N", min=1
    )
    trees: int = option("Number of trees.", "N", default=200, min=1, max=100_000)
    learning_rate: float = option("Shrinkage of each tree.", "X", default=0.05)
    leaves: int = option("Leaves of a tree.", "N", default=15, min=2, max=4096)
    leaf_documents: int | None = option(
        "Fewest documents of a leaf; without it a hundredth of them, between 10 and 50.", "N", min=1
    )
    seed: int = option("Random seed.", "N", default=0, min=0)
    no_position_feature: bool = option("Logistic regression without the position as a feature.")
    raw_rates: bool = option("Compare click rates without correcting them for position.")
    significance: float = option("Level at which click rates of two documents differ.", "X", default=0.05)
    multiple_tests: MultipleTests = option(
        "What the level is about: each pair, any pair (bonferroni), or the share of false ones (fdr).", default="none"
    )
    tau: float = option("Target difference between the scores of a pair.", "X", default=1.0)
    margin_penalty: float = option(
        "Weight of -tau^2 in the objective, below 0.5, by which --tau is chosen anew after every fit. 0: it stays.",
        "LAMBDA",
        default=0.0,
    )
    negative_share: float = option(
        "Share of the documents without a click to learn from; each counts 1 / share times.", "X", default=1.0
    )
    factors: int = option("Factors of queries and documents.", "N", default=4, min=1, max=1000)
    regularization: float | None = option(
        "Penalty on the squares of factors and biases; without it, the best of several on held-out impressions.", "X"
    )
    steps: int = option("Most steps of a learner of factors.", "N", default=300, min=1, max=100_000)
    tie: float = option(
        "Penalty on differences between factors of rows placed at random and those of other rows.", "X", default=20.0
    )
    tie_distance: TieDistance = option(
        "Penalise half the squares of these differences, or their absolute values.", default="squared"
    )
    vectors: Vectors = option(
        "Rank by the factors of rows placed at random, or by those of other rows.", default="treatment"
    )
    epochs: int = option("Most passes of a network over the log.", "N", default=60, min=1, max=100_000)
    observation_dropout: float = option("Chance with which the position is hidden.", "X", default=0.0)
    gradient_reversal: float = option(
        "Strength of the reversed gradient that keeps position from predicting clicks.", "X", default=0.0
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
