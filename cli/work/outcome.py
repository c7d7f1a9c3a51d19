"""What a comparison comes to: its tables, what is written, which conditions are met, and the exit code."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from posbias.cli.options.comparing import ComparingOptions
from posbias.cli.work.comparing import Comparison
from posbias.core.comparison.curves import Differences
from posbias.core.comparison.tables import DAY, beyond
from posbias.core.errors import UsageError
from posbias.core.standard_errors.contrasts import ContrastTest
from posbias.core.wording import counted, shown
from posbias.io.fits.cells_in_words import label_in_words
from posbias.io.jobs.result import CHANGED, DONE, WITH_DOUBTS, Column, Printed, PrintedTable, first, more
from posbias.io.jobs.tables import cell_column, interval_in_words, number_in_words
from posbias.io.results.tables import write_small_table

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


SCHEMA = "posbias.comparison"
COMPARISON = "comparison"


@dataclass(frozen=True)
class Outcome:
    """What is said of a comparison.

    Attributes:
        printed: tables and sentences.
        verdicts: those of them that say what was found.
        warnings: sentences that are always shown.
        conditions: what of `--max-change` and `--fail-if` is met.
        exit_code: 3 where some of it is, 1 where an estimate did not converge.
    """

    printed: tuple[Printed, ...]
    verdicts: tuple[str, ...]
    warnings: tuple[str, ...]
    conditions: tuple[str, ...]
    exit_code: int


def judge(found: Comparison, asked: ComparingOptions) -> Outcome:
    """Say what was found, and look at the conditions.

    Raises:
        UsageError: a condition asks for what cannot be known.
    """
    asks_for_errors = asked.max_change is not None or "change" in (asked.fail_if or ())
    if asks_for_errors and not found.found.test.n_contrasts:
        raise UsageError(
            "--max-change and --fail-if change need standard errors, and there are none to compare. Use a method that "
            "has them, such as --method conditional."
        )
    conditions, warnings = list[str](), list[str]()
    if asked.max_change is not None:
        far = beyond(found.table, asked.max_change)
        if far.height:
            row = far.sort((far["ratio"].log()).abs(), descending=True).row(0, named=True)
            labels = [*(["day"] if found.of == "days" else []), *found.cells]
            conditions.append("max-change")
            warnings.append(
                f"--max-change {asked.max_change:g}: {far.height} of {found.found.difference.size} propensities "
                f"changed by more than that, most at {in_words(row, labels)}, by a factor of {row['ratio']:.3g}."
            )
    for condition in dict.fromkeys(asked.fail_if or ()):
        if condition in found.met:
            conditions.append(condition)
            warnings.append(f"--fail-if {condition}: {found.met[condition]}.")
    if "not-converged" in found.met and "not-converged" not in conditions:
        warnings.append(f"{found.met['not-converged']}: do not rely on what is compared.")
    verdicts = (verdict(found.table, found.cells, found.found, found.of), *found.notes)
    title = f"propensities relative to {in_words(found.references.row(0, named=True), found.cells)}"
    if found.references.height > 1:
        title += f", and likewise in {counted(found.references.height - 1, 'other contexts')}"
    if found.of == "days":
        said = days_report(found.table, found.cells, f"{len(found.names)} days, {title}")
    else:
        said = change_report(found.table, found.cells, found.names, title)
    code = CHANGED if conditions else WITH_DOUBTS if "not-converged" in found.met else DONE
    return Outcome((*said, *verdicts), verdicts, tuple(warnings), tuple(conditions), code)


def described(found: Comparison, outcome: Outcome) -> dict[str, Any]:
    """What the manifest says about a comparison."""
    return {
        "schema": SCHEMA,
        COMPARISON: {
            "of": found.of,
            "names": list(found.names),
            "test": _test(found.found.test),
            "found": dict(found.met),
            "conditions_met": list(outcome.conditions),
            "differences": [_plain(row) for row in found.table.to_dicts()],
        },
        "verdicts": list(outcome.verdicts),
    }


def write(found: Comparison, folder: Path, *, csv: bool) -> None:
    """Write the table of differences."""
    write_small_table(found.table, folder, COMPARISON, csv=csv)


def _test(test: ContrastTest) -> dict[str, float | int | None]:
    known = test.n_contrasts > 0
    return {
        "contrasts": test.n_contrasts,
        "p_value": test.p_value if known else None,
        "statistic": test.statistic if known else None,
        "degrees": test.degrees if known else None,
    }


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if value is None or isinstance(value, int | float | str) else str(value)
        for name, value in row.items()
    }
