"""Make the sample web search log: real queries and judged documents, simulated sessions, known propensities.

    python sample_logs/make_sample.py graded_dbpedia_entity_qrels.parquet [DIRECTORY]

writes web_search.parquet, web_search_truth.parquet and web_search_features.parquet into DIRECTORY (default: beside this
script).

In every session the ranker sorts all judged documents of the query by

    score = RANKER_SKILL * label / highest + (1 - RANKER_SKILL) * noise + jitter

where noise is drawn once per (query, document), the ranker's standing errors, and jitter once per impression:
documents of nearly equal score change places from session to session. Users follow the position-based model,

    P(click) = theta_position * (CLICK_NOISE + (1 - CLICK_NOISE) (2 ** label - 1) / (2 ** highest - 1)).

The features of a (query, document) are drawn too: two that follow the label, with noise, and one that does not; and
the collection that the query is from, which is real.
"""

import sys
from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from posbias.core.simulation.worlds import draw_clicks, graded_attractiveness

SEED = 20260105
FIRST_DAY = date(2026, 1, 5)  # a Monday
SESSIONS_PER_DAY = (5_600, 5_500, 5_300, 5_200, 4_700, 3_100, 3_400)
QUERY_EXPONENT = 1.0  # Zipf: the first query has a seventh of the sessions, the last one a handful
RANKER_SKILL = 0.3
JITTER = 0.04
CLICK_NOISE = 0.1
FEATURE_NOISE = {"text_match": 0.5, "link_score": 1.0}  # standard deviation; label / highest lies in [0, 1]
# Not a power law: flat below the fold, and the last result is seen more than the one above it.
THETA = np.array([1.0, 0.76, 0.61, 0.46, 0.39, 0.35, 0.26, 0.23, 0.20, 0.22])


def main() -> None:
    """Read the judgements named on the command line and write the three files."""
    qrels = pl.read_parquet(sys.argv[1])
    directory = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent  # noqa: PLR2004
    log = web_search_log(qrels)
    log.write_parquet(directory / "web_search.parquet", compression="zstd", compression_level=19)
    truth().write_parquet(directory / "web_search_truth.parquet", compression="zstd")
    features(qrels, log).write_parquet(directory / "web_search_features.parquet", compression="zstd")
    rate = log.group_by("position").agg(pl.len(), pl.mean("click")).sort("position")
    print(f"{log.height:,} rows, {log.select('query', 'doc').n_unique():,} (query, document) pairs", rate)


def truth() -> pl.DataFrame:
    """Return the propensities that the log was drawn with: position, propensity (relative to position 1)."""
    position = np.arange(1, len(THETA) + 1, dtype=np.int32)
    return pl.DataFrame({"position": position, "propensity": THETA / THETA[0]})


def features(qrels: pl.DataFrame, log: pl.DataFrame) -> pl.DataFrame:
    """Draw the features of the pairs of a log.

    Args:
        qrels: judgements: query_id, doc_id, label (0 .. highest).
        log: query, doc.

    Returns:
        One row per pair, sorted: query, doc, text_match, link_score, freshness (Float32), collection (text).
    """
    rng = np.random.default_rng(SEED + 1)
    judged = qrels.select(query="query_id", doc="doc_id", label="label")
    pairs = log.select("query", "doc").unique().join(judged, on=["query", "doc"]).sort("query", "doc")
    quality = (pairs["label"] / pairs["label"].max()).to_numpy()
    drawn = {name: quality + noise * rng.standard_normal(pairs.height) for name, noise in FEATURE_NOISE.items()}
    return pairs.select("query", "doc").with_columns(
        *(pl.Series(name, values, pl.Float64).cast(pl.Float32) for name, values in drawn.items()),
        pl.Series("freshness", rng.random(pairs.height)).cast(pl.Float32),
        collection=pl.col("query").str.extract(r"^([A-Za-z]+)"),
    )


def web_search_log(qrels: pl.DataFrame) -> pl.DataFrame:
    """Draw the log.

    Args:
        qrels: judgements: query_id, doc_id, label (0 .. highest).

    Returns:
        One row per impression, sorted by session and position: session, query, doc, position, click, date.
        Sessions are numbered in the order of time.
    """
    rng = np.random.default_rng(SEED)
    highest = int(qrels["label"].to_numpy().max())
    day = np.repeat(np.arange(len(SESSIONS_PER_DAY)), SESSIONS_PER_DAY)
    pages: list[pl.DataFrame] = []
    for query, sessions in _sessions_by_query(qrels, len(day), rng):
        judged = qrels.filter(query_id=query).sort("doc_id")
        label = judged["label"].to_numpy()
        doc = _rank(label / highest, len(sessions), rng)
        click = draw_clicks(graded_attractiveness(label[doc], highest, CLICK_NOISE), THETA, rng)
        pages.append(
            pl.DataFrame(
                {
                    "session": np.repeat(sessions.astype(np.int32) + 1, len(THETA)),
                    "query": pl.repeat(query, doc.size, eager=True),
                    "doc": judged["doc_id"].gather(doc.ravel()),
                    "position": np.tile(np.arange(1, len(THETA) + 1, dtype=np.int32), len(sessions)),
                    "click": click.ravel(),
                    "date": pl.Series(np.repeat(day[sessions], len(THETA))),
                }
            )
        )
    calendar = pl.lit(FIRST_DAY) + pl.duration(days="date")
    return pl.concat(pages).with_columns(date=calendar).sort("session", "position")


def _sessions_by_query(
    qrels: pl.DataFrame, n_sessions: int, rng: np.random.Generator
) -> list[tuple[str, NDArray[np.int64]]]:
    """Return the sessions of each query that is asked at all; which query is popular is drawn, too."""
    judged = qrels.group_by("query_id").len().filter(pl.col("len") >= len(THETA))
    queries = rng.permutation(judged["query_id"].sort().to_numpy())
    frequency = np.arange(1.0, len(queries) + 1) ** -QUERY_EXPONENT
    asked = rng.choice(len(queries), n_sessions, p=frequency / frequency.sum())
    sessions = [(str(query), np.flatnonzero(asked == index)) for index, query in enumerate(queries)]
    return [(query, of_query) for query, of_query in sessions if len(of_query)]


def _rank(quality: NDArray[np.float64], n_sessions: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Rank the documents of one query anew in every session.

    Args:
        quality: shape (D,), label / highest.
        n_sessions: number of sessions S.
        rng: source of randomness.

    Returns:
        Shape (S, K): the documents in the order of their positions.
    """
    score = RANKER_SKILL * quality + (1 - RANKER_SKILL) * rng.random(len(quality))
    shown = score + JITTER * rng.standard_normal((n_sessions, len(quality)))
    return np.argsort(-shown, axis=1)[:, : len(THETA)]


if __name__ == "__main__":
    main()
