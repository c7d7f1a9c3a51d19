"""Results of jobs, and their printed tables of rows, propensities and clicks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isnan
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
from msgspec import UNSET

from posbias.core.errors import plural, printable
from posbias.core.estimators.methods import ConditionalEstimator
from posbias.core.fit.fit import Fit
from posbias.core.fit.propensities import PROPENSITY, WEIGHT_PROPENSITY
from posbias.core.schema import POSITION
from posbias.io.fits.saved_fit import StoredFit
from posbias.io.fits.verdicts import (
    cell_in_words,
    clicks_above_in_words,
    context_in_words,
    interval_scope,
    label_in_words,
    listed,
    references_in_words,
)
from posbias.io.log.clicks import Clicks, RawLines, Rows
from posbias.io.log.events import EVENTS
from posbias.io.places.locations import Location
from posbias.io.progress import Progress
from posbias.io.results.conclusions import (
    STOP,
    Column,
    Conclusion,
    Printed,
    PrintedTable,
    Reason,
    conclude,
    explained_codes,
    has_stops,
    warning_sentences,
)
from posbias.io.results.manifest import write_manifest

DONE, WITH_DOUBTS, CHANGED = 0, 1, 3
PRINTED = "printed"
"""Section of the manifest with the printed tables."""

MOST_ROWS = 30
"""Largest number of printed rows of a table."""


def more(number: int, where: str) -> str:
    """Line below a table that omits rows beyond MOST_ROWS; empty if none is omitted."""
    return f"... and {number - MOST_ROWS:,} more {where}" if number > MOST_ROWS else ""


def first(cells: Iterable[str]) -> tuple[str, ...]:
    """Return the first MOST_ROWS cells of a column."""
    return tuple(islice(cells, MOST_ROWS))


@dataclass
class Result:
    """A result that a job builds: files, sections of the manifest, and reasons for its conclusion."""

    folder: Path  # temporary directory, moved to the output directory at the end
    progress: Progress
    target: str = "DIR"  # the output directory, as a command line names it
    content: dict[str, Any] = field(default_factory=dict[str, Any])  # sections of the manifest
    headline: str = ""  # the result in one sentence, without its full stop
    next: str | None = None  # suggested next command
    next_if_refused: str | None = None  # next command if the verdict is "do not use"
    printed: list[Printed] = field(default_factory=list[Printed])  # tables and lines around them
    reasons: list[Reason] = field(default_factory=list[Reason])  # for and against the result
    faults: list[Reason] = field(default_factory=list[Reason])  # of the log
    fit: StoredFit | None = None  # fit that the propensities are taken from
    facts: list[str] = field(default_factory=list[str])  # lines on files read and written
    curve: tuple[pl.DataFrame, tuple[str, ...]] | None = None  # propensities and their cell columns, to plot
    condition_met: bool = False  # whether `compare` meets --max-change or --fail-if, or `interleave` has a winner

    @property
    def all_reasons(self) -> list[Reason]:
        """Faults of the log, then reasons, without repetitions.

        Omitted are faults with the code of a reason, faults other than stops that `fit` states of the same log, and
        reasons that a fault explains.
        """
        stated, by_fit = {reason.code for reason in self.reasons}, frozenset[str]()
        if self.fit is not None and self.fit.sources == frozenset(self.content.get("sources", ())):
            by_fit = self.fit.cautions
        new = [fault for fault in self.faults if fault.code not in stated]
        explained = explained_codes(new)
        reasons = [reason for reason in self.reasons if reason.code not in explained]
        return [*(fault for fault in new if fault.severity == STOP or fault.code not in by_fit), *reasons]

    @property
    def conclusion(self) -> Conclusion:
        """Conclusion from headline, faults and reasons."""
        reasons = self.all_reasons
        return conclude(self.headline, reasons, self.next_if_refused if has_stops(reasons) else self.next)

    @property
    def exit_code(self) -> int:
        """Exit code: CHANGED if a condition is met, else WITH_DOUBTS if the verdict is "do not use", else DONE."""
        if self.condition_met:
            return CHANGED
        return WITH_DOUBTS if has_stops(self.all_reasons) else DONE

    @property
    def warnings(self) -> list[str]:
        """Sentences against the result."""
        return warning_sentences(self.all_reasons)


def write_description(
    result: Result, command: str, inputs: Sequence[str | Location], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the manifest of a result, the last of its files; return its content."""
    content = {"command": command, "inputs": [*map(str, inputs)], "options": dict(options), **result.content}
    printed = {"warnings": result.warnings, PRINTED: result.printed, "facts": result.facts}
    return write_manifest(result.folder, {**msgspec.to_builtins(result.conclusion), **content, **printed})


_MOST_REMARKS = 10
_THREE_DECIMALS = 0.01

_Cells = list[dict[str, Any]]


