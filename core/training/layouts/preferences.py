r"""The layout of pairs: preferences of a clicked document over each other one of its page, and the documents apart.

    loss = sum over clicks i of  w_i  sum over d in C_i \ d_i of  l(f(d_i) - f(d))

The pairs are those of the clicked groups; equal ones of a query add up: the weight of a preference is the sum of w_i
over the clicks on the winner on pages that showed the loser too.

Source: Joachims, Swaminathan & Schnabel 2017.
"""

import polars as pl

from posbias.core.choices import Grouping
from posbias.core.schema import DOC, POSITION, QUERY, SESSION, WEIGHT
from posbias.core.training.layouts.clicked_groups import CANDIDATES, CLICKED_CODE, clicked_groups, coded_pairs
from posbias.core.training.layouts.layout import GROUP, LABEL, WEIGHTED_CLICK, LayoutOfPages
from posbias.core.training.replicates import weight_columns

WINNER, LOSER = "winner", "loser"
"""The two documents of a preference."""

WINNER_ROW, LOSER_ROW = "winner_row", "loser_row"
"""The rows that hold them, from 0."""

_ROW = "posbias_row"


class PairsLayout(LayoutOfPages):
    """Preferences among documents."""

    name = "pairs"
    groupings = ("query", "session")
    weighted = "preference"
    left_out = (GROUP, LABEL, WEIGHT)
    nothing = "no click carries a weight and has another document beside it"

    def rows(self, pages: pl.DataFrame, grouping: Grouping) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Documents, and the preferences among them.

        By query, a document is one row and equal preferences add up; by session, each page stands alone.

        Returns:
            The documents: `group`, [`session`], `query`, `doc`, `label` and `weight` (1: only preferences teach).
            The preferences, by group: `group`, [`session`], `query`, `winner`, `loser`, `winner_row`, `loser_row` and
            `weight`.
        """
        weights = weight_columns(pages.columns)
        if grouping == "query":
            documents = coded_pairs(pages)
            ranked = (
                clicked_groups(pages, documents, grouping)
                .explode(CANDIDATES)
                .filter(pl.col(CANDIDATES) != pl.col(CLICKED_CODE))
                .group_by(CLICKED_CODE, CANDIDATES, maintain_order=True)
                .agg(pl.col(weights).sum())
                .sort(CLICKED_CODE, CANDIDATES)
                .rename({CLICKED_CODE: WINNER_ROW, CANDIDATES: LOSER_ROW})
            )
            key = QUERY
        else:
            documents = pages.sort(SESSION, DOC).select(
                SESSION, QUERY, DOC, POSITION, *weights, weighted=WEIGHTED_CLICK
            )
            rows = documents.with_row_index(_ROW)
            clicks = rows.filter("weighted").select(SESSION, *weights, pl.col(_ROW).alias(WINNER_ROW))
            others = rows.select(SESSION, pl.col(_ROW).alias(LOSER_ROW))
            ranked = (
                clicks.join(others, on=SESSION, maintain_order="left_right")
                .filter(pl.col(WINNER_ROW) != pl.col(LOSER_ROW))
                .select(WINNER_ROW, LOSER_ROW, *weights)
            )
            documents = documents.select(SESSION, QUERY, DOC)
            key = SESSION
        numbered = documents.select(pl.col(key).rle_id().cast(pl.Int64).alias(GROUP), pl.all())
        winner, loser = numbered[ranked[WINNER_ROW]], numbered[ranked[LOSER_ROW]]
        preferences = ranked.select(
            *winner.drop(DOC),
            winner[DOC].alias(WINNER),
            loser[DOC].alias(LOSER),
            pl.col(WINNER_ROW, LOSER_ROW).cast(pl.Int64),
            *weights,
        )
        return numbered.with_columns(pl.lit(1, pl.Int8).alias(LABEL), pl.lit(1.0).alias(WEIGHT)), preferences
