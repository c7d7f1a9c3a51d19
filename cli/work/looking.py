"""What `check` and `init` do: a log is recognised, read and looked at; what would stop a run is kept as a reason."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from posbias.cli.work.described_log import describe_log
from posbias.cli.work.engine import open_engine
from posbias.cli.work.recognition import Asked, recognise
from posbias.core.check.outlook import Outlook
from posbias.core.check.remarks import Client, advice, reasons_against, rows_of, warnings_of
from posbias.core.credentials import masked_values
from posbias.core.errors import SchemaError
from posbias.core.log.pages import HARMLESS
from posbias.core.models import get_model
from posbias.core.training.weights import as_count
from posbias.core.wording import counted
from posbias.io.checking.columns import largest_client, unused_time
from posbias.io.checking.look import PBM, Look, look_at
from posbias.io.counting.count import Reading, read_unjudged
from posbias.io.log.findings import Finding
from posbias.io.log.log import Log
from posbias.io.log.lost_clicks import judge
from posbias.io.log.misread import unused_count
from posbias.io.log.rejects import reason
from posbias.io.progress import Progress

SCHEMA = "posbias.check"

_HARMLESS = frozenset(map(reason, HARMLESS))


def check(asked: Asked, progress: Progress) -> tuple[Asked, dict[str, Any]]:
    """Look at a log; return the options with what was recognised, and what `--json` prints.

    Raises:
        PosbiasError: the log cannot be read at all, or the options do not go together.
    """
    with progress.stage("recognising"):
        asked = recognise(asked)
    job = asked.job()
    plan = replace(job.plan, model=get_model(PBM))
    log = replace(job, plan=plan).open_log()
    client, unjudged, look = largest_client(log), None, None
    # What breaks the rules is counted and left out here: that it would stop a run is then said with the rest.
    reading = replace(asked.reading, on_bad_rows="drop")
    with open_engine(reading, Path.cwd() / "check") as engine:
        try:
            unjudged = read_unjudged(log, plan, engine, progress)
        except SchemaError as error:
            stops = [str(error)]
        else:
            stops = [*_unconfirmed(asked), *_stops(unjudged)]
            asked = asked if stops else asked.saying(_bad_rows(asked, unjudged))
            if plan.period == "quarter":  # days only, where timestamps say no time of day
                plan = replace(plan, period=unjudged.read.log.rules.period)
            look = look_at(unjudged, plan, engine, progress)
    return asked, masked_values(_content(asked, log, unjudged, look, client, stops))


def _unconfirmed(asked: Asked) -> list[str]:
    """What a wrong guess would make worthless: where positions go on from page to page."""
    return [
        f"positions rest on a guess: {finding.said}. If so, say {shlex.join(finding.options)}, else --page none."
        for finding in asked.findings
        if "--page" in finding.options
    ]


def _stops(unjudged: Reading) -> list[str]:
    try:
        unjudged.judge()
    except SchemaError as error:
        return [str(error)]
    return []


def _bad_rows(asked: Asked, unjudged: Reading) -> list[Finding]:
    """That rows break the rules, if some do."""
    bad = {why: rows for why, rows in unjudged.rows.rejected.items() if why not in _HARMLESS}
    if not bad or asked.reading.on_bad_rows == "drop":
        return []
    reasons = ", ".join(f"{rows:,} because {why}" for why, rows in bad.items())
    sentence = f"{counted(sum(bad.values()), 'rows')} of {unjudged.rows.read:,} break the rules ({reasons})"
    return [Finding(sentence, ("--on-bad-rows", "drop"))]


def _content(
    asked: Asked, log: Log, unjudged: Reading | None, look: Look | None, client: Client | None, stops: Sequence[str]
) -> dict[str, Any]:
    """All that was found, as one plain object, under names that stay."""
    model, reasons, warnings = asked.counting.model or PBM, list(stops), list[str]()
    if look is not None:
        binned, paged = asked.counting.position_bins is not None, log.roles.page is not None
        warnings = warnings_of(look.facts, look.pages, client, binned=binned, paged=paged)
    if unjudged is not None and not stops:
        lost = judge(unjudged.rows.clicks, () if unjudged.clicks is None else unjudged.clicks.examples)
        if lost is not None and not lost.doubtful:
            warnings.append(lost.warning)
        elif lost is not None and look is not None:
            reasons.append(lost.warning)
    if look is None:
        reasons = reasons or ["the log holds no row that counts."]
    elif model in look.why_not:
        reasons.append(f"{model}: {look.why_not[model]}.")
    elif not reasons:
        reasons = reasons_against(next(one for one in look.outlooks if one.model == model), look.facts)
    count = unused_count(log)
    if count is not None:
        warnings.append(f"column {count!r} was not used. If a row adds up impressions, say --impressions {count}.")
    advised = list[str]()
    if look is not None and not stops:
        has_time = log.roles.timestamp is not None or log.request.rules.day is not None
        advised = advice(look.facts, look.moved, look.outlooks, time_column=unused_time(log), has_time=has_time)
    of_look = ("totals", "days", "positions", "pages", "queries", "client", "movement", "models")
    content = {
        "schema": SCHEMA,
        "command": asked.command,
        "carries_estimate": not reasons,
        "reasons": reasons,
        "recognised": describe_log(log, asked.findings),
        "rows": None if unjudged is None else msgspec.to_builtins(unjudged.rows),
        **dict.fromkeys(of_look),
        **({"positions": [], "models": {}} if look is None else _of_look(look, model)),
        "client": client and {"column": client.column, "largest_share": client.share, "rows": client.rows},
        "warnings": warnings,
        "advice": advised,
    }
    return msgspec.to_builtins(content)  # values of contexts may be of any type


def _of_look(look: Look, wanted: str) -> dict[str, Any]:
    facts, moved, pages, days = look.facts, look.moved, look.pages, sorted(look.facts.days)
    models = {outlook.model: _model(outlook) for outlook in look.outlooks}
    for model, why in look.why_not.items():
        models[model] = {"can_be_estimated": False, "reason": why, "cells": []}
    return {
        "totals": {
            "impressions": as_count(facts.impressions),
            "clicks": as_count(facts.clicks),
            "pages": look.all_pages,
            "pages_exact": pages is None or pages.pages == look.all_pages,
            "queries": facts.queries,
            "documents": facts.docs,
            "documents_exact": facts.docs_exact,
            "pairs": round(moved.pairs),
            "pairs_exact": look.outlooks[0].share == 1,
        },
        "days": {"number": len(days), "first": days[0], "last": days[-1]} if days else None,
        "positions": rows_of(facts),
        "pages": None
        if pages is None
        else {"number": look.all_pages or 0, "looked_at": pages.pages}
        | {name: value for name, value in msgspec.to_builtins(pages).items() if name != "pages"},
        "queries": {
            "number": facts.queries,
            "effective": facts.effective_queries,
            "largest": facts.largest_query,
            "largest_share": facts.largest_share,
        },
        "movement": {
            "pairs": round(moved.pairs),
            "pairs_at_several_positions": round(moved.moved),
            "linking_pairs": round(moved.linking),
            "share_of_impressions": moved.share,
        },
        "models": {name: {"wanted": name == wanted} | content for name, content in models.items()},
    }


def _model(outlook: Outlook) -> dict[str, Any]:
    errors = outlook.errors
    return {
        "can_be_estimated": outlook.reason is None,
        "reason": outlook.reason,
        "cells_identified": int(outlook.cells["identified"].sum()),
        "click_share_identified": outlook.click_share,
        "share_of_queries": outlook.share,
        "largest_std_error": float(errors.max()) if len(errors) else None,
        "cells": outlook.cells.with_columns(pl.col(pl.Float64).fill_nan(None)).to_dicts(),
    }
