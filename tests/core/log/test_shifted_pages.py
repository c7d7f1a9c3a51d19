"""Pages that count their positions from another base than most."""

import polars as pl
import pytest

from posbias.core.check import PageFacts, page_facts
from posbias.core.log.pages import FEWEST_PAGES, ShiftedPages

Span = tuple[int, int]


def facts(pages: dict[Span, int], cell: tuple[str, ...] = ()) -> PageFacts:
    """Facts of so many pages from and to so many positions; those that do not start at 1 are below an advert."""
    rows = [
        (f"{first}-{last}-{number}", position, 0, first > 1)
        for (first, last), many in pages.items()
        for number in range(many)
        for position in range(first, last + 1)
    ]
    schema = {"session": pl.String, "position": pl.Int32, "click": pl.Int8, "advert": pl.Boolean}
    return page_facts(pl.DataFrame(rows, schema=schema, orient="row"), cell)


def found(pages: dict[Span, int]) -> ShiftedPages | None:
    """The pages of these that are shifted."""
    return facts(pages).shifted


def test_pages_below_an_advert_that_is_named_are_not_shifted_and_do_not_start_late() -> None:
    pages = {(1, 10): 300, (2, 11): 60}

    assert facts(pages).shifted == ShiftedPages(60, 360, (2, 11), (1, 10))
    assert facts(pages).starting_late == 60
    assert facts(pages, ("advert",)).shifted is None
    assert facts(pages, ("advert",)).starting_late == 0
    assert facts(pages | {(3, 12): 40}, ("advert",)).shifted == ShiftedPages(40, 100, (3, 12), (2, 11))


def test_results_below_others_of_the_same_list_do_not_start_late() -> None:
    sponsored = [True, True, False, False] * 9 + [False] * 4
    page = pl.DataFrame({"position": [1, 2, 3, 4] * 10, "sponsored": sponsored, "click": 0})
    page = page.with_columns(session=pl.int_range(40) // 4)

    assert page_facts(page, ("sponsored",)).starting_late == 0


@pytest.mark.parametrize("shift", [1, 2, -1, -2])
def test_pages_that_start_and_end_so_much_later_or_earlier_are_shifted(shift: int) -> None:
    usual, other = (3, 10), (3 + shift, 10 + shift)
    assert found({usual: 300, other: 60}) == ShiftedPages(60, 360, other, usual)


def test_pages_of_all_lengths_are_shifted_where_they_reach_the_later_end_as_often() -> None:
    pages = {(1, 10): 200, (1, 7): 100, (1, 4): 100, (2, 11): 50, (2, 8): 25, (2, 5): 25}
    assert found(pages) == ShiftedPages(50, 500, (2, 11), (1, 10))


NOT_SHIFTED: dict[str, dict[Span, int]] = {
    "nothing": {},
    "pages of one row": {(1, 1): 100},
    "all alike": {(1, 10): 500},
    "without the top result": {(1, 10): 300, (2, 10): 200},
    "second pages": {(1, 10): 300, (11, 20): 200},
    "of two lengths": {(1, 10): 300, (1, 11): 200, (2, 11): 100},
    "a few": {(1, 10): 300, (2, 11): FEWEST_PAGES - 1},
    "ends that are seldom reached": {(1, 10): 300, (2, 10): 100, (2, 11): 40},
    "no usual end": {(1, last): 100 for last in range(2, 30)} | {(2, last): 50 for last in range(3, 30)},
}


@pytest.mark.parametrize("pages", NOT_SHIFTED.values(), ids=NOT_SHIFTED)
def test_pages_that_lack_their_top_or_end_early_are_not_shifted(pages: dict[Span, int]) -> None:
    assert found(pages) is None
