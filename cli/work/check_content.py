"""What a check found, as one plain object: what `--json` prints, and what the table for people is made of."""

from typing import Any

import msgspec
import polars as pl

from posbias.cli.work.described_log import describe_log
from posbias.cli.work.looking import Checked
from posbias.core.check.outlook import Outlook
from posbias.core.check.pages import PageFacts
from posbias.core.check.remarks import Client, rows_of
from posbias.core.training.weights import as_count
from posbias.io.checking.look import Look

SCHEMA = "posbias.check"


def content_of(checked: Checked) -> dict[str, Any]:
    """All of it, under names that stay."""
    look, unjudged = checked.look, checked.unjudged
    against = checked.against
    content = {
        "schema": SCHEMA,
        "command": checked.asked.command,
        "carries_estimate": not against,
        "reasons": against,
        "recognised": describe_log(checked.log, checked.asked.findings),
        "rows": None if unjudged is None else msgspec.to_builtins(unjudged.rows),
        "totals": None if look is None else _totals(look),
        "days": None if look is None or not look.facts.days else _days(look),
        "positions": [] if look is None else rows_of(look.facts),
        "pages": None if look is None or look.pages is None else _pages(look.pages, look.all_pages or 0),
        "queries": None if look is None else _queries(look),
        "client": _client(checked.client),
        "movement": None if look is None else _movement(look),
        "models": {} if look is None else _models(look, checked.model),
        "warnings": checked.warnings,
        "advice": checked.advice,
    }
    return msgspec.to_builtins(content)  # values of contexts may be of any type


def _totals(look: Look) -> dict[str, Any]:
    facts = look.facts
    exact = look.pages is None or look.pages.pages == look.all_pages
    return {
        "impressions": as_count(facts.impressions),
        "clicks": as_count(facts.clicks),
        "pages": look.all_pages,
        "pages_exact": exact,
        "queries": facts.queries,
        "documents": facts.docs,
        "documents_exact": facts.docs_exact,
        "pairs": round(look.moved.pairs),
        "pairs_exact": look.outlooks[0].share == 1,
    }


def _days(look: Look) -> dict[str, Any]:
    days = sorted(look.facts.days)
    return {"number": len(days), "first": days[0], "last": days[-1]}


def _pages(pages: PageFacts, all_pages: int) -> dict[str, Any]:
    return {"number": all_pages, "looked_at": pages.pages} | {
        name: value for name, value in msgspec.to_builtins(pages).items() if name != "pages"
    }


def _queries(look: Look) -> dict[str, Any]:
    facts = look.facts
    return {
        "number": facts.queries,
        "effective": facts.effective_queries,
        "largest": facts.largest_query,
        "largest_share": facts.largest_share,
    }


def _client(client: Client | None) -> dict[str, Any] | None:
    return None if client is None else {"column": client.column, "largest_share": client.share, "rows": client.rows}


def _movement(look: Look) -> dict[str, Any]:
    moved = look.moved
    return {
        "pairs": round(moved.pairs),
        "pairs_at_several_positions": round(moved.moved),
        "linking_pairs": round(moved.linking),
        "share_of_impressions": moved.share,
    }


def _models(look: Look, wanted: str) -> dict[str, Any]:
    found = {outlook.model: _model(outlook) for outlook in look.outlooks}
    without: dict[str, dict[str, Any]] = {}
    for model, why in look.why_not.items():
        without[model] = {"can_be_estimated": False, "reason": why, "cells": []}
    return {name: {"wanted": name == wanted} | content for name, content in (found | without).items()}


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
