"""`posbias collect --info`: what statistics hold, as a table or as JSON, on stdout."""

import sys
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

import msgspec
import typer
from msgspec import UNSET
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from posbias.cli import streams
from posbias.cli.console import SafeConsole, line
from posbias.cli.report import summary
from posbias.core.credentials import masked_values
from posbias.core.errors import OutputError, UsageError
from posbias.core.wording import counted
from posbias.io.results.manifest import json_text
from posbias.io.stores.checks import check_contents, one_by_one
from posbias.io.stores.metadata import describe_decay, describe_plan
from posbias.io.stores.store import Statistics, checked

_WIDTH_IN_A_FILE = 80
_MOST_DAYS = 3
_KIBIBYTE = 1024


def show_info(statistics: Sequence[Statistics], inputs: Sequence[str], *, as_json: bool) -> None:
    """Print what each directory of statistics holds.

    Raises:
        UsageError: the inputs are no statistics.
        StatisticsError: they are damaged.
        OutputError: stdout cannot be written.
    """
    if not statistics:
        raise UsageError(f"--info: {inputs[0]} holds no statistics. Give directories written by `posbias collect`.")
    with checked(statistics, check_contents, one_by_one):
        pass
    if as_json:
        typer.echo(json_text(masked_values([_described(entry) for entry in statistics])).encode(), nl=False)
    else:
        SafeConsole(stderr=False, width_in_a_file=_WIDTH_IN_A_FILE).print(Group(*map(_table, statistics)))
    lost = streams.why_lost(sys.stdout)
    if lost is not None:
        raise OutputError(f"stdout cannot be written: {lost}.")


def _described(entry: Statistics) -> dict[str, Any]:
    return {
        "path": str(entry.path),
        "counted": describe_plan(entry.metadata.plan),
        "key_types": entry.key_types,
        "decay": describe_decay(entry.metadata.decay),
        "days": entry.days,
        "segments": len(entry.segments),
        "parts": len(entry.parts),
        "bytes": _bytes(entry),
        "sources": entry.metadata.sources,
        "rows": msgspec.to_builtins(entry.metadata.rows),
        "statistics": entry.totals,
    }


def _table(entry: Statistics) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, content in _lines(entry).items():
        table.add_row(name, content)
    return Group(line(str(entry.path)), Padding(table, (0, 0, 1, 2), expand=False))


def _lines(entry: Statistics) -> dict[str, RenderableType]:
    plan, decay, totals, rows = entry.metadata.plan, entry.metadata.decay, entry.totals, entry.metadata.rows
    shape = {
        "max position": str(plan.max_position or ""),
        "bins from": ", ".join(map(str, plan.position_bins)),
        "context": ", ".join(plan.context),
        "strata": ", ".join(plan.strata),
        "clusters": ", ".join(plan.clusters),
        "randomized": ", ".join(map(str, plan.randomized)),
        "counts": "sums of weights" if plan.weighted else "",
        "decay": "" if decay is None else f"{decay.factor:g} per day; {decay.newest} has full weight",
    }
    return {
        "model": line(plan.model.name),
        "keys": line(", ".join(f"{name} ({entry.key_types[name]})" for name in plan.keys)),
        **{name: line(said) for name, said in shape.items() if said},
        "days": line(_days(entry)),
        "sources": line(f"{len(entry.metadata.sources):,}"),
        "rows": line(summary.rows_in_words(rows)),
        **({} if rows.clicks is UNSET else {"clicks joined": line(summary.clicks_in_words(rows.clicks))}),
        "counted": line(f"{counted(totals['impressions'], 'impressions')}, {counted(totals['clicks'], 'clicks')}"),
        "statistics": line(
            f"{counted(totals['rows'], 'rows')}, {_size(_bytes(entry))} in {counted(len(entry.parts), 'parts')} of "
            f"{counted(len(entry.segments), 'segments')}"
        ),
    }


def _days(entry: Statistics) -> str:
    days = entry.days
    if not days:
        return "not kept" if not entry.metadata.plan.period else "none"
    first, last = date.fromisoformat(days[0]), date.fromisoformat(days[-1])
    calendar = (first + timedelta(days=number) for number in range((last - first).days))
    missing = sorted({day.isoformat() for day in calendar} - set(days))
    said = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}, {len(days):,} days"
    if missing:
        more = f" and {len(missing) - _MOST_DAYS:,} more" if len(missing) > _MOST_DAYS else ""
        said += f"; missing {', '.join(missing[:_MOST_DAYS])}{more}"
    return said


def _bytes(entry: Statistics) -> int:
    return sum(part.bytes for part in entry.parts)


def _size(n_bytes: int) -> str:
    size, units = float(n_bytes), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= _KIBIBYTE and len(units) > 1:
        size, units = size / _KIBIBYTE, units[1:]
    return f"{size:,.0f} {units[0]}" if units[0] == "bytes" else f"{size:,.1f} {units[0]}"