def rows_lines(rows: Rows) -> list[str]:
    """Lines on rows read and rejected, joined clicks, and raw lines by outcome."""
    lines = [f"rows: {rows_in_words(rows)}"]
    lines += [] if rows.clicks is UNSET else [f"clicks: {clicks_in_words(rows.clicks)}"]
    lines += [] if rows.ubi is UNSET else _raw_lines("UBI", account=rows.ubi)
    for name, account in ({} if rows.raw is UNSET else rows.raw).items():
        lines += _raw_lines(name, account=account, unit="rows" if name == EVENTS else "lines")
    return lines


def _raw_lines(name: str, *, account: RawLines, unit: str = "lines") -> list[str]:
    """Lines on the outcomes of lines of raw files, or of rows of an event table."""
    used = ", ".join(plural(count, what) for what, count in account.used.items() if count)
    positions = {} if account.positions is UNSET else account.positions
    where = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in positions.items() if count)
    others = sorted(account.not_used.items(), key=lambda entry: -entry[1])
    end = f" {unit.capitalize()} not used:" if others else ""
    source = f" (positions: {where})" if where else ""
    summary = [f"{name}: {plural(account.lines, unit)}; the log is built from {used}{source}.{end}"]
    return summary + [f"{lines:>11,}  {reason}" for reason, lines in others]


def rows_in_words(rows: Rows) -> str:
    """Count rows read and rejected, and clicks without an impression."""
    line = f"{rows.read:,} read"
    if rows.rejected:
        reasons = ", ".join(f"{count:,} because {reason}" for reason, count in rows.rejected.items())
        line += f", {sum(rows.rejected.values()):,} left out ({reasons})"
    orphans = 0 if rows.clicks_without_impression is UNSET else rows.clicks_without_impression
    return line + (f"; {plural(orphans, 'clicks')} without an impression" if orphans else "")


def clicks_in_words(clicks: Clicks) -> str:
    """Count separate click records by outcome."""
    again = f", {clicks.repeated:,} seen before" if clicks.repeated else ""
    reasons = ", ".join(f"{number:,} x {why}" for why, number in clicks.lost.items())
    lost = f", {sum(clicks.lost.values()):,} lost ({reasons})" if clicks.lost else ""
    return f"{clicks.read:,} read, {clicks.joined:,} joined to impressions{again}{lost}"


def propensity_table(fit: Fit) -> list[Printed]:
    """Print propensities with intervals, a second estimate and counts by cell, in up to 80 columns.

    With shrunk contexts, the unshrunk estimate replaces joint EM, impressions and linking clicks.
    """
    by_method = "" if fit.estimate.method == ConditionalEstimator.name else f" (--method {fit.estimate.method})"
    references: list[int] = fit.estimate.linkage.references.tolist()
    contexts, shrunk, borrowed = ", ".join(fit.statistics.plan.context), fit.shrunk, list[str]()
    relative_to = cell_in_words(fit.statistics, references[0])
    if contexts:  # each context has its own reference
        relative_to = f"{references_in_words(fit, fit.estimate.linkage.references)} of each {contexts}"
    form = ", as a product of effects" if fit.cell_form == "product" else ""
    title = f"propensities relative to {relative_to}{form}{by_method}"
    if shrunk is not None:
        title += f"; each {contexts} is shrunk towards the others"
        shares = [
            f"{context_in_words(fit, number)} {shrunk.borrowed_of_cell[number]:.0%}"
            for number in references
            if np.isfinite(shrunk.borrowed_of_cell[number])
        ]
        if len(shares) > 1:
            listed_shares = listed(shares, "borrowed_by_context")
            borrowed.append(
                f"share of each curve that is borrowed from the others: {listed_shares}. The intervals hold for each "
                f"{contexts} by itself, even where it differs from the others; where much is borrowed, the propensity "
                "may lie near an end of its interval."
            )
    rows = fit.propensities.to_dicts()
    columns = [cell_column(name, rows) for name in fit.statistics.cells.columns]
    if shrunk is None:
        columns.append(_numbers("impressions", "impressions", rows, ",.0f", folded="impres-\nsions"))
    columns.append(_numbers("clicks", "clicks", rows, ",.0f"))
    columns.append(_numbers("propensity", "propensity", rows, folded="propen-\nsity"))
    if not fit.propensities["ci_high"].is_null().all():
        columns.append(_intervals("95 % interval", "ci", rows))
    if not fit.propensities[WEIGHT_PROPENSITY].equals(fit.propensities[PROPENSITY], null_equal=True):
        columns.append(_numbers("for\nweights", WEIGHT_PROPENSITY, rows))
    columns += _second_estimate(fit, rows)
    if fit.shrunk is None and fit.propensities["linking_clicks"].sum():
        columns.append(_numbers("linking\nclicks", "linking_clicks", rows, ",.0f", spare=1))
    remarks = [
        f"{cell_in_words(fit.statistics, number)}: {row['reason']}" for number, row in enumerate(rows) if row["reason"]
    ]
    if len(remarks) > _MOST_REMARKS:
        remarks = [*remarks[:_MOST_REMARKS], f"... and {len(remarks) - _MOST_REMARKS} more, see `reason`"]
    below = more(len(rows), "cells in propensities.parquet (--csv writes CSV as well)")
    scope = [] if fit.propensities["ci_high"].is_null().all() else [interval_scope(fit)]
    return [title, PrintedTable(tuple(columns), below), *borrowed, *scope, *remarks]


