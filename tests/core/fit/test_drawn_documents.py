"""Documents are named where their click rate is surely something else than their attractiveness."""

import polars as pl

from posbias.core.fit.plot_data import document_differences


def table(rows: list[tuple[str, int, int, float, float]]) -> pl.LazyFrame:
    """Rows of attractiveness."""
    return pl.DataFrame(rows, ["doc", "impressions", "clicks", "attractiveness", "std_dev"], orient="row").lazy()


def test_the_surest_differences_come_first() -> None:
    documents, outside, underrated = document_differences(
        table(
            [
                ("agrees", 100, 50, 0.52, 0.05),
                ("low", 100, 10, 0.60, 0.05),
                ("lower", 100, 10, 0.60, 0.01),
                ("unsure", 100, 10, 0.60, 0.40),
                ("high", 100, 90, 0.50, 0.05),
            ]
        ),
        ["doc"],
        10,
    )

    assert underrated["doc"].to_list() == ["lower", "low"]
    assert (documents, outside) == (5, 3)


def test_documents_that_were_hardly_shown_and_values_that_cannot_be_are_left_out() -> None:
    nan = float("nan")
    documents, _, underrated = document_differences(
        table(
            [("new", 9, 9, 0.5, 0.01), ("odd", 10, 20, 0.5, 0.01), ("nan", 50, 1, nan, 0.01), ("bad", 50, 1, 0.5, nan)]
        ),
        ["doc"],
        10,
    )

    assert documents == 0
    assert underrated.height == 0


def test_only_so_many_are_named() -> None:
    many = [(f"{number:03}", 100, 10, 0.6, 0.01) for number in range(100)]
    _, outside, underrated = document_differences(table(many), ["doc"], 15)

    assert underrated.height == 15
    assert outside == 100
