"""The log: what was read and what was left out, which columns were taken, and the click rate by day."""

from collections.abc import Sequence
from typing import cast

import altair as alt
import polars as pl
from msgspec import UNSET

from posbias.core.escapes import escaped
from posbias.io.log.rows import Rows
from posbias.io.reports.drawing import data_of, spec_of, tooltips
from posbias.io.reports.elements import Block, Figure, Section, table, table_of
from posbias.io.reports.read import ReportedResult, Segment

_READING = (
    *("input-format", "session", "query", "no-query", "doc", "position", "click", "clicked", "impressions"),
    *("weight-column", "timestamp", "context", "stratify", "position-base", "on-bad-rows", "duplicate-docs"),
)
"""Options that say how a log was read."""

_MOST_DAYS = 400


def quality_section(result: ReportedResult) -> Section | None:
    """The section; None where nothing was read."""
    said = result.said
    blocks: list[Block] = []
    if said.rows is not UNSET:
        blocks.append(table("Rows of the log", ("rows", "number", "share"), _rows(said.rows)))
        if said.rows.raw is not UNSET or said.rows.ubi is not UNSET:
            blocks.append("What became of the lines of raw files is in the manifest, below.")
    asked = [
        (f"--{name}", _option(said.options[name])) for name in _READING if said.options.get(name) not in (None, False)
    ]
    if asked:
        blocks.append(
            table("How it was read; other columns were recognised by their names", ("option", "value"), asked)
        )
    blocks.append(table("Inputs", ("input",), [(escaped(name),) for name in said.inputs]))
    blocks += _by_day(said.segments)
    return Section("quality", "The log", tuple(blocks)) if said.rows is not UNSET else None


def _rows(rows: Rows) -> list[tuple[str, int, str]]:
    counts = {"read": rows.read, "used": rows.used}
    counts |= {f"left out: {escaped(reason)}": count for reason, count in rows.rejected.items()}
    said = [(name, count, rows.read) for name, count in counts.items()]
    if rows.clicks is not UNSET:
        said.append(("clicks without an impression", sum(rows.clicks.lost.values()), rows.clicks.read))
    return [(name, count, f"{count / of:.2%}" if of else "-") for name, count, of in said]


def _option(value: object) -> str:
    if isinstance(value, list | tuple):
        return escaped(", ".join(map(str, cast("Sequence[object]", value))))
    return escaped(str(value))


def _by_day(segments: Sequence[Segment]) -> list[Block]:
    """The click rate by day, where statistics were collected day by day."""
    rows = [
        (segment.days[0], float(segment.statistics.impressions), float(segment.statistics.clicks))
        for segment in segments
        if len(segment.days) == 1 and segment.statistics.impressions > 0
    ]
    schema = {"day": pl.String, "impressions": pl.Float64, "clicks": pl.Float64}
    days = pl.DataFrame(rows, schema, orient="row").group_by("day").agg(pl.all().sum()).sort("day")
    days = days.filter(pl.col("day").str.to_date("%Y-%m-%d", strict=False).is_not_null())
    if days.height < 2:  # noqa: PLR2004 - one day is no course
        return []
    days = days.with_columns((pl.col("clicks") / pl.col("impressions")).alias("rate"))
    shown = days.tail(_MOST_DAYS)
    base = alt.Chart(data_of(shown))
    x = alt.X("day:T", title=None, axis=alt.Axis(grid=False))
    y = alt.Y("rate:Q", title="click rate", axis=alt.Axis(format=".1%"), scale=alt.Scale(zero=False))
    said = tooltips(
        {"day": "day", "rate": "click rate", "impressions": "impressions", "clicks": "clicks"},
        {"rate": ".2%", "impressions": ",.0f", "clicks": ",.0f"},
    )
    line, points = base.mark_line().encode(x=x, y=y), base.mark_point(filled=True).encode(x=x, y=y, tooltip=said)
    figure = Figure(
        "days",
        "Click rate by day",
        f"Line chart of the click rate on {shown.height:,} days.",
        spec_of(line, points, height=220),
        table_of("Days", shown, day="day", impressions="impressions", clicks="clicks", rate="click rate"),
    )
    note = [f"Of {days.height:,} days, the last {_MOST_DAYS} are drawn."] if days.height > _MOST_DAYS else []
    return [*note, figure]
