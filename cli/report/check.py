"""What `check` prints: the log as it was recognised, its counts, and what to expect of a fit."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType

from posbias.cli.console import line
from posbias.cli.report.table import renderable
from posbias.core.wording import counted
from posbias.io.forms import get_form
from posbias.io.jobs.result import Column, PrintedTable, first, more
from posbias.io.jobs.tables import clicks_in_words
from posbias.io.log.event_table import EVENTS
from posbias.io.log.rows import Clicks

_FORMS = {
    "flat": "one row per impression",
    "nested": "one row per page",
    "sums": "one row per sum of impressions",
    EVENTS: "one row per impression or click",
}
_PBM = "pbm"


def recognised_lines(log: Mapping[str, Any]) -> list[str]:
    """The files, the column of each role, and what was recognised beside them."""
    form = _FORMS[log["form"]] if log["form"] in _FORMS else get_form(log["form"]).title
    roles = (f"{role} {' and '.join(map(_column, held))}" for role, held in log["columns"].items())
    lines = [f"log: {counted(log['files'], 'files')} of {', '.join(log['formats'])}, {form}"]
    lines.append(f"columns: {'; '.join(roles)}")
    for finding in log["findings"]:
        doubt = "" if finding["certain"] else " (a guess)"
        option = f": {shlex.join(finding['options'])}" if finding["options"] else ""
        lines.append(f"found: {finding['said']}{doubt}{option}")
    return lines


def _column(held: Mapping[str, Any]) -> str:
    return held["column"] if held["type"] is None else f"{held['column']} ({held['type']})"


def check_report(content: Mapping[str, Any]) -> RenderableType:
    """All that was found."""
    listed = {"warning: ": "warnings", "what would help: ": "advice", "no estimate: ": "reasons"}
    return Group(
        *map(line, [*recognised_lines(content["recognised"]), *_totals(content)]),
        *([renderable(_positions(content))] if content["positions"] else []),
        *map(line, [*_pages(content), *_models(content)]),
        *(
            line(f"  {part}" if number else f"{before}{part}")
            for before, name in listed.items()
            for sentence in content[name]
            for number, part in enumerate(sentence.splitlines())
        ),
    )


def command_line(content: Mapping[str, Any]) -> str:
    """The command that reads the log, to copy: on one line, however long it is."""
    return f"posbias {shlex.join(content['command'])} -o result"


def _totals(content: Mapping[str, Any]) -> Iterator[str]:
    rows, totals, days = content["rows"], content["totals"], content["days"]
    if rows is not None:
        left_out = ", ".join(f"{count:,} because {why}" for why, count in rows["rejected"].items())
        yield f"rows: {rows['read']:,} read" + (f", left out {left_out}" if left_out else "")
        if "clicks" in rows:
            yield f"clicks: {clicks_in_words(msgspec.convert(rows['clicks'], Clicks))}"
    if totals is not None:
        names = {"impressions": "", "clicks": "", "pages": "pages_exact", "queries": "", "documents": "documents_exact"}
        counts = [
            ("" if not exact or totals[exact] else "about ") + counted(totals[name], name)
            for name, exact in names.items()
            if totals[name] is not None
        ]
        pairs = f"{'' if totals['pairs_exact'] else 'about '}{counted(totals['pairs'], '(query, doc) pairs')}"
        yield f"counted: {', '.join([*counts, pairs])}"
    if days is not None:
        span = days["first"] if days["number"] == 1 else f"{days['first']} to {days['last']}, {days['number']:,} days"
        yield f"days: {span}"


def _positions(content: Mapping[str, Any]) -> PrintedTable:
    rows, pbm = content["positions"], content["models"].get(_PBM)
    of_pbm: Sequence[Mapping[str, Any]] = () if pbm is None else pbm["cells"]
    cells = {cell["position"]: cell for cell in of_pbm}
    columns = [
        Column("position", first(str(row["position"]) for row in rows), label=True),
        Column("impressions", first(f"{row['impressions']:,.0f}" for row in rows)),
        Column("clicks", first(f"{row['clicks']:,.0f}" for row in rows)),
        Column("click\nrate", first(f"{row['ctr']:.4f}" for row in rows)),
        Column("95 %\ninterval", first(_interval(row["ctr_low"], row["ctr_high"]) for row in rows), spare=1),
    ]
    if cells and len(cells) == len(of_pbm):  # else a position has several cells, one per context
        share = content["models"][_PBM]["share_of_queries"]
        known = [cells.get(row["position"], {}) for row in rows]
        linking = (f"{cell.get('linking_clicks', 0.0) / share:,.0f}" for cell in known)
        columns.append(Column("error to\nexpect", first(map(_error, known)), spare=2))
        columns.append(Column("linking\nclicks", first(linking), spare=3))
    return PrintedTable(tuple(columns), more(len(rows), "positions (--json has all)"))


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.4f} - {high:.4f}"


def _error(cell: Mapping[str, Any]) -> str:
    if not cell or not cell["identified"] or cell["std_error"] is None:
        return "-"
    return f"{cell['std_error']:.3f}" if cell["std_error"] else "reference"


def _pages(content: Mapping[str, Any]) -> Iterator[str]:
    queries, moved, pages = content["queries"], content["movement"], content["pages"]
    if pages is not None and pages["looked_at"]:
        yield (
            f"pages: {pages['rows'] / pages['looked_at']:.1f} results each, at most {pages['longest']:,}; "
            f"{pages['without_click'] / pages['looked_at']:.1%} without a click, {pages['with_gaps']:,} with gaps, "
            f"{pages['starting_late']:,} that start below position 1"
        )
    if queries is not None:
        yield (
            f"queries: {queries['number']:,}, worth {queries['effective']:,.0f} of equal size; the largest has "
            f"{queries['largest_share']:.1%} of the impressions"
        )
    if moved is not None:
        yield (
            f"movement: {moved['pairs_at_several_positions']:,} of {moved['pairs']:,} pairs were shown at several "
            f"positions, {moved['linking_pairs']:,} of them also clicked: these link positions"
        )


def _models(content: Mapping[str, Any]) -> Iterator[str]:
    for name, model in content["models"].items():
        if not model["can_be_estimated"]:
            yield f"{name}: cannot be estimated: {model['reason']}"
            continue
        share, largest = model["share_of_queries"], model["largest_std_error"]
        sample = "" if share == 1 else f", told from {share:.1%} of the queries"
        errors = "no standard errors" if largest is None else f"standard errors of log propensity up to {largest:.3f}"
        yield (
            f"{name}: {model['cells_identified']:,} of {counted(len(model['cells']), 'cells')} can be compared, with "
            f"{model['click_share_identified']:.1%} of the clicks; {errors}{sample}"
        )
