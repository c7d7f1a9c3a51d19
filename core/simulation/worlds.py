"""Worlds: queries and documents with their attractiveness and the ranker's scores.

`random_world` draws attractiveness from a Beta distribution; `judged_world` derives it from graded labels of real
queries and documents:

    P(click | examined) = eps + (1 - eps) (2 ** y - 1) / (2 ** y_max - 1)
    score               = w * quality + (1 - w) * noise,    noise ~ U[0, 1] once per (query, document)

where quality is y / y_max, or the prediction, scaled to 0 .. 1, of a weak ranker trained on a few labelled queries.
Sources: Chapelle et al. 2009; Joachims, Swaminathan & Schnabel 2017 and Ai et al. 2018 (a weak ranker logs).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.errors import SchemaError, UsageError
from posbias.core.simulation.options import SimulationOptions

WORLD, SESSION, NOISE, SEGMENT_WORLD, SHOCK, POPULARITY, TRAINING, SATISFACTION, RATES = 0, 1, 2, 3, 4, 5, 6, 7, 8
SEGMENT, CONTEXT, READINESS, DEPTH, EXPERIMENT, BLOCKS, TEAMS, USERS = 10, 11, 12, 13, 14, 15, 16, 17
"""Keys of streams of random numbers: options of one feature do not change the random numbers of another."""


def random_stream(options: SimulationOptions, *key: int) -> np.random.Generator:
    """Return the random generator of a key; generators of different keys are independent."""
    return np.random.default_rng(np.random.SeedSequence(options.seed, spawn_key=key))


@dataclass(frozen=True)
class World:
    """Queries in the order of their frequency, their documents, and the truth.

    Documents are numbered within their query; queries with fewer than D documents are padded.
    """

    attractiveness: Floats  # shape (G, Q, D), gamma in [0, 1] by segment, query and document
    score: Floats  # shape (G, Q, D), the ranker's score, larger is better; -inf for padding
    deviation: float  # standard deviation of the scores, > 0, the unit of the ranker's strength
    query_ids: pl.Series  # length Q
    doc_ids: pl.Series  # documents of all queries, query by query
    start: Integers  # shape (Q,), index in `doc_ids` of the first document of each query
    score_b: Floats | None = None  # shape (G, Q, D), scores of a second ranker, of the same deviation

    @property
    def n_docs(self) -> Integers:
        """Number of documents of each query, shape (Q,)."""
        return np.count_nonzero(self.present, axis=1)

    @property
    def present(self) -> Flags:
        """Whether a document exists, rather than padding, shape (Q, D)."""
        return self.score[0] > -np.inf


def random_world(options: SimulationOptions) -> World:
    """Draw a world with gamma ~ attractiveness_scale * Beta(a, b) for all queries and documents.

    In each further segment gamma is drawn anew for a share of the pairs; the others are as in the first segment.
    """
    n_queries, n_docs = options.n_queries, options.docs_per_query
    shape = (options.segments, n_queries, n_docs)
    attractiveness = np.empty(shape)
    attractiveness[0] = _beta(random_stream(options, WORLD), shape[1:], options)
    for segment in range(1, options.segments):
        rng = random_stream(options, SEGMENT_WORLD, segment)
        differs = rng.random(shape[1:]) < options.segment_difference
        attractiveness[segment] = np.where(differs, _beta(rng, shape[1:], options), attractiveness[0])
    scores = _scores(options, attractiveness, lambda rng: _beta(rng, shape[1:], options))
    a, b = options.attractiveness_shape
    deviation = options.attractiveness_scale * np.sqrt(a * b / ((a + b) ** 2 * (a + b + 1)))
    deviations = [float(deviation * np.hypot(weight, 1 - weight)) for weight in options.score_weights]
    return World(
        attractiveness=attractiveness,
        score=scores[0],
        deviation=deviations[0],
        score_b=scores[1] * (deviations[0] / deviations[1]) if len(scores) > 1 else None,
        query_ids=pl.Series(np.arange(n_queries, dtype=np.int32)),
        doc_ids=pl.Series(np.tile(np.arange(n_docs, dtype=np.int32), n_queries)),
        start=np.arange(n_queries, dtype=np.int64) * n_docs,
    )


def _scores(
    options: SimulationOptions, quality: Floats, draw_noise: Callable[[np.random.Generator], Floats]
) -> list[Floats]:
    """Return the score w * quality + (1 - w) * noise of each ranker, each of shape (G, Q, D)."""
    return [
        quality
        if weight == 1
        else weight * quality + (1 - weight) * draw_noise(random_stream(options, NOISE, *[1] * ranker))
        for ranker, weight in enumerate(options.score_weights)
    ]


def theta_shocks(options: SimulationOptions, n_queries: int) -> Floats | None:
    """Draw log-normal factors of mean 1 on theta by query and slot, shape (Q, K); None without shocks."""
    sigma = options.theta_shock
    if sigma == 0:
        return None
    draw = random_stream(options, SHOCK).standard_normal((n_queries, options.n_slots))
    return np.exp(sigma * draw - sigma**2 / 2)


def block_shares(options: SimulationOptions, n_queries: int) -> Floats:
    """Draw the share of each query's pages with a block, shape (Q, B), from a Beta distribution.

    With mean m and standard deviation s, its parameters are m n and (1 - m) n, n = m (1 - m) / s^2 - 1; if s = 0, all
    shares are m.
    """
    shares = np.empty((n_queries, len(options.blocks)))
    for number, column in enumerate(options.blocks):
        mean, deviation = (*column.share, 0.0)[:2]
        shares[:, number] = mean
        if deviation:
            strength = mean * (1 - mean) / deviation**2 - 1
            rng = random_stream(options, BLOCKS, number, 1)
            shares[:, number] = rng.beta(mean * strength, (1 - mean) * strength, n_queries)
    return shares


def _beta(rng: np.random.Generator, shape: tuple[int, ...], options: SimulationOptions) -> Floats:
    return options.attractiveness_scale * rng.beta(*options.attractiveness_shape, size=shape)


Clicks = NDArray[np.int8]


def draw_clicks(
    attractiveness: Floats, examination: Floats, rng: np.random.Generator, context: Integers | None = None
) -> Clicks:
    """Draw the clicks on results pages, from the top down: P(click) = min(examination * attractiveness, 1).

    Args:
        attractiveness: attractiveness at each position of each session, >= 0, shape (S, K).
        examination: in [0, 1], by position, shape (K,) (PBM), or by position and position of the last click above, 0
            for none, shape (K, K) (UBM); with `context`, a stack of C such tables.
        rng: random generator.
        context: context of each session, in 0 .. C - 1, shape (S,).

    Returns:
        Shape (S, K), 0 or 1.
    """
    n_sessions, n_positions = attractiveness.shape
    clicks = np.zeros((n_sessions, n_positions), dtype=np.int8)
    previous_click = np.zeros(n_sessions, dtype=np.int64)
    n_contexts = 1 if context is None else len(examination)
    by_previous = examination.reshape(n_contexts, n_positions, -1)
    theta = np.broadcast_to(by_previous, (n_contexts, n_positions, n_positions))
    for index in range(n_positions):
        examined: Floats = theta[0 if context is None else context, index, previous_click]
        clicks[:, index] = rng.random(n_sessions) < examined * attractiveness[:, index]
        previous_click[clicks[:, index] == 1] = index + 1
    return clicks


def graded_attractiveness(label: NDArray[np.integer], highest: int, noise: float) -> Floats:
    """Convert graded labels to click probabilities given examination.

    gamma = noise + (1 - noise) (2 ** y - 1) / (2 ** highest - 1)    (Chapelle et al. 2009; Ai et al. 2018)

    Args:
        label: grades y in 0 .. highest, any shape.
        highest: highest grade of the scale, >= 1.
        noise: probability eps of a click on an examined document of grade 0, in [0, 1].

    Returns:
        Probabilities in [noise, 1], of the same shape.
    """
    return noise + (1 - noise) * (np.exp2(label) - 1) / (2.0**highest - 1)


_Number = TypeVar("_Number", np.float64, np.int64)

HIGHEST_GRADE = 30
"""A higher label is a score, not a grade."""

RIDGE = 0.1
"""Ridge penalty of the weak ranker, relative to the variance of a standardised feature."""


@dataclass(frozen=True)
class JudgementOptions:
    """Options of the conversion of labels to clicks and scores."""

    click_noise: float = 0.1  # eps in [0, 1], the probability of a click on an examined document of grade 0
    ranker: Literal["label", "weak"] = "label"  # quality in scores: the label, or a prediction from features
    ranker_queries: int = 20  # number of labelled queries to train the weak ranker, >= 1

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            UsageError: `click_noise` is no probability.
        """
        if not 0 <= self.click_noise <= 1:
            raise UsageError(f"click_noise is {self.click_noise}; it is a probability, 0 to 1.")


