"""The session layout: impressions as shown, with a weight per row.

For losses that add up over documents, such as TF-Ranking's, and everything that takes a weight per row. Clicks in a
cell without a propensity are left out.
"""

import polars as pl

from posbias.core.choices import Grouping
from posbias.core.schema import CLICK, DOC, POSITION, QUERY, SESSION
from posbias.core.training.layouts.layout import GROUP, WEIGHTED_CLICK, LayoutOfPages


class SessionLayout(LayoutOfPages):
    """Impressions as shown."""

    name = "session"
    groupings = ("session", "query")
    label = CLICK
    left_out = (GROUP,)
    shows_impressions = True

    def ids(self, grouping: Grouping) -> tuple[str, ...]:  # noqa: ARG002 - the same for both
        """The columns that say what a row is."""
        return (SESSION, QUERY, DOC, POSITION)

    def rows(self, pages: pl.DataFrame, grouping: Grouping) -> tuple[pl.DataFrame, None]:
        """The rows of weighted pages, page by page, or with all pages of a query in one group."""
        kept = pages.filter((pl.col(CLICK) == 0) | WEIGHTED_CLICK)
        if grouping == "query":
            kept = kept.sort(QUERY, maintain_order=True)
        key = SESSION if grouping == "session" else QUERY
        return kept.select(pl.col(key).rle_id().cast(pl.Int64).alias(GROUP), pl.all()), None
