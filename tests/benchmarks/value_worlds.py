"""Worlds whose answer is known: real documents with judged labels, and clicks on the pages of a weak ranker.

    P(click) = theta_k gamma_d,    theta_k = k ** -eta,    gamma_d = 0.1 + 0.9 (2 ** y_d - 1) / (2 ** 4 - 1)

A ridge regression that has seen the labels of a few training queries is the logging ranker. Each session draws one of
the training queries, all as likely, and shows up to `SHOWN` of its documents in the Plackett-Luce order of
score / temperature, the scores having a standard deviation of 1: the lower the temperature, the stickier the pages.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from posbias.core.simulation.simulate import draw_clicks, graded_attractiveness

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
SHOWN = 15
HIGHEST_GRADE = 4
CLICK_NOISE = 0.1  # P(click | examined) of a document of grade 0
FOLDS = 3
LABELLED_QUERIES = 2
"""Whose labels the logging ranker was trained on."""

_SERIES = 1  # of random draws: what was chosen by looking at true labels was chosen on other ones
_RIDGE = 0.1  # relative to the variance of a standardised feature


@dataclass(frozen=True)
class Setting:
    """What a log is like.

    Attributes:
        dataset: whose documents, a key of `FILES`.
        n_sessions: pages, spread evenly over the training queries.
        eta: severity of the position bias.
        temperature: of the logging ranker.
        strength: weight of the true label in the logging score: what no feature says and the ranker knows.
        page_seeds: how many seeds the methods that read pages, the slow ones, run on as well.
    """

    dataset: str = "LightGBM"
    n_sessions: int = 30_000
    eta: float = 1.0
    temperature: float = 0.2
    strength: float = 0.0
    page_seeds: int = 0

    @property
    def examination(self) -> Floats:
        """Theta by position, shape (SHOWN,)."""
        return np.arange(1.0, SHOWN + 1) ** -self.eta


FILES = {  # LightGBM: the data of its own lambdarank example
    "LightGBM": DATA / "graded_lightgbm_example.parquet",
    "ClueWeb09": DATA / "graded_clueweb09.parquet",
}


@dataclass(frozen=True)
class Documents:
    """Judged documents, query by query; a document's number is its row.

    Attributes:
        features: shape (N, F).
        label: grades 0 .. `HIGHEST_GRADE`, shape (N,).
        query: the number of each document's query, ascending, shape (N,).
        start: where the documents of each query start, and N at the end, shape (Q + 1,).
    """

    features: NDArray[np.float32]
    label: Integers
    query: Integers
    start: Integers

    @classmethod
    def read(cls, path: Path) -> "Documents":
        """Read a file with `query_id`, `doc_id`, `label` and the features f1, f2, ..."""
        table = pl.read_parquet(path).sort("query_id", "doc_id")
        query = table["query_id"].rle_id().to_numpy().astype(np.int64)
        size = np.bincount(query)
        features = table.select(pl.selectors.matches(r"^f\d+$")).to_numpy()
        return cls(features, table["label"].to_numpy().astype(np.int64), query, np.append(0, np.cumsum(size)))

    @property
    def n_queries(self) -> int:
        """Number of queries Q."""
        return len(self.start) - 1

    def of_query(self, query: int) -> slice:
        """The documents of a query."""
        return slice(int(self.start[query]), int(self.start[query + 1]))


@dataclass(frozen=True)
class Fold:
    """One part of the queries held out, and the log of the others.

    Attributes:
        documents: of all queries.
        held_out: queries that rankers are judged on.
        training: the other queries.
        logging_score: of all documents, shape (N,).
        log: `session`, `query`, `doc`, `position`, `click`, by session and position.
    """

    documents: Documents
    held_out: Integers
    training: Integers
    logging_score: Floats
    log: pl.DataFrame


def draw_folds(documents: Documents, setting: Setting, seed: int) -> Iterator[Fold]:
    """Deal the queries into folds, and draw the log of each fold's training queries."""
    rng = np.random.default_rng(np.random.SeedSequence([_SERIES, seed]))
    queries = rng.permutation(documents.n_queries)
    for part in range(FOLDS):
        held_out = np.sort(queries[part::FOLDS])
        training = np.setdiff1d(queries, held_out)
        score = _strengthened(_logging_score(documents, training, rng), documents, setting.strength)
        log = _draw_log(documents, training, score, setting, rng)
        yield Fold(documents, held_out, training, score, log)


def _logging_score(documents: Documents, training: Integers, rng: np.random.Generator) -> Floats:
    """Predict labels from features by ridge regression on a few training queries with a relevant document."""
    relevant = [query for query in training if documents.label[documents.of_query(query)].any()]
    rows = np.isin(documents.query, rng.choice(relevant, LABELLED_QUERIES, replace=False))
    features = documents.features.astype(np.float64)
    deviation = features.std(axis=0)
    standardised = (features - features.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    x, y = standardised[rows], documents.label[rows]
    penalised = x.T @ x / len(y) + _RIDGE * np.eye(x.shape[1])
    slopes = cast("Floats", np.linalg.solve(penalised, x.T @ (y - y.mean()) / len(y)))
    score = cast("Floats", standardised @ slopes)
    return score / score.std()


def _strengthened(score: Floats, documents: Documents, strength: float) -> Floats:
    """A score that mixes in the true label, its standard deviation 1 again."""
    if not strength:
        return score
    label = documents.label.astype(np.float64)
    mixed = (1 - strength) * score + strength * (label - label.mean()) / label.std()
    return mixed / mixed.std()


def _draw_log(
    documents: Documents, training: Integers, score: Floats, setting: Setting, rng: np.random.Generator
) -> pl.DataFrame:
    gamma = graded_attractiveness(documents.label, HIGHEST_GRADE, CLICK_NOISE)
    visits = np.bincount(rng.integers(len(training), size=setting.n_sessions), minlength=len(training))
    first_session = np.cumsum(visits) - visits
    parts = list[pl.DataFrame]()
    for query, n_pages, session in np.column_stack([training, visits, first_session]).tolist():
        start, end = documents.start[query : query + 2].tolist()
        shown = min(end - start, SHOWN)
        race = score[start:end] / setting.temperature + rng.gumbel(size=(n_pages, end - start))
        doc: Integers = start + np.argsort(-race, axis=1)[:, :shown]
        click = draw_clicks(gamma[doc], setting.examination[:shown], rng)
        page, place = np.indices(doc.shape)
        columns = {
            "session": session + page,
            "query": np.full(doc.shape, query),
            "doc": doc,
            "position": place + 1,
            "click": click,
        }
        parts.append(pl.DataFrame({name: values.ravel() for name, values in columns.items()}))
    return pl.concat(parts, rechunk=True).cast(
        {"session": pl.Int32, "query": pl.Int32, "doc": pl.Int32, "position": pl.Int32}
    )
