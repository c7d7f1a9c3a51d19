"""Detect faults of a log in its first rows: rounded ids, pages sorted by id or click, columns that affect relevance.

All functions use canonical impressions in memory.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from posbias.core.log.pages import in_page_order
from posbias.core.schema import CLICK, DOC, POSITION, QUERY, SESSION

_ROUNDED = r"^\d(\.\d+)?[eE]\+\d{2,3}$|^[1-9]\d{5}0{5,}(\.0+)?$"  # six digits, as spreadsheets show long numbers
_FEWEST_ROUNDED = 0.01  # least share of rounded ids among the distinct ids


def rounded_ids(ids: pl.Series) -> str | None:
    """Return an id rounded to six digits by a spreadsheet (`4.00638E+12` or 4006380000000); None if at most 1 % are."""
    if ids.dtype == pl.Binary:
        return None
    whole = ids.cast(pl.Int64, strict=False) if ids.dtype.is_numeric() else ids
    distinct = whole.unique(maintain_order=True).cast(pl.String)
    rounded = distinct.filter(distinct.str.contains(_ROUNDED))
    return rounded[0] if rounded.len() > _FEWEST_ROUNDED * distinct.len() else None


_FEWEST_ROWS = 4  # of pages whose order is checked


def page_order(impressions: pl.DataFrame) -> dict[str, int]:
    """Count the pages that are sorted by document id, or that have their clicked rows first.

    Returns:
        Numbers of pages of at least four rows: `pages`, all; `ascending` and `descending`, sorted by id as number or
        as text; `with_click`, with clicked and unclicked rows; `clicked_first`, those of `with_click` on which every
        row above a click is clicked; `several_clicks`, those of `clicked_first` with several clicks.
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


_MOST_VALUES = 30  # most distinct values of a column to test
_RAREST = 0.01  # least share of rows of a value that counts
_ROUNDS = 8  # iterations for the click rates by position and value
_LEAST_RATE = 0.05  # a column with a value whose relative click rate is below this is a record of clicks


def page_level_columns(impressions: pl.DataFrame, columns: Sequence[str]) -> Iterator[str]:
    """Yield columns of few values that are constant on each page and do not record whether it was clicked."""
    for name in columns:
        values = impressions[name]
        if values.dtype.is_temporal() or not 1 < values.n_unique() <= _MOST_VALUES:
            continue
        clicks = pl.col(CLICK).cast(pl.Float64)
        rates = impressions.group_by(name).agg(pl.len().alias("rows"), clicks.mean().alias("rate"))
        frequent = rates.filter(pl.col("rows") >= _RAREST * impressions.height)
        if frequent.height < 2 or frequent["rate"].min() <= _LEAST_RATE * impressions[CLICK].mean():  # noqa: PLR2004 # pyright: ignore[reportOptionalOperand, reportOperatorIssue]
            continue
        if SESSION in impressions.columns:
            varies = impressions.lazy().group_by(SESSION).agg(pl.col(name).n_unique() > 1)
            if varies.select(pl.col(name).any()).collect().item():
                continue
        yield name


