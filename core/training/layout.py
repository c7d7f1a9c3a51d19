r"""Layouts: what their rows are made of, and how a trainer has to take them.

Layouts of pages keep pages apart: `clicked-group`, `pairs` and `session`.

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

Layouts of (query, document) pairs add up all that was seen of each: `pointwise` and `judgments`.

A document's n impressions become W+ for its clicks and W- = n - W+ for the rest. With click weights W+ may exceed n:
W- is then 0, and documents that were shown rarely are labelled too low, the more so the further down they stood
(gamma = .3, one impression: .30 at position 1, .24 at position 10). The expected label never exceeds n, but leans on
the prior of gamma, which is worse where pairs are shown rarely: a learner that can bend then ranks below one that
reads naive clicks. tests/benchmarks/README.md compares them.

    posterior:  E[gamma | counts], the posterior mean of attractiveness
    coec:       sum_e c_e / sum_e n_e theta_e      clicks over expected clicks (per unit of attractiveness)
    ips:        sum_e c_e / theta_e  /  sum_e n_e

with theta clipped as in the weights; sums run over the cells that have a propensity. The last two are unbiased, ips
with more variance, and both noisy where a document was seldom shown; there the posterior is drawn to its prior, which
learners do better with (tests/benchmarks/README.md).

`label_std_dev` is that of the posterior, the errors of theta included; the two other rates have none, as a document
without clicks would have none. Over the contexts of a document variances add up.

    grade = min(floor(G label / top), G - 1)

G grades in equal steps; top is the label that a hundredth of the documents exceed, where there are contexts each
document in each of its contexts. Rankers with graded gains, and the judgment lists of search engines, take grades.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, Self

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import CountTable, Floats, Integers
from posbias.core.choices import LAYOUTS, Grouping, Plugin, Room
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SIGNATURE
from posbias.core.errors import StatisticsError, UsageError
from posbias.core.fit.propensities import PROPENSITY
from posbias.core.log.pages import in_page_order
from posbias.core.schema import CLICK, CLICKS, DOC, IMPRESSIONS, PAIR, POSITION, QUERY, SESSION, WEIGHT
from posbias.core.training.weights import (
    CELL_NUMBER,
    CLICK_WEIGHT,
    ClickWeights,
    WeightOptions,
    replicate_names,
    weight_columns,
)

_SHOWN_POSITION = "posbias_shown_position"
_OWN_WEIGHT = "posbias_own_weight"

WEIGHTED_CLICK = (pl.col(CLICK) == 1) & pl.col(WEIGHT).is_not_null()
"""The clicks that carry a weight: those in cells that have a propensity."""


def weighted_pages(
    impressions: pl.DataFrame, plan: StatisticsPlan, weights: ClickWeights, features: Sequence[str] = ()
) -> pl.DataFrame:
    """Impressions as shown, by session and position, with the weight of each.

        weight of a click in cell e: w_e        weight of an unclicked impression: 1

    With UBM, e is the cell of the session's own previous click. A log's own weights multiply.

    Returns:
        `session`, `query`, `doc`, `position`, with cells of several columns `cell_number`, `click`, `propensity` (null
        where the cell has none), `weight` (null for a click in such a cell), replicate weights, and the columns of the
        features.
    """
    shown = impressions.with_columns(pl.col(POSITION).alias(_SHOWN_POSITION))
    own = pl.col(WEIGHT).cast(pl.Float64) if plan.weighted else pl.lit(1.0)
    in_cells = plan.with_cells_in_memory(in_page_order(shown, plan.cell)).with_columns(own.alias(_OWN_WEIGHT))
    weighted = in_cells.join(
        weights.frame(), on=list(plan.cell_columns), how="left", nulls_equal=True, maintain_order="left"
    )
    replicates = replicate_names(len(weights.replicates))
    click_weights = {WEIGHT: CLICK_WEIGHT} | {name: f"{CLICK_WEIGHT}_{name}" for name in replicates}
    clicked = pl.col(CLICK) == 1
    return weighted.with_columns(
        (pl.col(_OWN_WEIGHT) * pl.when(clicked).then(pl.col(of_click)).otherwise(1.0)).alias(name)
        for name, of_click in click_weights.items()
    ).select(
        *(SESSION, QUERY, DOC, pl.col(_SHOWN_POSITION).alias(POSITION)),
        *(() if weights.number is None else (CELL_NUMBER,)),
        *(CLICK, PROPENSITY),
        *(WEIGHT, *replicates, *features),
    )


Weighted = Literal["row", "group", "preference"]

GROUP = "group"
"""The column that numbers groups, from 0."""

LABEL = "label"
"""The column that is learnt, where it is not the click."""

GRADE, LABEL_STD_DEV = "grade", "label_std_dev"
"""Columns beside the label: it as a whole number, and how far it may be off."""

RowsOfPairs = Callable[[pl.DataFrame, Floats], pl.DataFrame]
"""Makes the rows of a layout from the pairs of a part and what is known of each signature. It travels: no lambda."""


class Layout(Plugin):
    """Rows that carry weights, in groups, which rankers rank by themselves; rows stand in the order of their groups.

    A layout is made from pages (`LayoutOfPages`) or from counts (`LayoutOfCounts`).
    """

    # whether it needs the pages of the log; else counts by query and document will do
    from_pages: ClassVar[bool] = False
    # what may stand together: a page, or all that was seen of a query. The first one is usual
    groupings: ClassVar[tuple[Grouping, ...]] = ("query",)
    label: ClassVar[str] = LABEL  # the column that is learnt
    weighted: ClassVar[Weighted | None] = "row"  # what has a weight of its own; None where all rows weigh the same
    ranked: ClassVar[bool] = True  # whether the rows of a group are ranked against each other
    graded: ClassVar[bool] = False  # whether rows have a `grade`, for trainers that take whole numbers only
    # columns that say nothing where rows are read as a table: numbers of groups that the ids say, weights that are 1
    # for all
    columns_without_information: ClassVar[tuple[str, ...]] = ()
    # whether a row is one impression, so that a feature of the log stands in it as it was shown
    rows_are_impressions: ClassVar[bool] = False
    # whether every document has one row, but for those that are left out for want of a propensity
    one_row_per_document: ClassVar[bool] = False
    nothing: ClassVar[str] = "no row is left"  # the message where there is nothing to learn from

    def ids(self, grouping: Grouping) -> tuple[str, ...]:
        """The columns that say what a row is."""
        return (SESSION, QUERY, DOC) if self.from_pages and grouping == "session" else (QUERY, DOC)

    def drop_useless_groups(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows of groups that can still be learnt from, where others are left out."""
        return rows


