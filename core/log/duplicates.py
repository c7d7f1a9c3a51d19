"""Documents that stand twice on a page: which of their rows count.

Of each document the row furthest up may be kept. It keeps its own click: a click further down says nothing about
whether the upper position was looked at. Where cells depend on the clicks above, nothing counts below a click on a row
that is left out: what counts of a page then depends only on what happened above, which biases nothing.
"""

import polars as pl

from posbias.core.log.impressions import REJECTED
from posbias.core.log.pages import PageFault
from posbias.core.schema import CLICK, DOC, POSITION, QUERY, SESSION

_LATER, _CUT = "posbias_later", "posbias_cut"


def mark_repeats(impressions: pl.LazyFrame, *, clicks_above_matter: bool) -> pl.LazyFrame:
    """Mark in `rejected` the rows that are left out so that each document counts once a page; 0 for the others.

    Rows of a document at the same position are not marked: such a page is faulty.

    Args:
        impressions: canonical impressions that keep the row contract, of whole pages.
        clicks_above_matter: whether cells depend on the clicks above.
    """
    page = (SESSION, QUERY)
    later = pl.col(POSITION) > pl.col(POSITION).min().over(*page, DOC)
    clicked_later = pl.when(_LATER, pl.col(CLICK) == 1).then(pl.col(POSITION)).min().over(*page)
    below = pl.col(POSITION) > pl.col(_CUT) if clicks_above_matter else pl.lit(value=False)
    fault = (
        pl.when(_LATER)
        .then(int(PageFault.SHOWN_ABOVE))
        .when(below)
        .then(int(PageFault.BELOW_SHOWN_ABOVE))
        .otherwise(0)
        .cast(pl.UInt8)
    )
    marked = impressions.with_columns(later.alias(_LATER)).with_columns(clicked_later.alias(_CUT))
    return marked.with_columns(fault.alias(REJECTED)).drop(_LATER, _CUT)
