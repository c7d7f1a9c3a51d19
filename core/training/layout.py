r"""Layouts of training files: the rows that a ranker is trained on, their labels, weights and groups.

Layouts of pages (`LayoutOfPages`): `clicked-group`, `pairs` and `session`. d_i is the clicked document of click i, w_i
its weight, C_i the documents of its page. Clicks in a cell without a propensity are dropped.

`clicked-group`: one group per click, its page with the clicked document labelled 1.

    loss = sum over clicks i of  w_i  l(d_i; C_i)

The weight is constant within a group, as rankers require; this is exact for pairwise and listwise losses. Clicks on one
document among the same candidates form one group of weight sum w_i, with the same loss.

`pairs`: preferences of the clicked document over every other document of the page, clicked or not.

    loss = sum over clicks i of  w_i  sum over d in C_i \ d_i of  l(f(d_i) - f(d))

Equal preferences of a query are merged: the weight is the sum of w_i over the clicks on the winner on pages with the
loser. Source: Joachims, Swaminathan & Schnabel 2017 (propensity-weighted ranking).

`session`: impressions as shown, with a weight per row, for losses that are sums over documents, such as TF-Ranking's.

Layouts of counts (`LayoutOfCounts`): `pointwise` and `judgments`, which sum all impressions of a (query, document).

`pointwise`: a document's n impressions become a row of label 1 and weight W+ and a row of label 0 and weight n - W+.
With click weights (`negatives=clamp`), W+ may exceed n; W- is then 0, and rarely shown documents get labels that are
too low, the more so the lower they were shown (gamma = .3, one impression: .30 at position 1, .24 at position 10).
With `negatives=posterior`, W+ never exceeds n, but depends on the prior of gamma: on sparse logs, flexible learners
then rank worse than with naive clicks. tests/benchmarks/README.md compares both.

`judgments`: one row per document with its rate as label,

    posterior:  E[gamma | counts], the posterior mean of attractiveness
    coec:       sum_e c_e / sum_e n_e theta_e      clicks over expected clicks (per unit of attractiveness)
    ips:        sum_e c_e / theta_e  /  sum_e n_e

with theta clipped as in the weights; sums run over the cells that have a propensity. coec and ips are unbiased, ips
with more variance; both are noisy for rarely shown documents, where the posterior mean is shrunk towards the prior,
which learners do better with (tests/benchmarks/README.md). `label_std_dev` is the posterior standard deviation, the
errors of theta included; coec and ips have none, as that of a document without clicks would be 0. Variances add up
over the contexts of a document.

    grade = min(floor(G label / top), G - 1)

G grades in equal steps; top is the label that a hundredth of the documents (of each context) exceed. Grades are for
rankers with graded gains and for the judgment lists of search engines.
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
"""Clicks with a weight: those in cells that have a propensity."""


def weighted_pages(
    impressions: pl.DataFrame, plan: StatisticsPlan, weights: ClickWeights, features: Sequence[str] = ()
) -> pl.DataFrame:
    """Weigh the impressions of whole pages, and sort them by session and position.

        weight of a click in cell e: w_e        weight of an unclicked impression: 1

    each times the log's own weight of the row, if it has any. With UBM, e depends on the previous click on the page.

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
        (pl.col(_OWN_WEIGHT) * pl.when(clicked).then(pl.col(click_weight)).otherwise(1.0)).alias(name)
        for name, click_weight in click_weights.items()
    ).select(
        *(SESSION, QUERY, DOC, pl.col(_SHOWN_POSITION).alias(POSITION)),
        *(() if weights.number is None else (CELL_NUMBER,)),
        *(CLICK, PROPENSITY),
        *(WEIGHT, *replicates, *features),
    )


Weighted = Literal["row", "group", "preference"]

GROUP = "group"
"""Column of group numbers, from 0."""

LABEL = "label"
"""Column of the label, in layouts whose label is not the click."""

GRADE, LABEL_STD_DEV = "grade", "label_std_dev"
"""Columns of the label as an integer grade, and of its standard deviation."""

