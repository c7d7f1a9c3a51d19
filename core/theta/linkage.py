"""Which cells a log can compare with the reference (identifiability).

Directed graph on cells: e' -> e if some unit was shown in both and clicked in e. The ratio of two cells has a finite
estimate exactly if both lie in one strongly connected component (Ford 1957; Hunter 2004).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers, sum_by_number
from posbias.core.arrays.linalg import Sparse, by_unit_and_cell, connected, counted, nonzero, sparse_product, sparse_sum
from posbias.core.arrays.threads import at_once
from posbias.core.errors import IdentifiabilityError

NO_CLICKS = "no clicks"
ONE_WAY = "clicks link one way only"
NO_REFERENCE = "the reference asked for is not linked in its context"
NOT_LINKED = "no pair links it to the reference"


@dataclass(frozen=True)
class Linkage:
    """What the log can say about each of K cells."""

    # Shape (K,), the cell that each cell is compared with. Cells of one group (a context) share theirs, which is
    # compared with itself; where a group links nothing, it is merely its first cell.
    reference_of: Integers
    identified: Flags  # shape (K,), whether the cell lies in its reference's strongly connected component
    # K reasons, None for an identified cell. `no clicks`: clicked pairs link it to identified cells, but no linking
    # pair was ever clicked in it; `clicks link one way only`: linked, but not there and back; `no pair links it to the
    # reference`; `the reference asked for is not linked in its context`.
    reason: tuple[str | None, ...]
    # Shape (K,), clicked pairs that are shown in this cell and in another one of its component; for a cell without
    # clicks, in this cell and in an identified one
    linking_pairs: Floats
    linking_clicks: Floats  # shape (K,), the clicks of those pairs in that component
    component: Integers  # shape (K,), the smallest cell of the strongly connected component that the cell lies in

    @property
    def references(self) -> Integers:
        """The cells that others are compared with, ascending: one per group that links any."""
        return np.unique(self.reference_of[self.identified])

    def comparable(self) -> list[Integers]:
        """The groups of at least two cells that can be compared among themselves, the largest first."""
        groups = [np.flatnonzero(self.component == first) for first in np.unique(self.component[self.component >= 0])]
        return sorted((group for group in groups if len(group) > 1), key=lambda group: (-len(group), int(group[0])))


def find_linkage(
    table: CountTable, group_of_cell: Integers | None = None, preference: Integers | None = None
) -> Linkage:
    """Choose the reference, one per group of cells, and find the cells that can be compared with it.

    Args:
        table: counts per unit (a pair, stratum or signature) and cell.
        group_of_cell: shape (K,), any numbers: cells of different groups (contexts) share no unit, and each group has
            a reference of its own. By default all cells are one group.
        preference: the cells that may be a reference, best first; by default all, in their order. In each group the
            first one that is linked to another cell is taken.

    Raises:
        IdentifiabilityError: there is no click, or only one cell, or no preferred cell is linked to another one.
    """
    group = np.zeros(table.n_cells, np.int64) if group_of_cell is None else group_of_cell
    preference = np.arange(table.n_cells) if preference is None else preference
    links = table.take(np.flatnonzero(table.links))
    edges = _edges(links)
    component = _components(edges, table.n_cells, both_ways=True)
    size = np.bincount(component, minlength=table.n_cells)[component]
    candidates = preference[size[preference] > 1]
    if not len(candidates):
        raise IdentifiabilityError(_why_nothing_is_linked(table, n_linked=int((size > 1).sum())))
    reference_of = _references(group, candidates)
    has = np.isin(reference_of, candidates)
    identified = (component == component[reference_of]) & has
    lost = ~has & (len(preference) < table.n_cells)
    connection = _components(edges, table.n_cells, both_ways=False)  # in whatever direction and number of steps
    pairs, clicks = _linking_counts(links, component)
    silent_pairs, silent_clicks = _linking_counts_of_silent(links, identified)
    never_clicked = ~np.isin(np.arange(table.n_cells), edges[1])
    silent = (silent_pairs > 0) & ~identified & never_clicked
    return Linkage(
        reference_of=reference_of,
        identified=identified,
        reason=_reasons(identified, silent, linked=(connection == connection[reference_of]) & has, lost=lost),
        linking_pairs=np.where(silent, silent_pairs, pairs),
        linking_clicks=np.where(silent, silent_clicks, clicks),
        component=component,
    )


def comparable_in_order(table: CountTable, linkage: Linkage, position_of_cell: Integers) -> Flags:
    """Which cells have a bounded ratio to their reference on curves that nowhere rise with the position, shape (K,).

    A direction d in which neither a click nor the order holds the curve back has d_e' <= d_e along each edge e' -> e,
    and likewise from each position to the one above it. A cell is held on both sides exactly if it lies in its
    reference's strongly connected component of both kinds of edges together.

    Args:
        table: counts per unit (a pair, stratum or signature) and cell.
        linkage: which cells the log alone can compare, of the same table.
        position_of_cell: shape (K,).
    """
    links = table.take(np.flatnonzero(table.links))
    order = np.lexsort((position_of_cell, linkage.reference_of))
    follows = np.diff(linkage.reference_of[order]) == 0
    tails, heads = _edges(links)
    edges = np.concatenate([tails, order[1:][follows]]), np.concatenate([heads, order[:-1][follows]])
    component = _components(edges, table.n_cells, both_ways=True)
    size = np.bincount(component, minlength=table.n_cells)[component]
    lost = np.array([reason == NO_REFERENCE for reason in linkage.reason])
    return (component == component[linkage.reference_of]) & (size > 1) & ~lost


def _references(group: Integers, candidates: Integers) -> Integers:
    """The first candidate of each cell's group, or its first cell where the group has no candidate, shape (K,).

    e.g. groups [0, 0, 0, 1, 1], candidates [2, 0] -> [2, 2, 2, 3, 3]
    """
    ordered = np.concatenate([candidates, np.arange(len(group))])
    _, first, number = np.unique(group[ordered], return_index=True, return_inverse=True)
    return ordered[first][number[len(candidates) :]]


def _edges(links: CountTable) -> tuple[Integers, Integers]:
    """The cells e' and e of each edge e' -> e: some linking unit was shown in both and clicked in e."""

    def of_block(part: tuple[slice, CountTable]) -> Sparse:
        _, block = part
        clicked = by_unit_and_cell(block, (block.clicks > 0).astype(np.float64))
        return sparse_product(by_unit_and_cell(block, np.ones(block.n_entries)).T, clicked)

    none = np.empty(0, np.int64)
    together = counted(none, none, (links.n_cells, links.n_cells))
    for found in at_once(of_block, links.blocks()):
        together = sparse_sum(together, found)
    return nonzero(together)


def _components(edges: tuple[Integers, Integers], n_cells: int, *, both_ways: bool) -> Integers:
    """The smallest cell of each cell's component, shape (K,)."""
    labels = connected(*edges, n_cells, both_ways=both_ways)
    _, smallest, which = np.unique(labels, return_index=True, return_inverse=True)
    return smallest[which]


