r"""Layouts of pages: `clicked-group`, `pairs` and `session`.

    loss = sum over clicks i of  w_i  l(d_i; C_i)

d_i is the clicked document, C_i the documents of its page. The weight is constant within a group, which is how
rankers take weights: exact for pairwise and listwise losses. Clicks on one document among the same candidates make
one group, of weight sum w_i, with the same loss.

Source: Joachims, Swaminathan & Schnabel 2017 (propensity-weighted ranking: every other document of the page is ranked
against the clicked one, clicked or not).

    loss = sum over clicks i of  w_i  sum over d in C_i \ d_i of  l(f(d_i) - f(d))

The pairs are those of the clicked groups; equal ones of a query add up: the weight of a preference is the sum of w_i
over the clicks on the winner on pages that showed the loser too.

For losses that add up over documents, such as TF-Ranking's, and everything that takes a weight per row. Clicks in a
cell without a propensity are left out.
"""

import polars as pl

from posbias.core.choices import Grouping
from posbias.core.schema import CLICK, CLICKS, DOC, PAIR, POSITION, QUERY, SESSION, WEIGHT
from posbias.core.training.layout import GROUP, LABEL, WEIGHTED_CLICK, LayoutOfPages
from posbias.core.training.weights import weight_columns

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
            same in a whole group), `clicks` (how many clicks the group stands for, the same in a whole group).
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