RowsOfPairs = Callable[[pl.DataFrame, Floats], pl.DataFrame]
"""Makes the rows of a layout from the pairs of a part and the values of each signature. Must be picklable: no lambda.
"""


class Layout(Plugin):
    """Weighted training rows in groups, within which rankers rank; rows are sorted by group.

    A layout is made from pages (`LayoutOfPages`) or from counts (`LayoutOfCounts`).
    """

    from_pages: ClassVar[bool] = False  # whether it needs whole pages; otherwise counts by query and document suffice
    groupings: ClassVar[tuple[Grouping, ...]] = ("query",)  # possible groups, the default first
    label: ClassVar[str] = LABEL  # column of the label
    weighted: ClassVar[Weighted | None] = "row"  # what has a weight of its own; None if all weights are 1
    ranked: ClassVar[bool] = True  # whether the rows of a group are ranked against each other
    graded: ClassVar[bool] = False  # whether rows have a `grade`, for trainers that take integer labels only
    # Columns that tables omit: group numbers that follow from the ids, weights that are all 1
    columns_without_information: ClassVar[tuple[str, ...]] = ()
    rows_are_impressions: ClassVar[bool] = False  # whether a row is one impression, with its own features
    one_row_per_document: ClassVar[bool] = False  # whether each document with a propensity has exactly one row
    nothing: ClassVar[str] = "no row is left"  # message if there are no rows

    def ids(self, grouping: Grouping) -> tuple[str, ...]:
        """Return the columns that identify a row."""
        return (SESSION, QUERY, DOC) if self.from_pages and grouping == "session" else (QUERY, DOC)

    def drop_useless_groups(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Drop groups from which nothing can be learnt after some of their rows were dropped."""
        return rows


class LayoutOfPages(Layout):
    """A layout made from weighted whole pages."""

    from_pages = True

    @abstractmethod
    def rows(self, pages: pl.DataFrame, grouping: Grouping) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        """Make the rows of some pages, and their preferences if preferences have weights.

        Args:
            pages: weighted pages, as from `weighted_pages`.
            grouping: by page or by query.

        Returns:
            The rows: `group` (from 0, ascending), the ids, the label, `weight` and more. The preferences, or None:
            `group`, [`session`], `query`, `winner`, `loser`, `winner_row`, `loser_row` (from 0) and `weight`.
        """


Posterior = tuple[Floats, Floats, Floats]
"""Theta of each cell as a probability, NaN if unknown, shape (K,); and of each signature E[gamma | counts] and its
standard deviation with the errors of theta, NaN if these are unknown, shape (J,) each."""


@dataclass(frozen=True)
class DocumentSums:
    """Sums by document, or by signature of documents, over impressions with a propensity; arrays of shape (J,)."""

    impressions: Floats
    clicks: Floats
    beyond: Floats  # sum of clicks minus beta, the clicks due to trust in the position; >= -impressions
    attracted: Floats  # the same sum, each impression times its click weight
    expected: Floats  # expected clicks of a document with attractiveness 1
    posterior: Callable[[], Posterior]  # computes the posterior, maybe in a pass over the signatures
    options: WeightOptions
    whole: bool  # whether impressions and clicks are integers, not sums of weights
    replicates: Sequence[Floats] = ()  # `attracted` under each replicate weight
    signatures: CountTable | None = None  # counts by cell; None if impressions have propensities of their own

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
        """Compute the sums of signatures from their counts and click weights by cell."""
        known, click_weight = np.isfinite(weights.weight), np.nan_to_num([weights.weight, *weights.replicates])
        theta = np.where(known, np.maximum(np.nan_to_num(weights.propensity), options.min_propensity), 0.0)
        sums = np.empty((3 + len(click_weight), signatures.n_units))
        for units, block in signatures.blocks():
            shown = [block.impressions * by_cell[block.cell] for by_cell in (known, theta)]
            clicked = [block.clicks * by_cell[block.cell] for by_cell in (known, *click_weight)]
            sums[:, units] = [block.sum_by_unit(values) for values in (*shown, *clicked)]
        impressions, expected, clicks, attracted, *replicates = sums
        return cls(impressions, clicks, clicks, attracted, expected, posterior, options, whole, replicates, signatures)


class LayoutOfCounts(Layout):
    """A layout made from counts by query and document."""

    @abstractmethod
    def by_document(self, sums: DocumentSums) -> tuple[Floats, RowsOfPairs]:
        """Return the values of each signature, shape (J, S), and the function that makes a part's rows from them."""


def add_up_signatures(pairs: pl.DataFrame, by_signature: Floats) -> tuple[pl.DataFrame, Floats]:
    """Sum values by signature over the rows of each document of a part.

    Args:
        pairs: `query`, `doc`, `signature`, sorted by query and document; a document has a row per context.
        by_signature: the values, shape (J, S).

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
    """One group per click: the clicked document and the other documents of its page."""

    name = "clicked-group"
    groupings = ("query", "session")
    weighted = "group"
    nothing = "no click carries a weight"

    def rows(self, pages: pl.DataFrame, grouping: Grouping) -> tuple[pl.DataFrame, None]:
        """Make the rows of all groups, documents in ascending order, so that their order does not reveal the click.

        Returns:
            `group`, [`session`], `query`, `doc`, `label` (Int8, 1 for the clicked document), and, constant within a
            group, `weight` (sum w_i) and `clicks` (number of clicks of the group).
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
        """Keep the groups that still contain their clicked document."""
        return rows.filter(pl.col(LABEL).max().over(GROUP) == 1)


def clicked_groups(pages: pl.DataFrame, pairs: pl.DataFrame, grouping: Grouping) -> pl.DataFrame:
    """Return each weighted click with its candidates, the documents of its page; pairs are coded as row numbers.

    Args:
        pages: weighted pages.
        pairs: their distinct (query, document), ascending: the code of a pair is its row.
        grouping: by query, clicks on one document among the same candidates are merged; by session, each click is a
            group.

    Returns:
        [`session`], clicked code, candidates (list of codes, ascending), weights and `clicks`; sorted by clicked code
        and first page, or by page.
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
"""Their row numbers, from 0."""

_ROW = "posbias_row"


class PairsLayout(LayoutOfPages):
    """Preferences among documents."""

    name = "pairs"
    groupings = ("query", "session")
    weighted = "preference"
    columns_without_information = (GROUP, LABEL, WEIGHT)
    nothing = "no click carries a weight and has another document beside it"

    def rows(self, pages: pl.DataFrame, grouping: Grouping) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Make the rows of documents, and the preferences among them.

        By query, a document is one row and equal preferences are merged; by session, by page.

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
        """Return the columns that identify a row."""
        return (SESSION, QUERY, DOC, POSITION)

    def rows(self, pages: pl.DataFrame, grouping: Grouping) -> tuple[pl.DataFrame, None]:
        """Make the rows of weighted pages, each page a group, or all pages of a query one group."""
        rows = pages.filter((pl.col(CLICK) == 0) | WEIGHTED_CLICK)
        if grouping == "query":
            rows = rows.sort(QUERY, maintain_order=True)
        key = SESSION if grouping == "session" else QUERY
        return rows.select(pl.col(key).rle_id().cast(pl.Int64).alias(GROUP), pl.all()), None


_TINY = 1e-300  # with theta = gamma = 1 no impression is without a click: their expected attractions are 0, not 0/0


class PointwiseLayout(LayoutOfCounts):
    """Two rows per document, of weights W+ and W-, for any learner that takes a weight per row."""

    name = "pointwise"
    ranked = False
    columns_without_information = (GROUP,)
    takes = ("negatives",)

    def by_document(self, sums: DocumentSums) -> tuple[Floats, RowsOfPairs]:
        """Return max(W+, 0), the impressions, and W+ under each replicate weight, shape (J, 2 + N)."""
        positive = np.maximum(sums.attracted, 0.0)
        if sums.options.negatives == "posterior" and sums.signatures is not None:
            examination, gamma, _ = sums.posterior()
            positive = expected_attractions(sums.signatures, examination, gamma)
        return np.column_stack([positive, sums.impressions, *sums.replicates]), pointwise_rows


def expected_attractions(signatures: CountTable, examination: Floats, attractiveness: Floats) -> Floats:
    """Return the expected number of impressions on which a document attracted, given its clicks: W+ of the posterior.

        W+ = sum_e { c_e + (n_e - c_e) P(A = 1 | c = 0) },  P(A = 1 | c = 0) = gamma (1 - theta) / (1 - theta gamma)

    Each impression counts at most 1, whatever the theta of its cell: nothing needs clipping.

    Args:
        signatures: counts per (signature, cell).
        examination: theta as a probability, shape (K,), 0 < theta <= 1; NaN for cells to leave out.
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
    """Make the rows of a part.

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


_ABOVE_TOP = 0.01  # share of documents: a few rates from hardly any impressions must not stretch the scale of grades


class JudgmentsLayout(LayoutOfCounts):
    """The debiased click rate of each document, and its grade."""

    name = "judgments"
    weighted = None
    graded = True
    one_row_per_document = True
    columns_without_information = (GROUP, WEIGHT)
    takes = ("rate", "grades")

    def by_document(self, sums: DocumentSums) -> tuple[Floats, RowsOfPairs]:
        """Return the terms of the rate; negative rates, possible under trust bias, become 0.

        Returns:
            Impressions, clicks, numerator and denominator of the rate, and the variance of the numerator (NaN if
            unknown), shape (J, 5).

        Raises:
            StatisticsError: the rate is `posterior`, and a signature has no attractiveness.
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
    """Return the rate that a hundredth of the documents exceed; 0 if none was clicked.

    Args:
        terms: as from `JudgmentsLayout.by_document`, shape (J, 5).
        multiplicity: number of documents of each signature, shape (J,).
    """
    return top_value(np.divide(terms[:, 2], terms[:, 3], out=np.zeros(len(terms)), where=terms[:, 3] > 0), multiplicity)


def top_value(rate: Floats, multiplicity: Floats) -> float:
    """Return the value that a hundredth of the rates, shape (J,), with their multiplicities exceed; 0 without rates."""
    order = np.argsort(rate)
    above = multiplicity.sum() - np.cumsum(multiplicity[order])
    return float(rate[order][np.argmax(above <= _ABOVE_TOP * multiplicity.sum())]) if len(rate) else 0.0


_ROUNDING = 1e-9  # relative error of labels, so that a log has the same grades on every processor


def grade_labels(label: Floats, top: float, grades: int) -> Integers:
    """Return the grade of each label, 0 .. grades - 1, same shape; a label within rounding below a step reaches it."""
    steps = np.floor(grades * label / top * (1 + _ROUNDING)) if top > 0 else np.zeros(len(label))
    return np.minimum(steps, grades - 1).astype(np.int64)


def judgment_rows(pairs: pl.DataFrame, terms: Floats, *, top: float, grades: int, whole: bool) -> pl.DataFrame:
    """Make the rows of a part, without documents that have no impression in a cell with a propensity.

    Args:
        pairs: `query`, `doc`, `signature`, as for `add_up_signatures`.
        terms: as from `JudgmentsLayout.by_document`, shape (J, 5).
        top: as from `top_rate`.
        grades: number of grades G, at least 2.
        whole: whether impressions and clicks are integers, not sums of weights.

    Returns:
        `group`, `query`, `doc`, `label` (Float64 >= 0), `label_std_dev` (null if unknown), `grade` (Int32, 0 .. G - 1),
        `impressions`, `clicks` and `weight` (1).
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
    """Return the names of the layouts that need the pages of the log."""
    return [name for name, layout in _LAYOUTS.plugins.items() if layout.from_pages]


def choose_grouping(layout: Layout, requested: Grouping | None) -> Grouping:
    """Return the requested grouping, or the layout's default.

    Raises:
        UsageError: the layout does not support the requested grouping.
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