def _linking_counts(links: CountTable, component: Integers) -> tuple[Floats, Floats]:
    """Per cell, the clicked pairs that are shown in it and elsewhere in its component, and their clicks there."""

    def of_block(part: tuple[slice, CountTable]) -> tuple[Floats, Floats]:
        _, block = part
        _, group = np.unique(block.unit_of_entry * links.n_cells + component[block.cell], return_inverse=True)
        clicks = sum_by_number(group, block.clicks, len(group))[group]
        counts = (np.bincount(group)[group] > 1) & (clicks > 0)
        pairs = block.spread(block.multiplicity) * counts
        return block.sum_by_cell(pairs), block.sum_by_cell(pairs * clicks)

    return _summed(at_once(of_block, links.blocks()), links.n_cells)


def _linking_counts_of_silent(links: CountTable, identified: Flags) -> tuple[Floats, Floats]:
    """Per cell, the pairs shown in it that were clicked in identified cells, and those clicks."""

    def of_block(part: tuple[slice, CountTable]) -> tuple[Floats, Floats]:
        _, block = part
        clicks = block.spread(block.sum_by_unit(block.clicks * identified[block.cell]))
        pairs = block.spread(block.multiplicity) * (clicks > 0)
        return block.sum_by_cell(pairs), block.sum_by_cell(pairs * clicks)

    return _summed(at_once(of_block, links.blocks()), links.n_cells)


def _summed(blocks: Iterable[tuple[Floats, Floats]], n_cells: int) -> tuple[Floats, Floats]:
    totals = np.zeros((2, n_cells))
    for of_block in blocks:
        totals += of_block
    return totals[0], totals[1]


def _reasons(identified: Flags, silent: Flags, linked: Flags, lost: Flags) -> tuple[str | None, ...]:
    reasons = np.select([lost, silent, linked], [NO_REFERENCE, NO_CLICKS, ONE_WAY], default=NOT_LINKED)
    return tuple(None if known else str(reason) for known, reason in zip(identified, reasons, strict=True))


def _why_nothing_is_linked(table: CountTable, n_linked: int) -> str:
    n_shown = len(np.unique(table.cell))
    if n_shown <= 1:
        return (
            f"The log shows documents in {n_shown} cell(s) (positions) only, so there is nothing to compare. "
            "Position bias needs results at two or more positions."
        )
    if not table.clicks.any():
        return (
            f"The log has no click in any of its {n_shown} cells (positions), so nothing can be said about them. "
            "Check which column holds the clicks (--click), or add more days."
        )
    if n_linked:
        return (
            "The cell (position) asked for as the reference cannot be compared with any other one, while "
            f"{n_linked} others can be compared among themselves. Take one of those as the reference."
        )
    return (
        f"No two of the {n_shown} cells (positions) can be compared: no document was shown at two positions for the "
        "same query and clicked in such a way that clicks lead from one position to the other and back. Position "
        "swaps would help: let the same document appear at different positions for the same query now and then (more "
        "days, a changed ranker, or a little randomisation), so that it is clicked at both. Where no document is shown "
        "twice for a query, features of the documents serve instead (`posbias fit LOGS --method features`)."
    )
