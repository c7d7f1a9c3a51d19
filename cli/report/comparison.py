"""What a comparison says to a person: what has changed, how sure that is, and how it was compared."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from posbias.cli.report.summary import cell_column, interval_in_words, number_in_words
from posbias.cli.report.table import Column, Printed, PrintedTable, first, more
from posbias.core.comparison.curves import Differences
from posbias.core.comparison.tables import DAY
from posbias.core.wording import shown
from posbias.io.fits.cells_in_words import label_in_words

_MOST_DAYS = 10
_MOST_REASONS = 5


def change_report(table: pl.DataFrame, cells: Sequence[str], names: Sequence[str], title: str) -> list[Printed]:
    """Two curves side by side."""
    rows = table.to_dicts()
    columns = (
        *(cell_column(name, rows) for name in cells),
        Column("a", first(number_in_words(row["propensity_a"]) for row in rows)),
        Column("b", first(number_in_words(row["propensity_b"]) for row in rows)),
        Column("change", first(_signed(row["change"]) for row in rows), spare=1),
        *_ratios(rows, "b / a"),
    )
    named = [f"{letter}: {name}" for letter, name in zip("ab", names, strict=True)]
    below = more(len(rows), "cells in comparison.parquet (-o DIR)")
    return [*named, title, PrintedTable(columns, below), *_reasons(table, cells)]


def days_report(table: pl.DataFrame, cells: Sequence[str], title: str) -> list[Printed]:
    """The days and cells that differ most from the other days."""
    compared = table.drop_nulls("p_value")
    rows = compared.sort("p_value", maintain_order=True).head(_MOST_DAYS).to_dicts()
    columns = (
        Column(DAY, first(str(row[DAY]) for row in rows), label=True),
        *(cell_column(name, rows) for name in cells),
        Column("propensity", first(number_in_words(row["propensity"]) for row in rows), folded="propen-\nsity"),
        Column("other days", first(number_in_words(row["other_days"]) for row in rows), folded="other\ndays"),
        *_ratios(rows, "ratio"),
    )
    rest = max(compared.height - _MOST_DAYS, 0)
    below = (
        f"the {len(rows)} that differ most; {rest:,} more, and all days, in comparison.parquet (-o DIR)" if rest else ""
    )
    return [title, PrintedTable(columns, below), *_reasons(table, [DAY, *cells])]


def verdict(table: pl.DataFrame, cells: Sequence[str], found: Differences, of: str) -> str:
    """Whether anything has changed."""
    test = found.test
    between = "between days" if of == "days" else "between a and b"
    if not test.n_contrasts:
        return f"nothing can be said about changes {between}: no difference has a standard error."
    tested = f"p = {test.p_value:.1g}, {test.n_contrasts:,} differences together"
    if not test.rejected:
        return f"no propensity differs significantly {between} ({tested})."
    row = table.row(test.largest, named=True)
    labels = [DAY, *cells] if of == "days" else cells
    sides = ("other_days", "propensity") if of == "days" else ("propensity_a", "propensity_b")
    values = " and ".join(number_in_words(row[side]) for side in sides)
    return f"propensities differ {between} ({tested}): most surely at {in_words(row, labels)}, {values}."


def in_words(row: dict[str, Any], labels: Sequence[str]) -> str:
    """A row by its labels, e.g. `day 2026-01-05, position 3`."""
    return ", ".join(f"{shown(name).replace('_', ' ')} {label_in_words(row[name])}" for name in labels)


def _ratios(rows: list[dict[str, Any]], heading: str) -> list[Column]:
    intervals = first(interval_in_words(row["ratio_ci_low"], row["ratio_ci_high"]) for row in rows)
    return [
        Column(heading, first(number_in_words(row["ratio"]) for row in rows)),
        Column("95 % interval", intervals, folded="95 %\ninterval", beside=True),
        Column("p, all\ntogether", first(_p_value(row["p_value_joint"]) for row in rows), folded="p"),
    ]


def _reasons(table: pl.DataFrame, labels: Sequence[str]) -> list[str]:
    """Why some rows are not compared."""
    rows = table.filter(pl.col("reason").is_not_null()).to_dicts()
    said = [f"{in_words(row, labels)}: {row['reason']}" for row in rows[:_MOST_REASONS]]
    return said + ([f"... and {len(rows) - _MOST_REASONS:,} more, see `reason`"] if len(rows) > _MOST_REASONS else [])


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"


def _p_value(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"