def relevance_score(impressions: pl.DataFrame, column: str) -> float | None:
    """Test whether the relevance of documents depends on a column, by a score test with errors clustered by query.

    Pair i is shown n_ikv times at position k with value v of the column, and clicked c_ikv times. If v affects
    examination only, E(c_ikv) = e_ikv = c_ik n_ikv r_kv / sum_u n_iku r_ku given c_ik = sum_v c_ikv, with r_kv such
    that sum_i c_ikv = sum_i e_ikv. The residuals of a pair, d_iv = sum_k c_ikv - e_ikv, are then independent of its
    height h_iv = - sum_k n_ikv log k / sum_k n_ikv, centred over v with weights sum_k e_ikv. The score U = sum_q U_q,
    with U_q = sum_v d_iv h_iv over the pairs i of query q, is above 0 if documents are shown higher with values with
    which they are clicked more often at the same position, that is, if the ranker uses a column that affects relevance.
    Its standard error is sqrt(sum_q U_q^2), for any dependence of the clicks of a query.

    Args:
        impressions: `query`, `doc`, `position`, `click`, and the column.
        column: a column of few values.

    Returns:
        U in standard errors, approximately standard normal if relevance does not depend on the column; None if no
        document was shown with several values at a position.
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
    clicks, clicks_seen_by, rate = np.bincount(at, c)[at], np.bincount(seen_by, c), np.ones(int(seen_by.max()) + 1)
    expected = np.zeros_like(c)
    for _ in range(_ROUNDS):
        weight = n * rate[seen_by]
        expected = clicks * weight / np.bincount(at, weight)[at]
        rate *= np.maximum(clicks_seen_by, 0.5) / np.maximum(np.bincount(seen_by, expected), 1e-9)
    first = np.unique(with_value, return_index=True)[1]
    residual, share = np.bincount(with_value, c - expected), np.bincount(with_value, expected)
    height = -np.bincount(with_value, n * depth) / np.bincount(with_value, n)
    pairs = pair[first]
    mean = np.bincount(pairs, share * height) / np.maximum(np.bincount(pairs, share), 1e-300)
    by_query = np.bincount(query[first], residual * (height - mean[pairs]))
    error = float(np.sqrt(by_query @ by_query))
    if error == 0:
        return None
    return float(by_query.sum()) / error


def exponent_of_counts(rows: pl.DataFrame) -> tuple[float, float]:
    """Estimate the exponent b of clicks ~ n^b for a number n_i of each row, by a score test clustered by pair.

    With c_i clicks on row i at position k, and l_k the mean of log n there, U_p = sum_i c_i (log n_i - l_k) over the
    rows of pair p has mean 0 if clicks at a position do not depend on n. With h_k = sum n log n / sum n, the exponent
    sum_p U_p / sum_i c_i (h_k - l_k) is then 0; it is 1 if clicks are proportional to n.

    Args:
        rows: `pair`, `position`, `impressions` (n > 0), `clicks`.

    Returns:
        The exponent, and sum_p U_p / sqrt(sum_p U_p^2); NaN if n is constant at each position.
    """
    log, n = pl.col("impressions").log(), pl.col("impressions")
    low, high = log.mean().over(POSITION), ((n * log).sum() / n.sum()).over(POSITION)
    terms = {"u": pl.col("clicks") * (log - low), "span": pl.col("clicks") * (high - low)}
    by_pair = rows.select("pair", **terms).group_by("pair").sum()
    total, squares, span = by_pair.select(
        pl.col("u").sum(), (pl.col("u") ** 2).sum().alias("v"), pl.col("span").sum()
    ).row(0)
    return (total / span, total / float(np.sqrt(squares))) if span and squares else (np.nan, np.nan)


_LATEST_FIRST = 3  # last first position of pages that lack results above, rather than continue others


def effect_of_missing_rows(impressions: pl.DataFrame) -> tuple[float, float, float] | None:
    """Test whether clicks depend on how many of the positions missing on a page are above, g, rather than below.

    They do if positions are ranks from which results were left out before the page was shown: the document then stood g
    positions higher. The slope beta of log P(click) = alpha_s + beta g is estimated within strata s of query, document,
    position and missing positions in all. Impressions on pages with other clicks are left out: rows may be missing
    because they were not clicked. A missing row may also have been clicked, at the rate p of rows above others; if
    clicks above raise the click rate by a factor r > 1, as seen where nothing is missing above, beta is as large as
    log(1 + p (r - 1)) without any filter, which is subtracted.

    Args:
        impressions: whole pages, with positions from 1.

    Returns:
        The difference in standard errors of beta, its exponential, and the mean of g over clicks; None if g varies
        within no stratum.
    """
    position, row, click = pl.col(POSITION).cast(pl.Int64), pl.col(POSITION).rank("ordinal"), pl.col(CLICK)
    above = click.cast(pl.Int64).cum_sum().over(SESSION, order_by=POSITION) - click
    rows = (
        impressions.lazy()
        .filter(position.min().over(SESSION) <= _LATEST_FIRST)
        .select(
            QUERY,
            DOC,
            POSITION,
            click.cast(pl.Float64).alias("c"),
            (position - row).cast(pl.Float64).over(SESSION).alias("g"),
            (position.max() - pl.len()).over(SESSION).alias("missing"),
            (click.sum().over(SESSION) - click == 0).alias("alone"),
            above.alias("above"),
            (row - 1).over(SESSION).alias("rows above"),
        )
        .collect()
    )
    of_missing = _slope_within(rows.filter("alone", pl.col("missing") > 0), pl.col("g"), "missing")
    if of_missing is None:
        return None
    slope, error, mean = of_missing
    of_clicks = _slope_within(rows.filter(pl.col("g") == 0), (pl.col("above") > 0).cast(pl.Float64))
    if of_clicks is not None and of_clicks[0] > 0:
        clicked_above = float(rows["above"].sum()) / float(rows["rows above"].sum())
        slope -= float(np.log1p(clicked_above * np.expm1(of_clicks[0])))
    return slope / error, float(np.exp(slope)), mean


def _slope_within(rows: pl.DataFrame, x: pl.Expr, *strata: str) -> tuple[float, float, float] | None:
    """Estimate the slope of the log click rate by x within strata of query, document, position and further columns.

    With n impressions and c clicks of a stratum, the score at slope 0, its variance over permutations of the clicks
    within strata, and the information are

        U = sum sum_i c_i (x_i - mean x),  V = sum c (n - c) / (n (n - 1)) SS,  I = sum (c / n) SS,
        SS = sum_i (x_i - mean x)^2

    Returns:
        U / I, its standard error sqrt(V) / I under no effect, and the mean of x over clicks; None if x or c are
        constant within all strata.
    """
    c, x = pl.col("c"), x.alias("x")
    sums = {"n": pl.len(), "c": c.sum(), "x": pl.col("x").sum(), "xx": (pl.col("x") ** 2).sum(), "cx": c.dot("x")}
    counts = rows.lazy().with_columns(x).group_by(QUERY, DOC, POSITION, *strata).agg(**sums).filter(pl.col("n") > 1)
    n, clicks, total, squares, products = counts.select(*sums).collect().to_numpy().T
    spread = squares - total * total / n
    variance, information = (clicks * (n - clicks) / (n * (n - 1)) * spread).sum(), (clicks / n * spread).sum()
    if not variance > 0:
        return None
    slope, error = (products - clicks * total / n).sum() / information, np.sqrt(variance) / information
    return float(slope), float(error), float(products.sum() / clicks.sum())