class LayoutOfPages(Layout):
    """A layout that is made from weighted pages, whole ones at a time."""

    from_pages = True

    @abstractmethod
    def rows(self, pages: pl.DataFrame, grouping: Grouping) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        """The rows of some pages, and the preferences among them where a preference has a weight.

        Args:
            pages: weighted pages, as from `weighted_pages`.
            grouping: what stands together.

        Returns:
            `group` (from 0, ascending), the ids, the label, `weight` and more.
            The preferences: `group`, [`session`], `query`, `winner`, `loser`, `winner_row`, `loser_row` (from 0) and
            `weight`.
        """


Posterior = tuple[Floats, Floats, Floats]
"""Theta of each cell as a probability, nan where it has none, shape (K,); of each signature E[gamma | counts], and its
standard deviation with the errors of theta, nan where these are not known, shape (J,)."""


@dataclass(frozen=True)
class DocumentSums:
    """Sums of each document, or signature of documents, over the rows that have a propensity, shape (J,) each."""

    impressions: Floats
    clicks: Floats
    # the clicks beyond those that trust in the position explains, >= -impressions; all of them without trust
    beyond: Floats
    attracted: Floats  # the same, each worth its weight
    expected: Floats  # what would have been clicked of an attractive document
    posterior: Callable[[], Posterior]  # may be a pass over the signatures; of documents, without theta
    options: WeightOptions  # which labels
    whole: bool  # whether impressions and clicks are whole numbers, not sums of weights
    replicates: Sequence[Floats] = ()  # `attracted` under each replicate weight
    signatures: CountTable | None = None  # the counts by cell; None where each impression has a propensity of its own

    @classmethod
    def of_signatures(
        cls,
        signatures: CountTable,
        weights: ClickWeights,
        options: WeightOptions,
        posterior: Callable[[], Posterior],
        *,
        whole: bool = True,
    ) -> Self:
        """The sums of signatures, from their counts per cell and the weight of a click in each cell."""
        known, of_clicked = np.isfinite(weights.weight), np.nan_to_num([weights.weight, *weights.replicates])
        theta = np.where(known, np.maximum(np.nan_to_num(weights.propensity), options.min_propensity), 0.0)
        sums = np.empty((3 + len(of_clicked), signatures.n_units))
        for units, block in signatures.blocks():
            shown = [block.impressions * of_cell[block.cell] for of_cell in (known, theta)]
            clicked = [block.clicks * of_cell[block.cell] for of_cell in (known, *of_clicked)]
            sums[:, units] = [block.sum_by_unit(values) for values in (*shown, *clicked)]
        impressions, expected, clicks, attracted, *replicates = sums
        return cls(impressions, clicks, clicks, attracted, expected, posterior, options, whole, replicates, signatures)


