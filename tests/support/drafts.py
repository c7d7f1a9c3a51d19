"""Interleaved logs by team draft (Radlinski, Kurup & Joachims 2008), of rankers that differ, or do not."""

from functools import cache

import numpy as np
import polars as pl


@cache
def drafted(
    seed: int,
    pages: int = 400,
    *,
    queries: int = 40,
    positions: int = 6,
    strength: tuple[float, float] = (2.0, 2.0),
    users: int = 150,
) -> pl.DataFrame:
    """A row per impression: `session`, `query`, `doc`, `position`, `click`, `team`, `rank_a`, `rank_b`, `user`, `day`.

    P(click) = attractiveness / position. A ranker orders by strength times attractiveness and noise of its own; two of
    infinite strength are the same.
    """
    rng, docs = np.random.default_rng(seed), positions + 4
    attractiveness = rng.beta(1, 2, (queries, docs))
    ranks = [np.argsort(np.argsort(-_scores(rng, attractiveness, of), axis=1), axis=1) + 1 for of in strength]
    rows = list[tuple[object, ...]]()
    for session in range(pages):
        query, shown, teams = int(rng.integers(queries)), list[int](), list[int]()
        while len(shown) < positions:
            for team in rng.permutation(2).tolist():
                left = [doc for doc in range(docs) if doc not in shown]
                shown.append(min(left, key=lambda doc: ranks[team][query, doc]))
                teams.append(team)
        clicks = rng.random(positions) < attractiveness[query, shown] / np.arange(1, positions + 1)
        for place, (doc, team, click) in enumerate(zip(shown, teams, clicks.tolist(), strict=True)):
            of_doc = (int(ranks[0][query, doc]), int(ranks[1][query, doc]))
            page = (session, f"q{query}", f"d{doc}", place + 1, int(click), "AB"[team], *of_doc)
            rows.append((*page, session % users, f"2026-01-{1 + session * 5 // pages:02d}"))
    names = ("session", "query", "doc", "position", "click", "team", "rank_a", "rank_b", "user", "day")
    return pl.DataFrame(rows, names, orient="row").with_columns(pl.col("day").str.to_date())


def _scores(rng: np.random.Generator, attractiveness: np.ndarray, strength: float) -> np.ndarray:
    noise = rng.standard_normal(attractiveness.shape)
    return attractiveness if np.isinf(strength) else strength * attractiveness + noise
