"""What `check` prints: the log as it was recognised, its counts, and what to expect of a fit."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from posbias.cli.console import line
from posbias.core.wording import counted
from posbias.io.forms import get_form
from posbias.io.jobs.tables import clicks_in_words
from posbias.io.log.event_table import EVENTS
from posbias.io.log.rows import Clicks

_FORMS = {
    "flat": "one row per impression",
    "nested": "one row per page",
    "sums": "one row per sum of impressions",
    EVENTS: "one row per impression or click",
}


def recognised_lines(found: Mapping[str, Any]) -> list[str]:
    """The files, the column of each role, and what was found out beside them."""
    formats = ", ".join(found["formats"])
    columns = [f"{role} {' and '.join(map(_column, held))}" for role, held in found["columns"].items()]
    said = [f"log: {counted(found['files'], 'files')} of {formats}, {_form(found['form'])}"]
    said.append(f"columns: {'; '.join(columns)}")
    for finding in found["findings"]:
        doubt = "" if finding["certain"] else " (a guess)"
        option = f": {shlex.join(finding['options'])}" if finding["options"] else ""
        said.append(f"found: {finding['said']}{doubt}{option}")
    return said


def _form(name: str) -> str:
    """What a row is, or whose raw files these are."""
    return _FORMS[name] if name in _FORMS else get_form(name).title


def _column(held: Mapping[str, Any]) -> str:
    return held["column"] if held["type"] is None else f"{held['column']} ({held['type']})"


_NARROW, _WIDE = 60, 78
_MOST_ROWS = 30
_PBM = "pbm"


def check_report(content: Mapping[str, Any], width: int) -> RenderableType:
    """All that was found, in at most so many columns."""
    said = [
        *map(line, recognised_lines(content["recognised"])),
        *_totals(content),
        *([_positions(content, width)] if content["positions"] else []),
        *map(line, _pages(content)),
        *map(line, _models(content)),
        *_listed("warning: ", content["warnings"]),
        *_listed("what would help: ", content["advice"]),
        *_listed("no estimate: ", content["reasons"]),
    ]
    return Group(*said)


def command_line(content: Mapping[str, Any]) -> str:
    """The command that reads the log, to copy: on one line, however long it is."""
    return f"posbias {shlex.join(content['command'])} -o result"


def _listed(before: str, sentences: Sequence[str]) -> list[RenderableType]:
    said: list[RenderableType] = []
    for sentence in sentences:
        first, *others = sentence.splitlines()
        said += [line(f"{before}{first}"), *(line(f"  {other}") for other in others)]
    return said


def _totals(content: Mapping[str, Any]) -> list[RenderableType]:
    said: list[RenderableType] = []
    rows, totals, days = content["rows"], content["totals"], content["days"]
    if rows is not None:
        left_out = ", ".join(f"{count:,} because {why}" for why, count in rows["rejected"].items())
        said.append(line(f"rows: {rows['read']:,} read" + (f", left out {left_out}" if left_out else "")))
        if "clicks" in rows:
            said.append(line(f"clicks: {clicks_in_words(msgspec.convert(rows['clicks'], Clicks))}"))
    if totals is not None:
        names = {"impressions": "", "clicks": "", "pages": "pages_exact", "queries": "", "documents": "documents_exact"}
        counts = [
            ("" if not exact or totals[exact] else "about ") + counted(totals[name], name)
            for name, exact in names.items()
            if totals[name] is not None
        ]
        pairs = f"{'' if totals['pairs_exact'] else 'about '}{counted(totals['pairs'], '(query, doc) pairs')}"
        said.append(line(f"counted: {', '.join([*counts, pairs])}"))
    if days is not None:
        span = days["first"] if days["number"] == 1 else f"{days['first']} to {days['last']}, {days['number']:,} days"
        said.append(line(f"days: {span}"))
    return said


_LINKING, _ERROR = "linking\nclicks", "error to\nexpect"
_LEFT_OUT_FIRST = (_LINKING, _ERROR)
"""Columns that go where a table is too wide: no number is cut."""


def _positions(content: Mapping[str, Any], width: int) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    rows = content["positions"]
    cells = {} if content["models"].get(_PBM) is None else _by_position(content["models"][_PBM]["cells"])
    columns: dict[str, list[str]] = {
        "position": [str(row["position"]) for row in rows],
        "impressions": [f"{row['impressions']:,.0f}" for row in rows],
        "clicks": [f"{row['clicks']:,.0f}" for row in rows],
        "click\nrate": [f"{row['ctr']:.4f}" for row in rows],
    }
    if width >= _NARROW:
        columns["95 %\ninterval"] = [_interval(row["ctr_low"], row["ctr_high"]) for row in rows]
    if cells:
        columns[_ERROR] = [_error(cells.get(row["position"])) for row in rows]
    if cells and width >= _WIDE:
        share = content["models"][_PBM]["share_of_queries"]
        columns[_LINKING] = [f"{_linking(cells.get(row['position'])) / share:,.0f}" for row in rows]
    for name in _LEFT_OUT_FIRST:
        if _width(columns) > width:
            columns.pop(name, None)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for values in list(zip(*columns.values(), strict=True))[:_MOST_ROWS]:
        table.add_row(*values)
    if len(rows) > _MOST_ROWS:
        table.caption = f"... and {len(rows) - _MOST_ROWS} more positions (--json has all)"
    return table


def _width(columns: Mapping[str, Sequence[str]]) -> int:
    """How wide a table is."""
    return sum(2 + max(map(len, [*name.split("\n"), *values])) for name, values in columns.items())


def _linking(cell: Mapping[str, Any] | None) -> float:
    return 0.0 if cell is None else cell["linking_clicks"]


def _by_position(cells: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """The cells of the position-based model; none where a position has several, one per context."""
    found = {cell["position"]: cell for cell in cells}
    return found if len(found) == len(cells) else {}


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.4f} - {high:.4f}"


def _error(cell: Mapping[str, Any] | None) -> str:
    if cell is None or not cell["identified"] or cell["std_error"] is None:
        return "-"
    return f"{cell['std_error']:.3f}" if cell["std_error"] else "reference"


def _pages(content: Mapping[str, Any]) -> list[str]:
    said: list[str] = []
    queries, moved, pages = content["queries"], content["movement"], content["pages"]
    if pages is not None and pages["looked_at"]:
        said.append(
            f"pages: {pages['rows'] / pages['looked_at']:.1f} results each, at most {pages['longest']:,}; "
            f"{pages['without_click'] / pages['looked_at']:.1%} without a click, {pages['with_gaps']:,} with gaps, "
            f"{pages['starting_late']:,} that start below position 1"
        )
    if queries is not None:
        said.append(
            f"queries: {queries['number']:,}, worth {queries['effective']:,.0f} of equal size; the largest has "
            f"{queries['largest_share']:.1%} of the impressions"
        )
    if moved is not None:
        said.append(
            f"movement: {moved['pairs_at_several_positions']:,} of {moved['pairs']:,} pairs were shown at several "
            f"positions, {moved['linking_pairs']:,} of them also clicked: these link positions"
        )
    return said


def _models(content: Mapping[str, Any]) -> list[str]:
    said: list[str] = []
    for name, found in content["models"].items():
        if not found["can_be_estimated"]:
            said.append(f"{name}: cannot be estimated: {found['reason']}")
            continue
        share, largest = found["share_of_queries"], found["largest_std_error"]
        sample = "" if share == 1 else f", told from {share:.1%} of the queries"
        errors = "no standard errors" if largest is None else f"standard errors of log propensity up to {largest:.3f}"
        said.append(
            f"{name}: {found['cells_identified']:,} of {counted(len(found['cells']), 'cells')} can be compared, with "
            f"{found['click_share_identified']:.1%} of the clicks; {errors}{sample}"
        )
    return said
