"""The interface of layouts: what their rows are made of, and how a trainer has to take them.

Pages with their weights: what the layouts that keep pages apart start from.

Sums by document, for the layouts that add up all that was seen of a (query, document).
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import CountTable, Floats
from posbias.core.choices import LAYOUTS, Grouping, Plugin, Room
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SIGNATURE
from posbias.core.errors import UsageError
from posbias.core.fit.propensities import PROPENSITY
from posbias.core.log.pages import in_page_order
from posbias.core.schema import CLICK, DOC, POSITION, QUERY, SESSION, WEIGHT
from posbias.core.training.weights import CLICK_WEIGHT, ClickWeights, WeightOptions, replicate_names

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
        `session`, `query`, `doc`, `position`, `click`, `propensity` (null where the cell has none), `weight` (null for
        a click in such a cell), replicate weights, and the columns of the features.
    """
    shown = impressions.with_columns(pl.col(POSITION).alias(_SHOWN_POSITION))
    own = pl.col(WEIGHT).cast(pl.Float64) if plan.weighted else pl.lit(1.0)
    in_cells = plan.with_cells_in_memory(in_page_order(shown)).with_columns(own.alias(_OWN_WEIGHT))
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
        *(SESSION, QUERY, DOC, pl.col(_SHOWN_POSITION).alias(POSITION), CLICK, PROPENSITY),
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
    left_out: ClassVar[tuple[str, ...]] = ()
    # whether a row is one impression, so that a feature of the log stands in it as it was shown
    shows_impressions: ClassVar[bool] = False
    # whether every document has one row, but for those that are left out for want of a propensity
    one_row_each: ClassVar[bool] = False
    nothing: ClassVar[str] = "no row is left"  # the message where there is nothing to learn from

    def ids(self, grouping: Grouping) -> tuple[str, ...]:
        """The columns that say what a row is."""
        return (SESSION, QUERY, DOC) if self.from_pages and grouping == "session" else (QUERY, DOC)

    def still_of_use(self, rows: pl.DataFrame) -> pl.DataFrame:
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


@dataclass(frozen=True)
class Posterior:
    """The posterior of the attractiveness of each signature."""

    examination: Floats  # of each cell, shape (K,); nan where it has none
    mean: Floats  # E[gamma | counts], shape (J,)
    # its standard deviation with the errors of theta, shape (J,); None where these are not known
    std_dev: Floats | None


@dataclass(frozen=True)
class WeightedCounts:
    """The counts and weights for layouts that add up by (query, document)."""

    signatures: CountTable  # counts per (signature, cell)
    weights: ClickWeights  # the weight of a click in each cell
    options: WeightOptions  # which labels
    posterior: Callable[[], Posterior]  # finds what is known of attractiveness. It is a pass over the signatures
    whole: bool  # whether impressions and clicks are whole numbers, not sums of weights


@dataclass(frozen=True)
class WeighedDocuments:
    """Sums by document for layouts that add up, where each impression has a propensity of its own."""

    impressions: Floats  # of each document that have one, shape (J,)
    clicks: Floats  # among them
    # the clicks beyond those that trust in the position explains, >= -impressions; all of them without trust
    beyond: Floats
    attracted: Floats  # the same, each worth the weight of its impression
    expected: Floats  # what would have been clicked of an attractive document
    relevance: Floats  # what the click model says of the document, nan where it says nothing
    options: WeightOptions  # which labels
    whole: bool  # whether impressions and clicks are whole numbers, not sums of weights


class LayoutOfCounts(Layout):
    """A layout that is made from counts by query and document; with `by_document`, also where there are no cells."""

    @abstractmethod
    def by_signature(self, counts: WeightedCounts) -> tuple[Floats, RowsOfPairs]:
        """The values needed of each signature, shape (J, S), and the function that makes rows of them, part by part."""

    def by_document(self, documents: WeighedDocuments) -> tuple[Floats, RowsOfPairs]:
        """As `by_signature`, where each document is a signature of its own, shape (J, S).

        Raises:
            UsageError: the layout does not support it.
        """
        del documents
        raise UsageError(
            f"--layout {self.name}: is made from counts by cell, and --model has none. Choose another layout."
        )


def sums_by_document(pairs: pl.DataFrame, by_signature: Floats) -> tuple[pl.DataFrame, Floats]:
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
