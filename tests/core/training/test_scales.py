"""By how much labels of one query are off where its documents are unevenly shown in contexts: by the definitions."""

import numpy as np
import polars as pl
import pytest

from posbias.core.arrays.count_table import CountTable, Floats
from posbias.core.training.scales import (
    AT_TOP,
    CONTEXT,
    EXPOSURE,
    counts_of_signatures,
    match_contexts,
    most_shown,
    scale_of,
    scales_from,
    unevenness,
)


def counts_of(log: pl.DataFrame) -> pl.DataFrame:
    """The counts of documents by context of a log with positions, where theta is 1 / position."""
    first = pl.col("position") == 1
    return log.group_by("query", "doc", CONTEXT, maintain_order=True).agg(
        pl.len().alias("impressions"),
        pl.col("click").sum().alias("clicks"),
        (1 / pl.col("position")).sum().alias(EXPOSURE),
        first.sum().alias(AT_TOP),
    )


def pages(seed: int, queries: int = 30, number: int = 20, *, uneven: float = 0.0, ratio: float = 1.0) -> pl.DataFrame:
    """Pages of 3 of 6 documents in two contexts, in which they may be favoured unevenly and clicked more seldom."""
    rng = np.random.default_rng(seed)
    context = rng.integers(0, 2, (queries, number))
    score = rng.gumbel(size=(queries, number, 6))
    score += uneven * np.take_along_axis(rng.normal(size=(queries, 2, 6)), context[:, :, np.newaxis], axis=1)
    doc = np.argsort(-score, axis=2)[:, :, :3]
    chance = 0.8 / np.arange(1, 4) * np.where(context, ratio, 1.0)[:, :, np.newaxis] * np.ones(3)
    click = rng.random(chance.shape) < chance
    query = np.repeat(np.arange(queries), number * 3)
    return pl.DataFrame(
        {
            "query": query,
            "doc": doc.ravel(),
            "position": np.tile([1, 2, 3], queries * number),
            "click": click.ravel().astype(np.int8),
            CONTEXT: np.repeat(context.ravel(), 3),
        }
    )


def test_the_ratio_of_contexts_is_that_of_the_same_documents() -> None:
    log = pages(0, ratio=0.4)
    counts = counts_of(log)
    above = below = 0.0
    for _, document in counts.group_by("query", "doc"):
        rows = {row[CONTEXT]: row for row in document.iter_rows(named=True)}
        if len(rows) == 2:
            both = rows[0][EXPOSURE] + rows[1][EXPOSURE]
            above += rows[1]["clicks"] * rows[0][EXPOSURE] / both
            below += rows[0]["clicks"] * rows[1][EXPOSURE] / both
    matched = match_contexts(counts, 0, 2)

    np.testing.assert_allclose(matched, [[0, 0], [above, below]])
    np.testing.assert_allclose(scale_of(matched, 0), [1, above / below])
    assert scale_of(matched, 0)[1] == pytest.approx(0.4, rel=0.15)
    assert np.isnan(scale_of(np.zeros((2, 2)), 0)[1])


def brute_force(log: pl.DataFrame, scale: Floats) -> dict[int, float]:
    """T of each query, impression by impression and page by page."""
    found = dict[int, float]()
    for (query,), rows in log.group_by("query"):
        of_pages = scale[rows.filter(pl.col("position") == 1)[CONTEXT].to_numpy()]
        products = np.outer(of_pages, of_pages)
        np.fill_diagonal(products, 0)
        expected = products.sum() / (len(of_pages) * (len(of_pages) - 1))
        total = 0.0
        for _, document in rows.group_by("doc"):
            factors = scale[document[CONTEXT].to_numpy()]
            n, own = len(factors), np.outer(factors, factors)
            np.fill_diagonal(own, 0)
            total += n * (own.sum() / (n * (n - 1)) - expected) if n > 1 else 0.0
        found[query] = total / of_pages.mean() ** 2  # type: ignore[index]
    return found


def test_what_is_uneven_is_counted_by_the_definition() -> None:
    log, scale = pages(1, uneven=1.0), np.array([1.0, 0.5])
    t = np.array(list(brute_force(log, scale).values()))
    several = log.group_by("query", "doc").len().filter(pl.col("len") > 1)
    shown = several.group_by("query").agg(pl.col("len").sum())["len"].to_numpy().astype(np.float64)

    sums = unevenness(counts_of(log), scale)
    np.testing.assert_allclose(sums, [t.sum(), (t**2).sum(), shown.sum(), (shown**2).sum()], rtol=1e-9)
    halves = [unevenness(counts_of(log.filter(pl.col("query") % 2 == half)), scale) for half in range(2)]
    np.testing.assert_allclose(np.sum(halves, axis=0), sums)
    found = scales_from(scale, halves)
    assert found.error == pytest.approx(np.sqrt(t.sum() / shown.sum()))


def test_contexts_that_are_drawn_page_by_page_are_uneven_by_chance_alone() -> None:
    log, rng, sums = pages(2, queries=4, number=6), np.random.default_rng(0), np.empty(500)
    page = np.arange(log.height) // 3
    for draw in range(len(sums)):
        drawn = log.with_columns(pl.Series(CONTEXT, rng.integers(0, 2, len(page))[page]))
        sums[draw] = unevenness(counts_of(drawn), np.array([1.0, 0.3]))[0]

    assert abs(np.mean(sums)) < 3 * np.std(sums) / np.sqrt(len(sums))


@pytest.mark.parametrize(("uneven", "ratio", "matter"), [(0.0, 0.4, False), (1.0, 1.0, False), (1.0, 0.4, True)])
def test_labels_are_off_where_documents_are_shown_unevenly_and_clicked_unevenly(
    uneven: float, ratio: float, *, matter: bool
) -> None:
    counts = counts_of(pages(3, queries=200, number=40, uneven=uneven, ratio=ratio))
    scale = scale_of(match_contexts(counts, 0, 2), 0)

    assert scales_from(scale, [unevenness(counts, scale)]).matter is matter


def test_signatures_say_what_their_documents_count() -> None:
    table = CountTable.from_dense(np.array([[4.0, 2, 0], [0, 1, 3]]), np.array([[2.0, 1, 0], [0, 0, 1]]))
    at_top = most_shown(np.array([4.0, 3, 3]), np.array([0, 0, 1]))

    np.testing.assert_array_equal(at_top, [0, 2])
    found = counts_of_signatures(table, np.array([1.0, np.nan, 0.5]), at_top)
    np.testing.assert_allclose(found, [[2, 4, 4], [1, 1.5, 3]])
