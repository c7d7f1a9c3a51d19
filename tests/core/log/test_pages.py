"""Pages in memory are those of the same rows on disk, sound or not, in any order."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from posbias.core.log.pages import USUAL_PAGES, PageRejection, PageRules, pages, pages_in_memory

SETTINGS = settings(max_examples=100, deadline=None, derandomize=True)
RULES = [
    PageRules(),
    PageRules(docs_repeat=True),
    PageRules(several_queries=True),
    PageRules(several_queries=True, cell=("query",)),
]
SCHEMA = {"session": pl.String, "query": pl.Int64, "doc": pl.String, "position": pl.Int32, "click": pl.Int8}


def sound(n_pages: int, length: int) -> pl.DataFrame:
    rows = [
        (f"s{page * 7 % 31}", page % 3, f"d{(page + place) % 9}", place + 1, (page * place) % 4 == 1)
        for page in range(n_pages)
        for place in range(length)
    ]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def check(impressions: pl.DataFrame, rules: PageRules) -> pl.DataFrame:
    found = pages_in_memory(impressions, rules)
    wanted = pages(impressions.lazy(), rules).collect()
    assert found.schema == wanted.schema
    assert_frame_equal(found, wanted, check_row_order=False)
    return found


@pytest.mark.parametrize("rules", RULES, ids=repr)
@pytest.mark.parametrize(("n_pages", "length"), [(0, 0), (1, 1), (9, 1), (12, 2), (20, 9)])
def test_sound_pages(n_pages: int, length: int, rules: PageRules) -> None:
    found = check(sound(n_pages, length), rules)
    assert found.height == n_pages
    assert found["rejected"].sum() == 0


def test_a_position_is_shown_once_for_each_value_of_a_cell_and_the_last_row_is_that_of_the_last_place() -> None:
    rows = [("s", 1, "a", 1, 1), ("s", 1, "b", 2, 0), ("s", 1, "c", 1, 0), ("s", 1, "d", 2, 1)]
    shown = pl.DataFrame(rows, schema=SCHEMA, orient="row").with_columns(
        list=pl.Series(["top", "top", None, None]), row=pl.Series([1, 1, 2, 2]), same=1
    )
    repeated = int(PageRejection.REPEATED_POSITION)

    assert check(shown, PageRules(cell=("list",)))["rejected"].item() == 0
    assert check(shown, PageRules(cell=("same",)))["rejected"].item() == repeated
    assert check(shown, PageRules(cell=("row", "same")))["last_clicked"].item() == 1
    assert check(shown[:3], PageRules(cell=("row",)))["last_clicked"].item() == 0


def test_documents_with_one_hash_are_compared_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pl.Series, "hash", lambda series: series.str.len_bytes().cast(pl.UInt64))  # pyright: ignore[reportUnknownLambdaType, reportUnknownMemberType, reportUnknownArgumentType]
    found = check(sound(12, 5), USUAL_PAGES)
    assert found["rejected"].sum() == 0


def test_a_document_twice_on_a_long_page() -> None:
    page = {"session": ["s"] * 300, "query": [1] * 300, "doc": [f"d{place}" for place in range(300)]}
    long = pl.DataFrame({**page, "position": range(1, 301), "click": [0] * 300}, schema=SCHEMA)
    assert check(long, USUAL_PAGES)["rejected"].to_list() == [0]
    twice = long.with_columns(pl.when(pl.col("position") == 300).then(pl.lit("d0")).otherwise("doc").alias("doc"))
    assert check(twice, USUAL_PAGES)["rejected"].to_list() == [int(PageRejection.REPEATED_DOC)]


@pytest.mark.parametrize("rules", RULES, ids=repr)
@pytest.mark.parametrize(
    "change",
    [
        pl.when(pl.int_range(pl.len()) == 13).then(99).otherwise("query").cast(pl.Int64).alias("query"),
        pl.when(pl.int_range(pl.len()) == 13).then(pl.col("doc").shift(1)).otherwise("doc").alias("doc"),
        pl.when(pl.int_range(pl.len()) == 13).then(pl.col("position") - 1).otherwise("position").alias("position"),
        pl.when(pl.int_range(pl.len()) >= 13).then(pl.lit("s0")).otherwise("session").alias("session"),
        pl.all().reverse(),
        pl.all().sort_by("position", "session"),
    ],
    ids=["query", "doc", "position", "session", "upwards", "shuffled"],
)
def test_pages_that_are_not_sound_or_not_in_order(change: pl.Expr, rules: PageRules) -> None:
    check(sound(12, 5).with_columns(change), rules)


@pytest.mark.slow
@SETTINGS
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]),
            st.integers(1, 2),
            st.sampled_from(["x", "y", "z"]),
            st.integers(1, 3),
            st.integers(0, 1),
        ),
        max_size=12,
    ),
    st.sampled_from(RULES),
)
def test_any_rows(rows: list[tuple[str, int, str, int, int]], rules: PageRules) -> None:
    check(pl.DataFrame(rows, schema=SCHEMA, orient="row"), rules)
