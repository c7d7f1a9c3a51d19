"""By how much labels of one query are off where its documents are unevenly shown in contexts: by the definitions."""

import numpy as np
import polars as pl
import pytest
from small_logs import dense_table

from posbias.core.arrays.count_table import Floats
from posbias.core.training.scales import (
    CONTEXT,
    EXPOSURE,
    LARGEST_ERROR_OF_LABELS,
    ON_PAGE,
    ScalesOfContexts,
    context_scales,
    counts_of_signatures,
    judge_scales,
    match_contexts,
    pairs_on_page,
    unevenness,
)


def counts_of(log: pl.DataFrame) -> pl.DataFrame:
    """The counts of documents by context of a log with positions, where theta is 1 / position."""
    return log.group_by("query", "doc", CONTEXT, maintain_order=True).agg(
        pl.len().alias("impressions"),
        pl.col("click").sum().alias("clicks"),
        (1 / pl.col("position")).sum().alias(EXPOSURE),
        (2 * pl.col("position") - 1).sum().alias(ON_PAGE),
    )


def pages(
    seed: int, queries: int = 30, number: int = 20, *, uneven: float = 0.0, ratio: float = 1.0, shown: int = 3
) -> pl.DataFrame:
    """Pages of 3 of 6 documents in two contexts, or more in the first; they may be favoured and clicked unevenly."""
    rng, places = np.random.default_rng(seed), np.arange(shown) + 1
    context = rng.integers(0, 2, (queries, number))
    score = rng.gumbel(size=(queries, number, 6))
    score += uneven * np.take_along_axis(rng.normal(size=(queries, 2, 6)), context[:, :, np.newaxis], axis=1)
    doc = np.argsort(-score, axis=2)[:, :, :shown]
    chance = 0.8 / places * np.where(context, ratio, 1.0)[:, :, np.newaxis]
    click = rng.random(chance.shape) < chance
    page = np.repeat(np.arange(queries * number), shown)
    return pl.DataFrame(
        {
            "query": page // number,
            "page": page,
            "doc": doc.ravel(),
            "position": np.tile(places, queries * number),
            "click": click.ravel().astype(np.int8),
            CONTEXT: context.ravel()[page],
        }
    ).filter((pl.col(CONTEXT) == 0) | (pl.col("position") <= 3))


def judged(counts: pl.DataFrame) -> ScalesOfContexts:
    """What counts of two contexts say, of which 0 has most impressions."""
    matched = match_contexts(counts, 0, 2)
    scale = context_scales(matched, 0)
    unknown = np.isnan(scale)
    apart = [unevenness(counts, np.where(unknown, 0.5, 1.0))] if unknown.any() else []
    return judge_scales(scale, matched, np.zeros(2), [unevenness(counts, np.where(unknown, 1.0, scale))], apart)


def test_the_ratio_of_contexts_is_that_of_the_same_documents() -> None:
    log = pages(0, ratio=0.4)
    counts = counts_of(log)
    of_query = np.zeros((30, 2))
    for (query, _), document in counts.group_by("query", "doc"):
        rows = {row[CONTEXT]: row for row in document.iter_rows(named=True)}
        if len(rows) == 2:
            both = rows[0][EXPOSURE] + rows[1][EXPOSURE]
            of_query[query, 0] += rows[1]["clicks"] * rows[0][EXPOSURE] / both  # type: ignore[call-overload]
            of_query[query, 1] += rows[0]["clicks"] * rows[1][EXPOSURE] / both  # type: ignore[call-overload]
    above, below = of_query.sum(axis=0)
    difference, both = of_query @ [1, -1], of_query.sum(axis=1)
    matched = match_contexts(counts, 0, 2)

    np.testing.assert_allclose(matched[:, :2], [[0, 0], [above, below]])
    np.testing.assert_allclose(matched[1, 2:], [(difference**2).sum(), both.sum(), (both**2).sum()])
    np.testing.assert_allclose(context_scales(matched, 0), [1, above / below])
    assert context_scales(matched, 0)[1] == pytest.approx(0.4, rel=0.15)
    assert np.isnan(context_scales(np.zeros((2, 5)), 0)[1])


