"""What was recognised of a log, as a plain object: for `check`, and for a dry run."""

from collections.abc import Sequence
from typing import Any

from posbias.core.schema import CLICK, DOC, IMPRESSIONS, POSITION, QUERY, SESSION, WEIGHT
from posbias.io.log.findings import Finding
from posbias.io.log.headers import OURS
from posbias.io.log.log import Log
from posbias.io.log.scan import schema_of


def describe_log(log: Log, findings: Sequence[Finding] = ()) -> dict[str, Any]:
    """Its form, files and columns, and what was found out about it."""
    return {
        "form": _form(log),
        "files": len(log.sources),
        "formats": sorted({source.format for source in log.sources}),
        "columns": _columns(log),
        "position_base": log.request.rules.position_base,
        "findings": [
            {"said": finding.said, "options": list(finding.options), "certain": finding.certain} for finding in findings
        ],
    }


def _form(log: Log) -> str:
    if log.raw is not None:
        return log.raw.name
    if log.roles.impressions is not None:
        return "sums"
    return "flat" if log.nesting is None else "nested"


def _columns(log: Log) -> dict[str, Any]:
    """The columns of each role with their types, as the files have them."""
    roles = log.roles
    played = {
        SESSION: roles.session,
        QUERY: roles.query,
        DOC: roles.doc,
        POSITION: _one(roles.position),
        "page": _one(roles.page),
        CLICK: _one(None if log.click_sources else roles.click),
        IMPRESSIONS: _one(roles.impressions),
        WEIGHT: _one(roles.weight),
        "timestamp": _one(roles.timestamp),
    }
    schema = {} if log.raw is not None and log.raw.of_lines else dict(schema_of(log.sources[0]))
    return {
        role: [{"column": name, "type": str(schema[name]) if name in schema else None} for name in names]
        for role, names in played.items()
        if names and not any(name.startswith(OURS) for name in names)
    }


def _one(name: str | None) -> tuple[str, ...]:
    return () if name is None else (name,)