@dataclass(frozen=True)
class Judgements:
    """Labelled documents of queries with enough documents for a page, sorted by query and document."""

    query_ids: pl.Series  # length Q
    n_docs: Integers  # shape (Q,), number of documents of each query, at least as many as positions
    doc_ids: pl.Series  # length N, documents of all queries, query by query
    label: Integers  # shape (N,), grades >= 0
    features: Floats  # shape (N, F), F may be 0
    queries_left_out: int  # number of queries with fewer documents than positions


def usable_judgements(table: pl.DataFrame, n_positions: int) -> Judgements:
    """Validate a table of labels, and retain the queries with a document for every position.

    Args:
        table: query, doc, label; all other numeric columns are features, with 0 for null and NaN.
        n_positions: number of positions K of a page.

    Raises:
        SchemaError: a null, a repeated (query, doc), a label that is no grade, no query with enough documents, or no
            grade above 0.
    """
    for name in ("query", "doc", "label"):
        if nulls := table[name].null_count():
            raise SchemaError(f"labels: column {name!r} is null in {nulls:,} rows. Remove or fix them.")
    grades = table["label"].cast(pl.Float64, strict=False)
    wrong = table["label"].filter(grades.is_null() | (grades != grades.round()) | ~grades.is_between(0, HIGHEST_GRADE))
    if len(wrong):
        raise SchemaError(
            f"labels: {wrong[0]!r} is not a grade (whole numbers from 0 to {HIGHEST_GRADE}; {len(wrong):,} rows are "
            "none). Write 0 for what is not relevant."
        )
    repeated = table.height - table.select("query", "doc").n_unique()
    if repeated:
        raise SchemaError(f"labels: {repeated:,} rows repeat a (query, document). Give each one label.")
    table = table.with_columns(pl.col("label").cast(pl.Int64))
    size = pl.len().over("query")
    kept = table.filter(size >= n_positions).sort("query", "doc")
    n_queries = table["query"].n_unique()
    if kept.is_empty():
        largest = table.select(size.max()).item() or 0
        raise SchemaError(
            f"labels: none of the {n_queries:,} queries has {n_positions} labelled documents, one for each position; "
            f"the largest has {largest}. Ask for fewer positions."
        )
    if not (kept["label"] > 0).any():
        raise SchemaError("labels: no document has a grade above 0, so that nothing attracts clicks.")
    features = kept.drop("query", "doc", "label").select(pl.selectors.numeric().cast(pl.Float64).fill_nan(0))
    queries = kept.group_by("query", maintain_order=True).len()
    return Judgements(
        query_ids=queries["query"],
        n_docs=queries["len"].cast(pl.Int64).to_numpy(),
        doc_ids=kept["doc"],
        label=kept["label"].to_numpy(),
        features=features.fill_null(0).to_numpy() if features.width else np.empty((kept.height, 0)),
        queries_left_out=n_queries - queries.height,
    )