def brute_force(log: pl.DataFrame, scale: Floats) -> Floats:
    """T, U and the impressions of documents with several, by query: impression by impression and page by page."""
    found = list[tuple[float, float, float]]()
    for _, rows in log.group_by("query", maintain_order=True):
        factors = scale[rows[CONTEXT].to_numpy()]
        centred = rows.with_columns(x=pl.Series(factors / factors.mean() - 1))
        on_pages = centred.group_by("page").agg(pl.len(), pl.col("x").first())
        number, x = on_pages["len"].to_numpy(), on_pages["x"].to_numpy()
        chance = (number**2 * x**2).sum() / (number.sum() ** 2 - (number**2).sum())
        t = u = several = 0.0
        for _, document in centred.group_by("doc"):
            own, n = np.outer(document["x"], document["x"]), document.height
            np.fill_diagonal(own, 0)
            t += own.sum() / (n - 1) + n * chance if n > 1 else 0.0
            u += (own.sum() + n * (n - 1) * chance) / rows.height
            several += n * (n > 1)
        found.append((t, u, several))
    return np.array(found)


@pytest.mark.parametrize("shown", [3, 5])
def test_what_is_uneven_is_counted_by_the_definition(shown: int) -> None:
    log, scale = pages(1, uneven=1.0, shown=shown), np.array([1.0, 0.5])
    t, u, number = brute_force(log, scale).T

    sums = unevenness(counts_of(log), scale)
    expected = [t.sum(), u.sum(), (u**2).sum(), number.sum(), (number**2).sum()]
    np.testing.assert_allclose(sums[:, 0], expected, rtol=1e-9)
    halves = [unevenness(counts_of(log.filter(pl.col("query") % 2 == half)), scale) for half in range(2)]
    np.testing.assert_allclose(np.sum(halves, axis=0), sums)
    found = judge_scales(scale, match_contexts(counts_of(log), 0, 2), np.zeros(2), halves, [])
    assert found.error == pytest.approx(np.sqrt(t.sum() / number.sum()))


def test_documents_that_one_context_cuts_off_are_shown_unevenly() -> None:
    rows = [(d, c, 100, 100 * (2 * d + 1)) for d in range(6) for c in range(2) if c == 0 or d < 3]
    one = pl.DataFrame(rows, ["doc", CONTEXT, "impressions", ON_PAGE], orient="row")
    counts = pl.concat([one.with_columns(query=query) for query in range(20)])
    total, _, _, weight, _ = unevenness(counts, np.array([1.0, 0.4]))[:, 0]

    factors, shown = np.array([0.7, 1.0]), np.array([600, 300])
    off = factors / np.average(factors, weights=shown) - 1
    assert np.sqrt(total / weight) == pytest.approx(np.sqrt(np.average(off**2, weights=shown)), rel=0.01)


@pytest.mark.parametrize("shown", [3, 5])
@pytest.mark.parametrize(("uneven", "ratio", "matter"), [(0.0, 0.4, False), (1.0, 1.0, False), (1.0, 0.4, True)])
def test_labels_are_off_where_documents_are_shown_unevenly_and_clicked_unevenly(
    uneven: float, ratio: float, shown: int, *, matter: bool
) -> None:
    found = judged(counts_of(pages(3, queries=200, number=40, uneven=uneven, ratio=ratio, shown=shown)))

    assert found.matter is matter


def test_a_ratio_that_may_be_one_puts_nothing_off() -> None:
    counts = counts_of(pages(1, queries=60, number=20, uneven=3.0, ratio=0.6))
    matched, scale = match_contexts(counts, 0, 2), context_scales(match_contexts(counts, 0, 2), 0)
    sums = [unevenness(counts, scale)]
    assert judge_scales(scale, matched, np.zeros(2), sums, []).matter
    assert not judge_scales(scale, matched, np.array([0.0, 0.4]), sums, []).matter

    found = [judged(counts_of(pages(seed, queries=20, number=8, uneven=3.0))) for seed in range(60)]

    assert np.mean([of.error >= LARGEST_ERROR_OF_LABELS for of in found]) > 0.05
    assert not any(of.matter for of in found)


@pytest.mark.parametrize("uneven", [0.0, 2.0])
def test_where_no_document_is_clicked_in_two_contexts_no_error_is_known(uneven: float) -> None:
    log = pages(4, uneven=uneven).with_columns(click=pl.when(pl.col(CONTEXT) == 0).then("click").otherwise(0))
    found = judged(counts_of(log))

    assert found.matter is (uneven > 0)
    assert np.isnan(found.error)


def test_signatures_say_what_their_documents_count() -> None:
    table = dense_table(np.array([[4.0, 2, 0], [0, 1, 3]]), np.array([[2.0, 1, 0], [0, 0, 1]]))
    on_page = pairs_on_page(np.array([3.0, 4, 3]), np.array([0, 0, 1]))

    np.testing.assert_array_equal(on_page, [3, 1, 1])
    found = counts_of_signatures(table, np.array([1.0, np.nan, 0.5]), on_page)
    np.testing.assert_allclose(found, [[2, 4, 14], [1, 1.5, 4]])
