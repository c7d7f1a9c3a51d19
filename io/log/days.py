"""The days of a log, and which of them are hardly meant."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, cast

import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.schema import ALIASES, DOC, QUERY
from posbias.io.log.scan import reading, scan_sources
from posbias.io.log.sources import LOG_OF_SIMULATION, digests, find_sources
from posbias.io.results.conclusions import CAUTION, Reason

_LONG_GAP = timedelta(days=31)
_HARDLY_ANY = 0.01  # of the rows of a usual day


@dataclass(frozen=True)
class Days:
    """Days with their rows."""

    rows: Mapping[date, float]  # number of rows (impressions, of statistics) by day
    today: date  # the day on which they are read
    read_as: str | None = None  # the unit of timestamps that are numbers

    @cached_property
    def in_order(self) -> list[date]:
        """The days, the first one first."""
        return sorted(self.rows)

    @cached_property
    def after_tomorrow(self) -> list[date]:
        """Days that cannot be over: somewhere it is tomorrow already, but nowhere the day after."""
        return [day for day in self.in_order if day > self.today + timedelta(days=1)]

    @cached_property
    def far_off(self) -> list[date]:
        """Days with hardly any rows that more than a month parts from the others."""
        groups = self._groups()
        most = max(groups, key=lambda group: sum(self.rows[day] for day in group), default=list[date]())
        usual = median([self.rows[day] for day in most]) if most else 0
        few = [group for group in groups if max(self.rows[day] for day in group) < _HARDLY_ANY * usual]
        return [day for group in few for day in group if day not in self.after_tomorrow]

    @property
    def newest(self) -> date:
        """The last day that can be meant; the last one of all where none can."""
        doubtful = {*self.after_tomorrow, *self.far_off}
        return max((day for day in self.in_order if day not in doubtful), default=self.in_order[-1])

    def describe(self) -> dict[str, Any]:
        """As plain values, for the manifest."""
        first, last = self.in_order[0], self.in_order[-1]
        described: dict[str, Any] = {"first": first.isoformat(), "last": last.isoformat(), "number": len(self.rows)}
        return described if self.read_as is None else {**described, "read_as": self.read_as}

    def reasons(self) -> list[Reason]:
        """What is wrong with days."""
        return [
            Reason(
                "odd-dates",
                CAUTION,
                f"{_rows(rows := sum(self.rows[day] for day in days))} dated {why}: {_listed(days)}. Look at the "
                "timestamps.",
                {"rows": rows},
            )
            for days, why in (
                (self.after_tomorrow, "after tomorrow"),
                (self.far_off, "more than a month away from the others"),
            )
            if days
        ]

    def _groups(self) -> list[list[date]]:
        """The days, parted where there is none for long."""
        groups = [self.in_order[:1]] if self.in_order else []
        for before, day in pairwise(self.in_order):
            if day - before > _LONG_GAP:
                groups.append([])
            groups[-1].append(day)
        return groups


def look_odd(days: Mapping[date, object], today: date) -> bool:
    """Whether it is worth counting rows to find implausible days, where only the days themselves are known."""
    in_order = sorted(days)
    gaps = [later - earlier for earlier, later in pairwise(in_order)]
    return bool(in_order) and (in_order[-1] > today + timedelta(days=1) or max(gaps, default=timedelta()) > _LONG_GAP)


def _rows(number: float) -> str:
    return "1 row is" if number == 1 else f"{number:,.0f} rows are"


def _listed(days: list[date]) -> str:
    shown = ", ".join(day.isoformat() for day in days[:3])
    return shown if len(days) <= 3 else f"{shown}, ... {days[-1]} ({len(days):,} days)"  # noqa: PLR2004 - as above


TRUTH = "truth.parquet"
PARAMETERS_TRUTH = "parameters_truth.parquet"
ATTRACTIVENESS_TRUTH = "attractiveness_truth.parquet"

_LABEL = "label"
_LABEL_NAMES = (_LABEL, "grade", "relevance")
_STORAGE: dict[str, Any] = {"compression": "zstd", "compression_level": 1}


def write_log(blocks: Iterable[pl.DataFrame], folder: Path) -> None:
    """Write `log.parquet` block by block, one row group each."""
    parquet: Any = import_module("pyarrow.parquet")  # only here: importing it takes time, and it has no types
    writer: Any = None
    try:
        for block in blocks:
            table = cast("Any", block.to_arrow())
            writer = writer or parquet.ParquetWriter(folder / LOG_OF_SIMULATION, table.schema, **_STORAGE)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def write_truth(
    propensities: pl.DataFrame, parameters: pl.DataFrame, attractiveness: pl.DataFrame, folder: Path
) -> None:
    """Write `truth.parquet`, by cell, `parameters_truth.parquet` and `attractiveness_truth.parquet`, by pair.

    A table without columns says that the model has nothing of the kind, and is not written.
    """
    tables = {TRUTH: propensities, PARAMETERS_TRUTH: parameters, ATTRACTIVENESS_TRUTH: attractiveness}
    for name, table in tables.items():
        if table.columns:
            table.write_parquet(folder / name)


def read_labels(name: str) -> tuple[pl.DataFrame, dict[str, str]]:
    """Read graded labels: query, doc, label, and whatever numeric columns there are, as features.

    Text that holds numbers throughout, as all columns of CSV may, counts as numeric.

    Returns:
        The table, and path by digest of its files.

    Raises:
        LogFormatError: the file is missing or cannot be read.
        SchemaError: it lacks one of the three columns.
    """
    sources = find_sources([name], "Name a table of query, doc and label.")
    with reading(sources):
        raw = scan_sources(sources).collect()
    roles = {
        _column(role, known, raw.columns, name): role
        for role, known in ((QUERY, ALIASES[QUERY]), (DOC, ALIASES[DOC]), (_LABEL, _LABEL_NAMES))
    }
    keys = [column for column, role in roles.items() if role != _LABEL]
    others = [_as_numbers(raw[column]) for column in raw.columns if column not in keys]
    return raw.select(keys).with_columns(others).rename(roles), digests(sources, holds_rows=lambda _: True)


def _column(role: str, known: tuple[str, ...], columns: list[str], where: str) -> str:
    names = [column for column in columns if column.lower() in known]
    if len(names) == 1:
        return names[0]
    shown = ", ".join(columns[:20]) + (", ..." if len(columns) > 20 else "")  # noqa: PLR2004 - a line's worth
    if names:
        raise SchemaError(f"{where}: {len(names)} columns could be the {role}: {', '.join(names)}. Keep one of them.")
    raise SchemaError(
        f"{where}: no column is named {' or '.join(known)}. Rename the {role} column. There are: {shown}."
    )


def _as_numbers(values: pl.Series) -> pl.Series:
    if values.dtype != pl.String:
        return values
    numbers = values.cast(pl.Float64, strict=False)
    return numbers if numbers.null_count() == values.null_count() else values