def judged_world(judgements: Judgements, options: SimulationOptions, how: JudgementOptions) -> World:
    """Draw a world from labels.

    The order of queries by frequency is random. In each further segment, a share of the documents has the label of a
    random document of its query.

    Args:
        judgements: labels; the world has their queries and documents, not the numbers in the options.
        options: seed, segments, score weights and attractiveness_scale of the world.
        how: conversion of labels to clicks and scores.

    Raises:
        UsageError: a weak ranker cannot be trained: too few queries, no features, or features that are not finite.
    """
    popular = random_stream(options, POPULARITY).permutation(len(judgements.n_docs))
    start = np.cumsum(judgements.n_docs) - judgements.n_docs
    present: Flags = np.arange(int(judgements.n_docs.max())) < judgements.n_docs[:, None]
    highest = int(judgements.label.max())
    first, n_docs = np.repeat(start, judgements.n_docs), np.repeat(judgements.n_docs, judgements.n_docs)
    labels = [judgements.label]  # labels of each segment, shape (N,)
    for segment in range(1, options.segments):
        rng = random_stream(options, SEGMENT_WORLD, segment)
        another = judgements.label[first + rng.integers(n_docs)]
        differs = rng.random(len(another)) < options.segment_difference
        labels.append(np.where(differs, another, judgements.label))
    label = np.array([_by_query(labels_of_segment, present) for labels_of_segment in labels])
    if how.ranker == "weak":
        weak = _by_query(_weak_quality(judgements, options, how.ranker_queries), present)
        quality = np.broadcast_to(weak, label.shape)
    else:
        quality = label / highest
    blended = _scores(options, quality, lambda rng: _by_query(rng.random(len(judgements.label)), present))
    deviation, *others = (float(score[:, present].std()) or 1.0 for score in blended)
    scores = [
        np.where(present, score * (deviation / own), -np.inf)
        for score, own in zip(blended, (deviation, *others), strict=True)
    ]
    attractiveness = options.attractiveness_scale * graded_attractiveness(label, highest, how.click_noise)
    return World(
        attractiveness=np.where(present, attractiveness, 0.0)[:, popular],
        score=scores[0][:, popular],
        deviation=deviation,
        score_b=scores[1][:, popular] if len(scores) > 1 else None,
        query_ids=judgements.query_ids.gather(popular),
        doc_ids=judgements.doc_ids,
        start=start[popular],
    )