class LayoutOfCounts(Layout):
    """A layout that is made from counts by query and document."""

    @abstractmethod
    def by_document(self, sums: DocumentSums) -> tuple[Floats, RowsOfPairs]:
        """The values needed of each signature, shape (J, S), and the function that makes rows of them, part by part."""


def add_up_signatures(pairs: pl.DataFrame, by_signature: Floats) -> tuple[pl.DataFrame, Floats]:
    """The documents of a part, and what its signatures add up to for each.

    Args:
        pairs: `query`, `doc`, `signature`; rows of one document (one per context, say) follow one another, and so do
            those of one query.
        by_signature: what is added up, by signature, shape (J, S).

    Returns:
        `group` (the query's number, from 0), `query`, `doc`, in the order of the pairs, and the sums, shape (D, S).
    """
    document = pairs.select(pl.struct(QUERY, DOC).rle_id()).to_series().to_numpy()
    first = np.flatnonzero(np.diff(document, prepend=-1))
    by_row = by_signature[pairs[SIGNATURE].to_numpy()]
    documents = pairs[first].select(pl.col(QUERY).rle_id().cast(pl.Int64).alias(GROUP), QUERY, DOC)
    return documents, np.add.reduceat(by_row, first) if len(first) else by_row


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
        pairs = pages.select(PAIR).unique().sort(PAIR)  # the code of a pair is its row
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

    def drop_useless_groups(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The groups that still have their click."""
        return rows.filter(pl.col(LABEL).max().over(GROUP) == 1)


def clicked_groups(pages: pl.DataFrame, pairs: pl.DataFrame, grouping: Grouping) -> pl.DataFrame:
    """Each weighted click, by code, with the candidates that it was chosen from; equal ones of a query as one.

    Args:
        pages: weighted pages.
        pairs: their (query, document), each once, in ascending order: the code of a pair is its row.
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
    columns_without_information = (GROUP, LABEL, WEIGHT)
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
            documents = pages.select(PAIR).unique().sort(PAIR)
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
    columns_without_information = (GROUP,)
    rows_are_impressions = True

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


_TINY = 1e-300  # theta = gamma = 1 leaves no impression without a click to explain: 0 of them, not 0/0


class PointwiseLayout(LayoutOfCounts):
    """W+ and W- of each document; any learner takes them that takes a weight per row."""

    name = "pointwise"
    ranked = False
    columns_without_information = (GROUP,)
    takes = ("negatives",)

    def by_document(self, sums: DocumentSums) -> tuple[Floats, RowsOfPairs]:
        """W+, held at 0, and the impressions, and W+ under replicate weights, shape (J, 2 + N)."""
        positive = np.maximum(sums.attracted, 0.0)
        if sums.options.negatives == "posterior" and sums.signatures is not None:
            examination, gamma, _ = sums.posterior()
            positive = expected_attractions(sums.signatures, examination, gamma)
        return np.column_stack([positive, sums.impressions, *sums.replicates]), pointwise_rows


def expected_attractions(signatures: CountTable, examination: Floats, attractiveness: Floats) -> Floats:
    """Expected number of impressions of a unit with an attractive document, given its clicks: W+ without click weights.

        W+ = sum_e { c_e + (n_e - c_e) P(A = 1 | c = 0) },  P(A = 1 | c = 0) = gamma (1 - theta) / (1 - theta gamma)

    An impression is worth at most 1 whatever its cell's theta: there is no weight that could be clipped.

    Args:
        signatures: counts per (signature, cell).
        examination: theta as a probability, shape (K,), 0 < theta <= 1; NaN where a cell has none, and counts nothing.
        attractiveness: gamma, shape (J,), in [0, 1], on the scale of this theta.

    Returns:
        W+ of each signature, shape (J,), between its clicks and its impressions.
    """
    attractions = np.empty(signatures.n_units)
    known, theta = np.isfinite(examination), np.nan_to_num(examination)
    for units, block in signatures.blocks():
        theta_of, gamma = theta[block.cell], block.spread(attractiveness[units])
        attracted = gamma * (1 - theta_of) / np.maximum(1 - theta_of * gamma, _TINY)
        skips = block.impressions - block.clicks
        attractions[units] = block.sum_by_unit(known[block.cell] * (block.clicks + skips * attracted))
    return attractions


def pointwise_rows(pairs: pl.DataFrame, by_signature: Floats) -> pl.DataFrame:
    """The rows of a part.

        label 1: W+           label 0: W- = max(sum_e n_e - W+, 0)

    Sums run over the cells that have a propensity, and over all rows of a document.

    Args:
        pairs: `query`, `doc`, `signature`, as for `add_up_signatures`.
        by_signature: as from `PointwiseLayout.by_document`, shape (J, 2 + N).

    Returns:
        `group`, `query`, `doc`, `label` (Int8), `weight` and replicate weights (Float64), in the order of the pairs,
        label 1 first.
    """
    documents, sums = add_up_signatures(pairs, by_signature)
    shown, positive = sums[:, 1], np.delete(sums, 1, axis=1)
    negative = np.maximum(shown[:, np.newaxis] - positive, 0.0)
    weights = np.stack([positive, negative], axis=1).reshape(2 * documents.height, positive.shape[1])
    names = [WEIGHT, *replicate_names(positive.shape[1] - 1)]
    return documents[np.repeat(np.arange(documents.height), 2)].with_columns(
        pl.Series(LABEL, np.tile(np.array([1, 0], np.int8), documents.height)),
        *(pl.Series(name, weights[:, column]) for column, name in enumerate(names)),
    )


_ABOVE_TOP = 0.01  # of the documents: a few rates from next to no impressions must not stretch the scale


class JudgmentsLayout(LayoutOfCounts):
    """The debiased click rate of each document, and its grade."""

    name = "judgments"
    weighted = None
    graded = True
    one_row_per_document = True
    columns_without_information = (GROUP, WEIGHT)
    takes = ("rate", "grades")

    def by_document(self, sums: DocumentSums) -> tuple[Floats, RowsOfPairs]:
        """The terms of the rate; rates below 0, which trust bias leaves by chance, are held there.

        Returns:
            Impressions, clicks, the rate's numerator and denominator, and the variance of the numerator, nan where it
            is not known, shape (J, 5).

        Raises:
            StatisticsError: the posterior is requested, and a signature has no attractiveness.
        """
        shown, spread = sums.impressions, np.full(len(sums.impressions), np.nan)
        if sums.options.rate == "posterior":
            _, gamma, spread = sums.posterior()
            if len(gamma) != len(shown) or not np.isfinite(gamma).all():
                raise StatisticsError(
                    "--layout-options rate=posterior: some documents have no attractiveness, and no number stands for "
                    "that. Estimate again, or use rate=coec or ips."
                )
            above, below = shown * gamma, shown
        else:
            above, below = (sums.beyond, sums.expected) if sums.options.rate == "coec" else (sums.attracted, shown)
        terms = np.stack([shown, sums.clicks, np.maximum(above, 0.0), below, (shown * spread) ** 2], axis=1)
        top = top_rate(terms, np.ones(len(terms)) if sums.signatures is None else sums.signatures.multiplicity)
        return terms, partial(judgment_rows, top=top, grades=sums.options.grades, whole=sums.whole)


def top_rate(terms: Floats, multiplicity: Floats) -> float:
    """The rate that a hundredth of the documents exceed; 0 where none was clicked.

    Args:
        terms: as from `JudgmentsLayout.by_document`, shape (J, 5).
        multiplicity: how many documents each signature stands for, shape (J,).
    """
    return top_value(np.divide(terms[:, 2], terms[:, 3], out=np.zeros(len(terms)), where=terms[:, 3] > 0), multiplicity)


def top_value(rate: Floats, multiplicity: Floats) -> float:
    """The rate that a hundredth of rates, shape (J,), exceed; 0 without any."""
    order = np.argsort(rate)
    above = multiplicity.sum() - np.cumsum(multiplicity[order])
    return float(rate[order][np.argmax(above <= _ABOVE_TOP * multiplicity.sum())]) if len(rate) else 0.0


_ROUNDING = 1e-9  # of labels, so that the same log has the same grades on every processor


def grade_labels(label: Floats, top: float, grades: int) -> Integers:
    """The grade of each label, 0 .. grades - 1, same shape; one that reaches a step but for rounding has reached it."""
    steps = np.floor(grades * label / top * (1 + _ROUNDING)) if top > 0 else np.zeros(len(label))
    return np.minimum(steps, grades - 1).astype(np.int64)


def judgment_rows(pairs: pl.DataFrame, terms: Floats, *, top: float, grades: int, whole: bool) -> pl.DataFrame:
    """The rows of a part. Documents that no cell with a propensity has shown are left out.

    Args:
        pairs: `query`, `doc`, `signature`, as for `add_up_signatures`.
        terms: as from `JudgmentsLayout.by_document`, shape (J, 5).
        top: as from `top_rate`.
        grades: number of grades G, at least 2.
        whole: whether impressions and clicks are whole numbers, not sums of weights.

    Returns:
        `group`, `query`, `doc`, `label` (Float64 >= 0), `label_std_dev` (null where it is not known), `grade` (Int32,
        0 .. G - 1), `impressions`, `clicks`, `weight` (1: judgments weigh the same).
    """
    documents, sums = add_up_signatures(pairs, terms)
    seen = sums[:, 3] > 0
    sums = sums[seen]
    label = sums[:, 2] / sums[:, 3]
    counts = pl.Int64 if whole else pl.Float64
    return documents.filter(pl.Series(seen)).with_columns(
        pl.Series(LABEL, label),
        pl.Series(LABEL_STD_DEV, np.sqrt(sums[:, 4]) / sums[:, 3]).fill_nan(None),
        pl.Series(GRADE, grade_labels(label, top, grades).astype(np.int32)),
        pl.Series(IMPRESSIONS, sums[:, 0]).cast(counts),
        pl.Series(CLICKS, sums[:, 1]).cast(counts),
        pl.lit(1.0).alias(WEIGHT),
    )


_LAYOUTS = Room[LayoutOfPages | LayoutOfCounts](LAYOUTS, "--layout")

layout_names, get_layout, layouts_that_take = _LAYOUTS.names, _LAYOUTS.get, _LAYOUTS.that_take


def layouts_of_pages() -> list[str]:
    """The layouts that need the pages of the log."""
    return [name for name, layout in _LAYOUTS.plugins.items() if layout.from_pages]


def choose_grouping(layout: Layout, requested: Grouping | None) -> Grouping:
    """The grouping of rows: the requested one, else the usual one.

    Raises:
        UsageError: the layout has no such groups.
    """
    if requested is None:
        return layout.groupings[0]
    if requested not in layout.groupings:
        able = [name for name, other in _LAYOUTS.plugins.items() if requested in other.groupings]
        raise UsageError(
            f"--layout-options group={requested}: --layout {layout.name} adds up all pages of a query. Layouts with "
            f"groups by {requested}: {', '.join(able)}."
        )
    return requested
