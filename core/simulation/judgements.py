"""Worlds from graded labels: real queries and documents, attractiveness that follows judged relevance.

    P(click | examined) = eps + (1 - eps) (2 ** y - 1) / (2 ** y_max - 1)
    score               = w * quality + (1 - w) * noise,    noise ~ U[0, 1] once per (query, document)

where quality is y / y_max, or the prediction of a weak ranker, scaled to 0 .. 1, that was trained on a few labelled
queries. Sources: Chapelle et al. 2009; Joachims, Swaminathan & Schnabel 2017 and Ai et al. 2018 (a weak ranker logs).
"""

from dataclasses import dataclass
from typing import Literal, TypeVar, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.errors import SchemaError, UsageError
from posbias.core.simulation.clicks import graded_attractiveness
from posbias.core.simulation.options import SimulationOptions
from posbias.core.simulation.worlds import (
    NOISE,
    POPULARITY,
    SEGMENT_WORLD,
    TRAINING,
    World,
    blended_score,
    random_stream,
)

_Number = TypeVar("_Number", np.float64, np.int64)

HIGHEST_GRADE = 30
"""A higher label is a score, not a grade."""

RIDGE = 0.1
"""The weak ranker's penalty, relative to the variance of a standardised feature."""


@dataclass(frozen=True)
class JudgementOptions:
    """How labels become clicks and scores."""

    click_noise: float = 0.1  # eps in [0, 1], the probability of a click on an examined document of grade 0
    # What the ranker's quality is: `label`, the label itself; `weak`, a prediction from features
    ranker: Literal["label", "weak"] = "label"
    ranker_queries: int = 20  # number of labelled queries that the weak ranker is trained on, >= 1

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            UsageError: if an option lies outside its range.
        """
        if not 0 <= self.click_noise <= 1:
            raise UsageError(f"click_noise is {self.click_noise}; it is a probability, 0 to 1.")
        if self.ranker_queries < 1:
            raise UsageError(f"ranker_queries is {self.ranker_queries}; a ranker is trained on one query or more.")


@dataclass(frozen=True)
class Judgements:
    """Labelled documents of the queries that can fill a page, sorted by query and document."""

    query_ids: pl.Series  # length Q
    n_docs: Integers  # shape (Q,), number of documents of each query, at least as many as positions
    doc_ids: pl.Series  # length N, the documents of all queries, query by query
    label: Integers  # shape (N,), grades >= 0
    features: Floats  # shape (N, F), F may be 0
    queries_left_out: int  # number of queries with fewer documents than positions


def usable_judgements(table: pl.DataFrame, n_positions: int) -> Judgements:
    """Check a table of labels, and keep the queries that have a document for every position.

    Args:
        table: query, doc, label; every other numeric column is a feature, in which null and NaN stand for 0.
        n_positions: number of positions K of a page.

    Raises:
        SchemaError: null or repeated (query, doc), labels that are no grades, or no query with enough documents.
    """
    _check_labels(table)
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


def _check_labels(table: pl.DataFrame) -> None:
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


def judged_world(judgements: Judgements, options: SimulationOptions, how: JudgementOptions) -> World:
    """Make a world from labels.

    Which query is frequent is drawn. In each further segment, a share of the documents takes the label of another
    document of its query.

    Args:
        judgements: the labels; the world has their queries and documents, whatever the options say.
        options: the rest: seed, segments, score_weight, attractiveness_scale.
        how: from labels to clicks and scores.

    Raises:
        UsageError: there are no features, or not enough queries, to train a weak ranker.
    """
    popular = random_stream(options, POPULARITY).permutation(len(judgements.n_docs))
    start = np.cumsum(judgements.n_docs) - judgements.n_docs
    present: Flags = np.arange(int(judgements.n_docs.max())) < judgements.n_docs[:, None]
    highest = int(judgements.label.max())
    label = np.array([_by_query(_segment_label(judgements, options, g), present) for g in range(options.segments)])
    if how.ranker == "weak":
        weak = _by_query(_weak_quality(judgements, options, how.ranker_queries), present)
        quality = np.broadcast_to(weak, label.shape)
    else:
        quality = label / highest
    noise = _by_query(random_stream(options, NOISE).random(len(judgements.label)), present)
    score = np.where(present, blended_score(quality, noise, options.score_weight), -np.inf)
    attractiveness = options.attractiveness_scale * graded_attractiveness(label, highest, how.click_noise)
    return World(
        attractiveness=np.where(present, attractiveness, 0.0)[:, popular],
        score=score[:, popular],
        deviation=float(score[:, present].std()) or 1.0,
        query_ids=judgements.query_ids.gather(popular),
        doc_ids=judgements.doc_ids,
        start=start[popular],
    )


def _by_query(values: NDArray[_Number], present: Flags) -> NDArray[_Number]:
    """Lay out values of documents, shape (N,), as (Q, D), with 0 where there is no document."""
    table = np.zeros(present.shape, dtype=values.dtype)
    table[present] = values
    return table


def _segment_label(judgements: Judgements, options: SimulationOptions, segment: int) -> Integers:
    """The labels as a segment sees them, shape (N,)."""
    label, n_docs = judgements.label, judgements.n_docs
    if segment == 0:
        return label
    rng = random_stream(options, SEGMENT_WORLD, segment)
    start = np.repeat(np.cumsum(n_docs) - n_docs, n_docs)
    another = label[start + rng.integers(np.repeat(n_docs, n_docs))]
    return np.where(rng.random(len(label)) < options.segment_difference, another, label)


def _weak_quality(judgements: Judgements, options: SimulationOptions, n_queries: int) -> Floats:
    """Predict labels from features by ridge regression on a few queries; scaled to 0 .. 1, shape (N,).

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