def clicks_above_table(fit: Fit) -> list[Printed]:
    """Print observed and expected clicks by the number of clicks above; empty unless a test finds a dependence."""
    tests = fit.model_tests
    if tests is None or not tests.depends_on_clicks_above:
        return []
    rows = tests.by_clicks_above
    columns = (
        Column("clicks\nabove", tuple(clicks_above_in_words(row) for row in rows), label=True),
        Column("impressions", tuple(f"{row.impressions:,.0f}" for row in rows), spare=1),
        Column("observed\nclicks", tuple(f"{row.observed_clicks:,.0f}" for row in rows)),
        Column("expected\nclicks", tuple(f"{row.expected_clicks:,.0f}" for row in rows)),
        Column("observed /\nexpected", tuple(number_in_words(row.ratio) for row in rows)),
        Column("95 % interval", tuple(interval_in_words(*(row.interval or (None, None))) for row in rows), beside=True),
    )
    where = "at the same position" if tests.averages_users else "in the same cell"
    return [f"clicks against those of the same documents {where} on other pages", PrintedTable(columns)]


def cell_column(name: str, rows: list[dict[str, Any]]) -> Column:
    """Printed column of a cell column, headed by its name."""
    folded = "posi-\ntion" if name == POSITION else ""
    return Column(
        printable(name).replace("_", "\n"), first(label_in_words(row[name]) for row in rows), folded=folded, label=True
    )


def _numbers(
    heading: str,
    name: str,
    rows: _Cells,
    form: str | None = None,
    *,
    folded: str = "",
    spare: int = 0,
    detail: bool = False,
) -> Column:
    cells = first(number_in_words(row[name], form) for row in rows)
    return Column(heading, cells, folded=folded, spare=spare, detail=detail)


def _intervals(heading: str, name: str, rows: _Cells, spare: int = 0) -> Column:
    cells = first(interval_in_words(row[f"{name}_low"], row[f"{name}_high"]) for row in rows)
    return Column(heading, cells, folded=heading.replace(" in", "\nin"), spare=spare, beside=True)


def _second_estimate(fit: Fit, rows: _Cells) -> list[Column]:
    """Columns beside the estimate: unshrunk contexts, experiment arms, the moment estimate, or joint EM."""
    if fit.shrunk is not None:
        return [
            _numbers("unshrunk", "unshrunk_propensity", rows, spare=1),
            _intervals("its interval", "unshrunk_ci", rows, spare=1),
        ]
    if fit.arms is not None and fit.arms.bent is not None:
        return [
            _numbers("by arms", "arms_propensity", rows, spare=1),
            _intervals("its interval", "arms_ci", rows, spare=1),
        ]
    if fit.from_rows is not None and fit.from_rows.moment is not None:
        return [_numbers("moment", "moment_propensity", rows, spare=2)]
    if fit.joint is not None and fit.joint is not fit.estimate:
        return [_numbers("joint EM", "joint_propensity", rows, spare=2, detail=True)]
    return []


def features_line(report: dict[str, Any]) -> str:
    """Line on the numbers of features, of categorical ones, and of rows that lack them."""
    missing = sum(table["missing_rows"] for table in report["tables"])
    categorical = len(report["categorical"])
    return (
        f"features: {len(report['names']):,}"
        + (f", {categorical:,} of them categorical" if categorical else "")
        + (f"; missing in {plural(missing, 'rows')}" if missing else "")
    )


def number_in_words(value: float | None, form: str | None = None) -> str:
    """Format a number, by default `.3f`, or `.2g` below 0.01; a dash for None and NaN."""
    if value is None or isnan(value):
        return "-"
    return format(value, form or (".3f" if value >= _THREE_DECIMALS else ".2g"))


def interval_in_words(low: float | None, high: float | None, form: str | None = None) -> str:
    """Format an interval, e.g. `0.31 - 0.35`; `below 0.35` if only the upper end is known, a dash if neither is."""
    if low is None:
        return "-" if high is None else f"below {number_in_words(high, form)}"
    return f"{number_in_words(low, form)} - {number_in_words(high, form)}"
