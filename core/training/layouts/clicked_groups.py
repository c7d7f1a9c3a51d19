"""The clicked-group layout: each click with what else was shown, and one weight for the whole group.

    loss = sum over clicks i of  w_i  l(d_i; C_i)

d_i is the clicked document, C_i the documents of its page. The weight is constant within a group, which is how
rankers take weights: exact for pairwise and listwise losses. Clicks on one document among the same candidates make
one group, of weight sum w_i, with the same loss.

Source: Joachims, Swaminathan & Schnabel 2017 (propensity-weighted ranking: every other document of the page is ranked
against the clicked one, clicked or not).
"""

import polars as pl

from posbias.core.choices import Grouping
from posbias.core.schema import CLICKS, PAIR, SESSION
from posbias.core.training.layouts.layout import GROUP, LABEL, WEIGHTED_CLICK, LayoutOfPages
from posbias.core.training.replicates import weight_columns

CODE, CLICKED_CODE, CANDIDATES = "posbias_code", "posbias_clicked_code", "posbias_candidates"


class ClickedGroupLayout(LayoutOfPages):
    """Clicks with what else was shown."""

    name = "clicked-group"
    groupings = ("query", "session")
    weighted = "group"
    nothing = "no click carries a weight"

    def rows(self, pages: pl.DataFrame, grouping: Grouping) -> tuple[pl.DataFrame, None]:
        """The rows of all groups, the documents of each in ascending order, so that their order gives nothing away.

        Returns:
            `group`, [`session`], `query`, `doc`, `label` (Int8, 1 for the clicked document), `weight` (sum w_i, the
            same in a whole group), `clicks` (how many clicks the group stands for, likewise).
        """
        pairs = coded_pairs(pages)
        groups = clicked_groups(pages, pairs, grouping).with_row_index(GROUP)
        rows = groups.explode(CANDIDATES)
        rows = rows.select(
            pl.col(GROUP).cast(pl.Int64),
            *([SESSION] if grouping == "session" else []),
            *pairs[rows[CANDIDATES]],
            (pl.col(CANDIDATES) == pl.col(CLICKED_CODE)).cast(pl.Int8).alias(LABEL),
            *weight_columns(groups.columns),
            CLICKS,
        )
        return rows, None

    def still_of_use(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The groups that still have their click."""
        return rows.filter(pl.col(LABEL).max().over(GROUP) == 1)


def coded_pairs(pages: pl.DataFrame) -> pl.DataFrame:
    """The (query, document) of pages, each once, in ascending order: a pair's code is its row."""
    return pages.select(PAIR).unique().sort(PAIR)


def clicked_groups(pages: pl.DataFrame, pairs: pl.DataFrame, grouping: Grouping) -> pl.DataFrame:
    """Each weighted click, by code, with the candidates that it was chosen from; equal ones of a query as one.

    Args:
        pages: weighted pages.
        pairs: their `coded_pairs`.
        grouping: by query, equal groups become one; by session, each click is its own.

    Returns:
        Clicked code, candidates (codes, ascending), weights, `clicks`; `session` where each click is its own. By
        clicked code and first page, or by page.
    """
    coded = pages.join(pairs.with_row_index(CODE), on=PAIR, how="left", maintain_order="left")
    weights = weight_columns(pages.columns)
    clicks = coded.filter(WEIGHTED_CLICK).select(SESSION, pl.col(CODE).alias(CLICKED_CODE), *weights)
    candidates = (
        coded.select(SESSION, CODE)
        .join(clicks, on=SESSION, how="semi")
        .sort(CODE)
        .group_by(SESSION, maintain_order=True)
        .agg(pl.col(CODE).alias(CANDIDATES))
    )
    groups = clicks.join(candidates, on=SESSION, how="left", maintain_order="left")
    if grouping == "session":
        return groups.with_columns(pl.lit(1, pl.Int64).alias(CLICKS))
    return (
        groups.sort(CLICKED_CODE, maintain_order=True)
        .group_by(CLICKED_CODE, CANDIDATES, maintain_order=True)
        .agg(pl.col(weights).sum(), pl.len().cast(pl.Int64).alias(CLICKS))
    )