def _by_query(values: NDArray[_Number], present: Flags) -> NDArray[_Number]:
    """Return values of documents, shape (N,), as a table of shape (Q, D), padded with 0."""
    table = np.zeros(present.shape, dtype=values.dtype)
    table[present] = values
    return table


def _weak_quality(judgements: Judgements, options: SimulationOptions, n_queries: int) -> Floats:
    """Predict labels from features by ridge regression on `n_queries` queries; scaled to 0 .. 1, shape (N,).

    b = (X'X / n + RIDGE I)^-1 X'(y - mean y) / n, the columns of X standardised over all documents.
    """
    features, known = judgements.features, len(judgements.n_docs)
    if not np.isfinite(np.abs(features).max(initial=0.0) ** 2 * max(len(features), 1)):
        raise UsageError(
            "a weak ranker cannot learn from features that are infinite, or nearly: fix the file of labels."
        )
    if not features.shape[1]:
        raise UsageError("a weak ranker needs features: numeric columns beside query, document and label.")
    if n_queries > known:
        raise UsageError(f"a weak ranker cannot be trained on {n_queries} queries: the labels hold {known}.")
    chosen = random_stream(options, TRAINING).choice(known, n_queries, replace=False)
    rows = np.isin(np.repeat(np.arange(known), judgements.n_docs), chosen)
    deviation = features.std(axis=0)
    standardised = (features - features.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    x, y = standardised[rows], judgements.label[rows]
    penalised = x.T @ x / len(y) + RIDGE * np.eye(x.shape[1])
    slopes = cast("Floats", np.linalg.solve(penalised, x.T @ (y - y.mean()) / len(y)))
    predicted: Floats = np.matmul(standardised, slopes)
    spread = float(np.ptp(predicted)) or 1.0
    return (predicted - predicted.min()) / spread
