"""Of a document that stands twice on a page, the first row counts with its own click, and no propensity is biased."""

import polars as pl

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
