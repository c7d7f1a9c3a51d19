"""What a log says, compressed: the tables of counts that every estimator works on.

Statistics come in parts, each holding whole queries. A part is compressed by itself, then the parts are merged, so
that memory grows with the signatures and not with the log.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from posbias.core.schema import CLICKS, IMPRESSIONS, PAIR, QUERY
from posbias.core.signatures import CountTable, Floats, Integers, compress, merge
from posbias.core.statistics_plan import StatisticsPlan

SIGNATURE = "signature"
_CELL = "posbias_cell"


@dataclass(frozen=True)
class EvidencePart:
    """The compressed statistics of one part. Cells are numbered within the part.

    Attributes:
        cells: the cell columns, sorted; a cell's number is its row.
        pairs: `query`, `doc`, `impressions`, `clicks`, `signature` (row of `pair_signatures`), sorted by pair.
        pair_signatures: counts per (pair, cell), compressed: for attractiveness and weights.
        strata_signatures: counts per (stratum, cell), compressed: for theta. A stratum is a pair, unless
            the plan keeps periods or other strata apart.
        member_signature: stratum signature of each stratum with a click and at least two cells.
        member_query: the query of that stratum, numbered within the part.
        n_queries: number of queries.
        n_pairs: number of (query, doc) pairs.
    """

    cells: pl.DataFrame
    pairs: pl.DataFrame
    pair_signatures: CountTable
    strata_signatures: CountTable
    member_signature: Integers
    member_query: Integers
    n_queries: int
    n_pairs: int

    def without_pairs(self) -> "EvidencePart":
        """The part without its pairs, which are the large part of it and need not stay in memory."""
        return replace(self, pairs=self.pairs.clear())


@dataclass(frozen=True)
class Evidence:
    """All parts together. Cells are numbered over the whole log.

    Attributes:
        cells: the cell columns, sorted; a cell's number is its row.
        pair_signatures: counts per (pair, cell), compressed.
        strata_signatures: counts per (stratum, cell), compressed.
        member_signature: stratum signature of each stratum with a click and at least two cells.
        member_query: the query of that stratum.
        signature_of_part: for each part, the row of `pair_signatures` by the part's own signature number.
        n_queries: number of queries.
        n_pairs: number of (query, doc) pairs.
        has_strata: whether a stratum is finer than a pair.
    """

    cells: pl.DataFrame
    pair_signatures: CountTable
    strata_signatures: CountTable
    member_signature: Integers
    member_query: Integers
    signature_of_part: tuple[Integers, ...]
    n_queries: int
    n_pairs: int
    has_strata: bool

    @property
    def n_cells(self) -> int:
        """Number of cells K."""
        return self.cells.height

    def cell_totals(self) -> tuple[Floats, Floats]:
        """Impressions and clicks per cell, each of shape (K,)."""
        table = self.pair_signatures
        copies = table.spread(table.multiplicity)
        return table.sum_by_cell(copies * table.impressions), table.sum_by_cell(copies * table.clicks)


def compress_part(statistics: pl.DataFrame, plan: StatisticsPlan) -> EvidencePart:
    """Compress the statistics of whole queries (the plan's keys, `impressions`, `clicks`; in any order)."""
    cell_columns = plan.model.cell_columns
    rows = statistics.sort(*plan.keys)
    cells = rows.select(cell_columns).unique().sort(*cell_columns)
    rows = rows.join(cells.with_row_index(_CELL), on=list(cell_columns), how="left", maintain_order="left")
    strata = _table(rows, (*PAIR, *plan.strata_columns), cells.height)
    strata_signatures, signature_of_stratum = compress(strata)
    linking = _links(strata)
    query_of_row = rows.select(pl.col(QUERY).rle_id()).to_series().to_numpy().astype(np.int64)
    if plan.strata_columns:
        rows = rows.group_by(*PAIR, _CELL).agg(pl.col(IMPRESSIONS).sum(), pl.col(CLICKS).sum()).sort(*PAIR, _CELL)
        pairs = _table(rows, PAIR, cells.height)
        pair_signatures, signature_of_pair = compress(pairs)
    else:
        pairs, pair_signatures, signature_of_pair = strata, strata_signatures, signature_of_stratum
    first = pairs.start[:-1]
    return EvidencePart(
        cells=cells,
        pairs=rows.select(*PAIR)[first].with_columns(
            pl.Series(IMPRESSIONS, np.add.reduceat(rows[IMPRESSIONS].to_numpy(), first)),
            pl.Series(CLICKS, np.add.reduceat(rows[CLICKS].to_numpy(), first)),
            pl.Series(SIGNATURE, signature_of_pair),
        ),
        pair_signatures=pair_signatures,
        strata_signatures=strata_signatures,
        member_signature=signature_of_stratum[linking],
        member_query=query_of_row[strata.start[:-1]][linking],
        n_queries=int(query_of_row[-1]) + 1,
        n_pairs=len(first),
    )


def merge_parts(parts: Sequence[EvidencePart], plan: StatisticsPlan) -> Evidence:
    """Number cells and queries over all parts, and merge equal signatures."""
    columns = parts[0].cells.columns
    cells = pl.concat([part.cells for part in parts]).unique().sort(*columns)
    numbered = cells.with_row_index(_CELL)
    new_cell = [
        part.cells.join(numbered, on=columns, how="left", maintain_order="left")[_CELL].to_numpy().astype(np.int64)
        for part in parts
    ]
    pair_signatures, signature_of_part = merge(
        [_renumbered(part.pair_signatures, cell, cells.height) for part, cell in zip(parts, new_cell, strict=True)]
    )
    strata_signatures, stratum_of_part = merge(
        [_renumbered(part.strata_signatures, cell, cells.height) for part, cell in zip(parts, new_cell, strict=True)]
    )
    first_query = np.cumsum([0, *(part.n_queries for part in parts)])
    return Evidence(
        cells=cells,
        pair_signatures=pair_signatures,
        strata_signatures=strata_signatures,
        member_signature=np.concatenate(
            [new[part.member_signature] for part, new in zip(parts, stratum_of_part, strict=True)]
        ),
        member_query=np.concatenate(
            [part.member_query + first for part, first in zip(parts, first_query[:-1], strict=True)]
        ),
        signature_of_part=tuple(signature_of_part),
        n_queries=int(first_query[-1]),
        n_pairs=sum(part.n_pairs for part in parts),
        has_strata=bool(plan.strata_columns),
    )


def _table(rows: pl.DataFrame, unit: Sequence[str], n_cells: int) -> CountTable:
    """Rows sorted by unit and cell as a table of counts."""
    unit_of_row = rows.select(pl.struct(*unit).rle_id()).to_series().to_numpy()
    first = np.flatnonzero(np.diff(unit_of_row, prepend=-1))
    impressions = rows[IMPRESSIONS].to_numpy().astype(np.float64)
    return CountTable(
        n_cells=n_cells,
        start=np.append(first, rows.height).astype(np.int64),
        cell=rows[_CELL].to_numpy().astype(np.int64),
        impressions=impressions,
        # Sums of weights are rounded: clicks must not exceed impressions by it.
        clicks=np.minimum(rows[CLICKS].to_numpy().astype(np.float64), impressions),
        multiplicity=np.ones(len(first)),
    )


def _links(table: CountTable) -> Integers:
    """The units with a click and at least two cells: the only ones that say something about theta."""
    return np.flatnonzero((table.sum_by_unit(table.clicks) > 0) & (table.entries_of_unit > 1))


def _renumbered(table: CountTable, new_cell: Integers, n_cells: int) -> CountTable:
    return CountTable(
        n_cells=n_cells,
        start=table.start,
        cell=new_cell[table.cell],
        impressions=table.impressions,
        clicks=table.clicks,
        multiplicity=table.multiplicity,
    )
