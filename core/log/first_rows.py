"""Faults that the first rows of a log show: rounded ids, an order that was lost, columns that decide relevance.

All functions take canonical impressions in memory, with their sessions where the log has any.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from posbias.core.log.pages import in_page_order
from posbias.core.schema import CLICK, DOC, POSITION, QUERY, SESSION

_ROUNDED = r"^\d(\.\d+)?[eE]\+\d{2,3}$|^[1-9]\d{5}0{5,}(\.0+)?$"  # six digits, as spreadsheets show long numbers
_FEWEST_ROUNDED = 0.01  # share of the different values


def rounded_ids(ids: pl.Series) -> str | None:
    """An id of which a spreadsheet kept six digits, `4.00638E+12` or 4006380000000; None where hardly any is so."""
    if ids.dtype == pl.Binary:
        return None
    whole = ids.cast(pl.Int64, strict=False) if ids.dtype.is_numeric() else ids
    different = whole.unique(maintain_order=True).cast(pl.String)
    rounded = different.filter(different.str.contains(_ROUNDED))
    return rounded[0] if rounded.len() > _FEWEST_ROUNDED * different.len() else None


_FEWEST_ROWS = 4  # of a page whose order says something


def page_order(impressions: pl.DataFrame) -> dict[str, int]:
    """Count the pages whose rows stand in the order of their ids, or with the clicked rows first.

    Returns:
        Of the pages of at least four rows: `pages`, how many there are; `ascending` and `descending`, those in this
        order of ids, as numbers or as texts; `with_click`, those with a click, and rows without; `clicked_first`, those
        of them on which every row above a click is clicked; `several_clicks`, those of these with several clicks.
    """
    doc = impressions[DOC]
    number = doc.cast(pl.Int64, strict=False) if isinstance(doc.dtype, pl.String) else doc
    ids = pl.Series("id", doc.rank("dense"), pl.Int64)
    numbers = ids if number.null_count() else number.rank("dense").cast(pl.Int64)
    rows = impressions.select(SESSION, POSITION, CLICK, ids, numbers.alias("number"))
    below = pl.col(SESSION).eq_missing(pl.col(SESSION).shift(1)).fill_null(value=False)
    steps = {name: pl.when(below).then(pl.col(name).cast(pl.Int64).diff()).sign() for name in ("id", "number", CLICK)}
    per_page = (
        in_page_order(rows)
        .lazy()
        .with_columns(step.alias(f"{name}_step") for name, step in steps.items())
        .group_by(SESSION)
        .agg(
            pl.len().alias("rows"),
            pl.col(CLICK).cast(pl.Int64).sum().alias("clicks"),
            *((pl.col(f"{name}_step") == 1).sum().alias(f"{name}_up") for name in ("id", "number")),
            *((pl.col(f"{name}_step") == -1).sum().alias(f"{name}_down") for name in ("id", "number")),
            (pl.col(f"{CLICK}_step") > 0).any().alias("below"),
        )
        .filter(pl.col("rows") >= _FEWEST_ROWS)
    )
    mixed = (pl.col("clicks") > 0) & (pl.col("clicks") < pl.col("rows"))
    first = mixed & ~pl.col("below")
    counts = {
        "pages": pl.len(),
        "ascending": (pl.max_horizontal("id_up", "number_up") + 1 == pl.col("rows")).sum(),
        "descending": (pl.max_horizontal("id_down", "number_down") + 1 == pl.col("rows")).sum(),
        "with_click": mixed.sum(),
        "clicked_first": first.sum(),
        "several_clicks": (first & (pl.col("clicks") > 1)).sum(),
    }
    totals = per_page.select(count.cast(pl.Int64).alias(name) for name, count in counts.items())
    return totals.collect().row(0, named=True)


_MOST_VALUES = 30  # of a column that may decide relevance
_RAREST = 0.01  # share of the rows with a value
_ROUNDS = 8
_LEAST_RATE = 0.05  # click rate of a value, as a share of all, below which the column rather says what was clicked


def page_level_columns(impressions: pl.DataFrame, columns: Sequence[str]) -> Iterator[str]:
    """Columns of few values, of which each page has one, that do not say whether it was clicked."""
    for name in columns:
        values = impressions[name]
        if values.dtype.is_temporal() or not 1 < values.n_unique() <= _MOST_VALUES:
            continue
        clicks = pl.col(CLICK).cast(pl.Float64)
        rates = impressions.group_by(name).agg(pl.len().alias("rows"), clicks.mean().alias("rate"))
        often = rates.filter(pl.col("rows") >= _RAREST * impressions.height)
        if often.height < 2 or often["rate"].min() <= _LEAST_RATE * impressions[CLICK].mean():  # noqa: PLR2004 # pyright: ignore[reportOptionalOperand, reportOperatorIssue]
            continue
        if SESSION in impressions.columns:
            several = impressions.lazy().group_by(SESSION).agg(pl.col(name).n_unique() > 1)
            if several.select(pl.col(name).any()).collect().item():
                continue
        yield name


def relevance_score(impressions: pl.DataFrame, column: str) -> float | None:
    """Test whether a column decides relevance, by a score test with errors clustered by query.

    A pair i is shown n_ikv times at position k with value v of the column, and clicked c_ikv times. Where v decides
    nothing but how much is looked at, and by whom, c_ikv expects e_ikv = c_ik n_ikv r_kv / sum_u n_iku r_ku given
    c_ik = sum_v c_ikv, with r_kv such that sum_i c_ikv = sum_i e_ikv. The residuals of a pair,
    d_iv = sum_k c_ikv - e_ikv, are then independent of where it is shown. Its height is
    h_iv = - sum_k n_ikv log k / sum_k n_ikv, less its mean over v by sum_k e_ikv. The score U = sum_q U_q, with
    U_q = sum_v d_iv h_iv over the pairs i of q, is above 0 where values show documents further up that are clicked
    more often with them at the same position: where the ranker knows what the value decides. It is compared with
    sqrt(sum_q U_q^2), which holds whatever the clicks of a query have in common.

    Args:
        impressions: `query`, `doc`, `position`, `click`, and the column.
        column: of few values.

    Returns:
        The score in standard errors, about normal where the column decides nothing; None where no document was shown
        with several values at a position.
    """
    rows = impressions.lazy().select(
        QUERY, DOC, POSITION, pl.col(column).alias("value"), pl.col(CLICK).cast(pl.Float64).alias("c")
    )
    cells = (
        rows.group_by(QUERY, DOC, POSITION, "value")
        .agg(pl.len().cast(pl.Float64).alias("n"), pl.col("c").sum())
        .with_columns(pl.struct(QUERY, DOC).rank("dense").alias("pair"))
        .filter(pl.col("value").n_unique().over("pair") > 1)
        .sort(QUERY, DOC, POSITION, "value")
        .select(
            pl.col(QUERY).rank("dense").alias("query"),
            pl.col("pair").rank("dense"),
            pl.struct("pair", POSITION).rank("dense").alias("at"),
            pl.struct(POSITION, "value").rank("dense").alias("seen_by"),
            pl.struct("pair", "value").rank("dense").alias("with"),
            pl.col(POSITION).cast(pl.Float64).log().alias("depth"),
            "n",
            "c",
        )
        .collect()
    )
    if not cells.height:
        return None
    query, pair, at, seen_by, with_value = (
        cells[name].to_numpy().astype(np.int64) - 1 for name in ("query", "pair", "at", "seen_by", "with")
    )
    depth, n, c = (cells[name].to_numpy() for name in ("depth", "n", "c"))
    clicks, of_viewers, rate = np.bincount(at, c)[at], np.bincount(seen_by, c), np.ones(int(seen_by.max()) + 1)
    expected = np.zeros_like(c)
    for _ in range(_ROUNDS):
        weight = n * rate[seen_by]
        expected = clicks * weight / np.bincount(at, weight)[at]
        rate *= np.maximum(of_viewers, 0.5) / np.maximum(np.bincount(seen_by, expected), 1e-9)
    first = np.unique(with_value, return_index=True)[1]
    residual, share = np.bincount(with_value, c - expected), np.bincount(with_value, expected)
    height = -np.bincount(with_value, n * depth) / np.bincount(with_value, n)
    of = pair[first]
    mean = np.bincount(of, share * height) / np.maximum(np.bincount(of, share), 1e-300)
    by_query = np.bincount(query[first], residual * (height - mean[of]))
    error = float(np.sqrt(by_query @ by_query))
    if error == 0:
        return None
    return float(by_query.sum()) / error


def exponent_of_counts(rows: pl.DataFrame) -> tuple[float, float]:
    """How clicks depend on a number n_i of each row, by a score test with errors clustered by pair.

    With c_i clicks on row i at position k, and l_k the mean of log n there, U_p = sum_i c_i (log n_i - l_k) over the
    rows of pair p has mean 0 where clicks at a position do not depend on n. With h_k = sum n log n / sum n, the
    exponent sum_p U_p / sum_i c_i (h_k - l_k) is then 0; it is 1 where clicks are proportional to n.

    Args:
        rows: `pair`, `position`, `impressions` (n > 0), `clicks`.

    Returns:
        The exponent, and sum_p U_p / sqrt(sum_p U_p^2); NaN where n is everywhere the same.
    """
    log, n = pl.col("impressions").log(), pl.col("impressions")
    low, high = log.mean().over(POSITION), ((n * log).sum() / n.sum()).over(POSITION)
    terms = {"u": pl.col("clicks") * (log - low), "span": pl.col("clicks") * (high - low)}
    by_pair = rows.select("pair", **terms).group_by("pair").sum()
    total, squares, span = by_pair.select(
        pl.col("u").sum(), (pl.col("u") ** 2).sum().alias("v"), pl.col("span").sum()
    ).row(0)
    return (total / span, total / float(np.sqrt(squares))) if span and squares else (np.nan, np.nan)
