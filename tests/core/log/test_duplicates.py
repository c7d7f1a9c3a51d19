"""Of a document that stands twice on a page, the first row counts with its own click, and no propensity is biased."""

import numpy as np
import polars as pl
import pytest

from posbias.core.log.impressions import REJECTED
from posbias.core.log.pages import PageRejection, PageRules, mark_repeats, pages

ABOVE, BELOW, COPY = (
    int(fault) for fault in (PageRejection.SHOWN_ABOVE, PageRejection.BELOW_SHOWN_ABOVE, PageRejection.COPY)
)


def marked(rows: list[tuple[int, str, int, int]], *, clicks_above_matter: bool) -> list[int]:
    """What is said of rows (session, doc, position, click), in their order."""
    frame = pl.DataFrame(rows, schema=["session", "doc", "position", "click"], orient="row").with_columns(
        query=pl.lit("q"), row=pl.int_range(pl.len())
    )
    found = mark_repeats(
        frame.sample(fraction=1.0, shuffle=True, seed=1).lazy(), clicks_above_matter=clicks_above_matter
    )
    return found.sort("row").collect()[REJECTED].to_list()


PAGE = [(1, "a", 1, 0), (1, "b", 2, 1), (1, "a", 4, 1), (1, "c", 5, 0), (1, "a", 6, 0), (2, "a", 9, 1), (2, "c", 11, 0)]


def test_rows_after_the_first_of_a_document_are_marked_whatever_their_order() -> None:
    assert marked(PAGE, clicks_above_matter=False) == [0, 0, ABOVE, 0, ABOVE, 0, 0]


def test_what_is_below_a_click_that_is_left_out_is_marked_where_clicks_above_matter() -> None:
    assert marked(PAGE, clicks_above_matter=True) == [0, 0, ABOVE, BELOW, ABOVE, 0, 0]
    unclicked = [(1, "a", 1, 1), (1, "a", 2, 0), (1, "b", 3, 1)]
    assert marked(unclicked, clicks_above_matter=True) == [0, ABOVE, 0]


def test_a_row_that_stands_twice_counts_once() -> None:
    assert sorted(
        marked([(1, "a", 1, 1), (1, "b", 2, 0), (1, "a", 1, 1), (1, "b", 2, 0)], clicks_above_matter=True)
    ) == [0, 0, COPY, COPY]


def test_two_rows_of_a_document_at_one_position_stay_and_make_the_page_faulty() -> None:
    rows = [(1, "a", 1, 0), (1, "a", 1, 1), (1, "b", 2, 0)]
    assert marked(rows, clicks_above_matter=False) == [0, 0, 0]
    frame = pl.DataFrame(rows, schema=["session", "doc", "position", "click"], orient="row")
    found = [
        pages(frame.with_columns(query=1).lazy(), PageRules(docs_repeat=repeat)).collect() for repeat in (False, True)
    ]
    assert [one[REJECTED].item() for one in found] == [PageRejection.REPEATED_DOC, PageRejection.REPEATED_POSITION]


def test_of_a_document_in_two_lists_the_first_place_by_position_then_by_list_counts() -> None:
    rows = [("a", 1, 0, 2), ("b", 1, 1, 1), ("a", 1, 1, 1), ("b", 2, 0, 1), ("c", 2, 0, 2), ("c", 2, 0, 2)]
    frame = pl.DataFrame(rows, schema=["doc", "position", "click", "list"], orient="row").with_columns(
        session=1, query=1, row=pl.int_range(pl.len())
    )
    found = mark_repeats(frame.lazy(), clicks_above_matter=False, cell=["list"]).sort("row").collect()
    assert found[REJECTED].to_list() == [ABOVE, 0, 0, ABOVE, 0, COPY]
    assert found.drop(REJECTED).columns == frame.columns


@pytest.mark.parametrize("model", ["pbm", "ubm"])
def test_click_rates_of_the_rows_that_count_are_those_of_the_model(model: str) -> None:
    """Pages a, b, a, c with P(click) = .5, after a click .2 in UBM: the rows that count keep these rates."""
    rng, n_pages, after = np.random.default_rng(0), 100_000, 0.5 if model == "pbm" else 0.2
    clicks = np.zeros((n_pages, 4), dtype=np.int64)
    for place in range(4):
        seen = clicks[:, :place].any(axis=1)
        clicks[:, place] = rng.random(n_pages) < np.where(seen, after, 0.5)
    log = pl.DataFrame(
        {
            "session": np.repeat(np.arange(n_pages), 4),
            "query": 0,
            "doc": np.tile(["a", "b", "a", "c"], n_pages),
            "position": np.tile([1, 2, 3, 4], n_pages),
            "click": clicks.ravel(),
        }
    )
    found = mark_repeats(log.lazy(), clicks_above_matter=model == "ubm").collect().filter(pl.col(REJECTED) == 0)
    last = found.filter(pl.col("position") == 4)
    seen = found.filter(pl.col("position") < 4).group_by("session").agg(seen=pl.col("click").max())
    rates = dict(last.join(seen, on="session").group_by("seen").agg(pl.col("click").mean()).iter_rows())
    assert rates[0] == pytest.approx(0.5, abs=0.01)
    assert rates[1] == pytest.approx(after, abs=0.01)
