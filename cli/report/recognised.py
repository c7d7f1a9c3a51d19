"""What was recognised of a log, for a person."""

import shlex
from collections.abc import Mapping
from typing import Any

from posbias.core.wording import counted
from posbias.io.forms import get_form
from posbias.io.log.event_table import EVENTS

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
