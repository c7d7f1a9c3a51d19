"""Logs of experiments whose truth is known: rankers that know the user, learn from clicks, or do neither."""

from typing import Literal

import numpy as np
import polars as pl

Ranker = Literal["fixed", "knows the user", "others know the user", "learns", "each arm learns"]

ETA = 0.8
"""Propensities are position ** -ETA."""


def log_of_arms(  # noqa: PLR0913 - a world has many sides
    ranker: Ranker,
    seed: int,
    *,
    arms: int = 2,
    queries: int = 300,
    pages: int = 120,
    spread: float = 0.45,
    level: float = 1.0,
    pictured: float = 1.0,
    lift: float = 0.0,
    strength: float = 4.0,
) -> pl.DataFrame:
    """Pages of 8 of 12 documents for each query, one page an hour, each in an arm drawn at random.

    Args:
        ranker: by what it ranks, beside the arm: a fixed score, the taste of two segments (in all arms, or in all but
            the first), the click rates so far, or those of the page's own arm.
        seed: of the draws.
        arms: how many there are.
        queries: how many there are.
        pages: of each query.
        spread: by how much arms move scores.
        level: how often a document is clicked in the other arms, relative to the first.
        pictured: the share of the documents for which that holds.
        lift: by how much more these score in the other arms.
        strength: how much a ranker that learns goes by click rates.

    Returns:
        `session`, `query`, `doc`, `position`, `click`, `arm`, `segment` and `timestamp`.
    """
    rng, docs, shown = np.random.default_rng(seed), 12, 8
    size, query, place = (queries, docs), np.arange(queries), np.arange(shown)
    attractive, taste = rng.beta(1.2, 3, size) * 0.8, rng.beta(1.2, 3, (2, *size)) * 0.8
    of_arm, of_all = rng.normal(0, spread, (arms, *size)), rng.normal(0, 0.3, size)
    has_picture = rng.random(size) < pictured
    of_arm[1:] += lift * has_picture
    factor = np.ones((arms, *size))
    factor[1:] = np.where(has_picture, level, 1.0)
    groups = arms if ranker == "each arm learns" else 1
    impressions, clicks = np.full((groups, *size), 5.0), np.full((groups, *size), 5 * attractive.mean())
    columns = list[tuple[np.ndarray, ...]]()
    for _ in range(pages):
        arm, segment = rng.integers(0, arms, queries), rng.integers(0, 2, queries)
        group = arm if groups > 1 else np.zeros_like(arm)
        if ranker == "fixed":
            wanted, score = attractive, 1.2 * attractive + of_all + rng.normal(0, 0.25, size)
        elif ranker == "knows the user":
            wanted = taste[segment, query]
            score = 1.2 * wanted + rng.normal(0, 0.1, size)
        elif ranker == "others know the user":
            wanted = taste[segment, query]
            known = np.where(arm[:, np.newaxis] > 0, wanted, taste.mean(axis=0)[query])
            score = 1.2 * known + of_all + rng.normal(0, 0.1, size)
        else:
            wanted, rate = attractive, (clicks / impressions)[group, query]
            score = strength * rate + rng.normal(0, 0.02, size)
        doc = np.argsort(-score - of_arm[arm, query], axis=1)[:, :shown]
        rows = query[:, np.newaxis], doc
        chance = (wanted * factor[arm, query])[rows] * (place + 1.0) ** -ETA
        click = rng.random(chance.shape) < np.minimum(chance, 1)
        np.add.at(impressions, (group[:, np.newaxis], *rows), 1)
        np.add.at(clicks, (group[:, np.newaxis], *rows), click)
        columns.append((doc, click, arm, segment))
    doc, click, arm, segment = (np.stack(of) for of in zip(*columns, strict=True))
    page = np.repeat(np.arange(pages * queries), shown)
    return pl.DataFrame(
        {
            "session": page,
            "query": page % queries,
            "doc": doc.ravel(),
            "position": np.tile(place + 1, pages * queries),
            "click": click.ravel().astype(np.int8),
            "arm": pl.Series(arm.ravel()[page]).replace_strict(dict(enumerate("ABCDEFGH"[:arms]))),
            "segment": segment.ravel()[page],
        }
    ).with_columns(timestamp=pl.datetime(2026, 1, 5) + pl.duration(hours=pl.col("session") // queries))
