"""The charts of results, by Altair and Vega-Lite, drawn as pictures: a page needs no script to show them."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import altair as alt
import polars as pl
import vl_convert

from posbias.core.errors import escaped
from posbias.core.fit.plot_data import CONTEXT, HIGH, LOW, PROPENSITY, RELATIVE_RATE, PlottedCurves
from posbias.core.schema import CLICKS, IMPRESSIONS, POSITION, PREVIOUS_CLICK
from posbias.io.reports.reported import Interval

Spec: TypeAlias = dict[str, Any]
"""A chart in Vega-Lite's terms, without width and colours."""


@dataclass(frozen=True)
class Figure:
    """A chart, in words for who cannot see it."""

    name: str  # of the kind of chart, for --chart
    title: str
    description: str  # what can be seen on it
    spec: Spec
    note: str = ""  # how it is to be read, and what is left out


SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""The palette of Okabe and Ito, which people with any colour vision can tell apart, in an order for white paper."""

SERIES_ON_DARK = ("#56B4E9", "#E69F00", "#2BBE8F", "#E29CC4", "#F0E442", "#F08A4B")
"""The same hues, for a dark page."""

_FONT = "Liberation Sans, Arial, Helvetica, sans-serif"  # as wide as where its letters are measured
_ON_PAPER = {"text": "#1b1f24", "grid": "#e3e6ea", "muted": "#6b7280"}
WIDE, NARROW = 720, 340
"""Pixels of a chart on a laptop and on a phone."""

_SCALE = 2.0  # of PNG, for screens of high resolution
_OUTER = re.compile(r'^<svg [^>]*viewBox="([^"]*)">')


def inline_svg(figure: Figure, width: int) -> str:
    """A chart to stand in a page; its colours are those that the style sheet names."""
    colours = {name: f"var(--{name})" for name in _ON_PAPER} | {"background": "transparent"}
    series = [f"var(--series-{number})" for number in range(1, len(SERIES) + 1)]
    config = _config(colours, series)
    config["legend"]["columns"] = 2 if width == WIDE else 1
    spec = {**figure.spec, "width": width, "config": config}
    return _OUTER.sub(r'<svg viewBox="\1" aria-hidden="true">', vl_convert.vegalite_to_svg(json.dumps(spec)), count=1)


def picture_spec(figure: Figure, subtitle: str) -> Spec:
    """A chart by itself, with colours for white paper."""
    return {
        **figure.spec,
        "config": _config({**_ON_PAPER, "background": "#ffffff"}, list(SERIES)),
        "description": escaped(figure.description),
        "padding": 16,
        "title": {"text": figure.title, "subtitle": [subtitle, figure.note]},
        "width": WIDE,
    }


def picture(figure: Figure, subtitle: str, form: Literal["svg", "png"]) -> bytes:
    """A chart as a file, for mail and slides."""
    spec = json.dumps(picture_spec(figure, subtitle))
    if form == "svg":
        return vl_convert.vegalite_to_svg(spec).encode()
    return vl_convert.vegalite_to_png(spec, scale=_SCALE)


def _config(colours: Mapping[str, str], series: list[str]) -> dict[str, Any]:
    text, muted, grid = colours["text"], colours["muted"], colours["grid"]
    labels = {"labelColor": text, "titleColor": text, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": 500}
    return {
        "aria": False,  # the page has one description of the whole chart
        "background": colours["background"],
        "font": _FONT,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "view": {"stroke": None},
        "axis": {**labels, "domainColor": muted, "tickColor": muted, "gridColor": grid, "labelOverlap": "greedy"},
        "legend": {
            **labels,
            "orient": "bottom",
            "columns": 2,
            "columnPadding": 24,
            "labelLimit": 280,
            "symbolSize": 90,
            "title": None,
        },
        "title": {"color": text, "subtitleColor": muted, "anchor": "start", "fontSize": 15, "fontWeight": 600},
        "range": {"category": series},
        "line": {"strokeWidth": 2, "color": series[0]},
        "point": {"filled": True, "opacity": 1, "size": 55, "color": series[0]},
        "rule": {"color": series[0], "strokeWidth": 1.5},
        "area": {"color": series[0]},
        "style": {
            "band": {"opacity": 0.18},
            "reference": {"color": muted, "strokeDash": [4, 4], "strokeWidth": 1},
            "unknown": {"fill": grid},
        },
    }


LOG_SCALE_FROM = 50  # positions
_SHOWN_EXACTLY = 20  # positions that each have a tick


def _chart_of(frame: pl.DataFrame) -> alt.Chart:
    """A chart of rows, null where nothing is known."""
    finite = [
        pl.when(pl.col(name).is_finite()).then(pl.col(name)).alias(name)
        for name, dtype in frame.schema.items()
        if dtype.is_float()
    ]
    return alt.Chart(alt.Data(values=frame.with_columns(finite).to_dicts()))


def _spec_of(*layers: alt.Chart, height: int = 300) -> Spec:
    chart: Any = alt.layer(*layers)
    spec: Spec = chart.properties(height=height).to_dict()
    spec.pop("config", None)  # colours and the like are those of the page, or of the picture
    return spec


def _position_axis(positions: pl.Series) -> alt.X:
    """Positions from left to right: each one if they are few, on a logarithmic scale if they are many."""
    scale = alt.Scale(nice=False, zero=False, padding=12)
    axis = alt.Axis(tickMinStep=1, format=",d", grid=False)
    values: list[int] = positions.unique().sort().to_list()
    if values and len(values) <= _SHOWN_EXACTLY:
        axis = alt.Axis(values=list[float](values), format=",d", grid=False)
    elif values and values[-1] > LOG_SCALE_FROM:
        scale = alt.Scale(type="log", nice=False, padding=12)
        axis = alt.Axis(format="~s", grid=False)
    return alt.X("position:Q", title="position", scale=scale, axis=axis)


def _series(column: str, names: Sequence[str]) -> dict[str, Any]:
    """Colours and shapes for the names in a column."""
    shared: dict[str, Any] = {"sort": list(names), "title": None, "scale": alt.Scale(domain=list(names))}
    return {"color": alt.Color(f"{column}:N", **shared), "shape": alt.Shape(f"{column}:N", **shared)}


def _line(base: alt.Chart, x: alt.X, y: alt.Y, names: Mapping[str, Any], *, interval: str = "") -> list[alt.Chart]:
    """A line with points; its intervals from `low` to `high` as `bars`, a `band`, or none."""
    colour = {"color": names["color"]} if names else {}
    layers = [
        base.mark_line().encode(x=x, y=y, **colour),
        base.mark_point(filled=True).encode(x=x, y=y, **names),
    ]
    if interval:
        mark = base.mark_rule() if interval == "bars" else base.mark_area(style=interval)
        low = alt.Y(f"{LOW}:Q", title=cast("str", y["title"]))
        layers.insert(0, mark.encode(x=x, y=low, y2=f"{HIGH}:Q", **colour))
    return layers


# --- attention by position, beside the click rates that people take for it ---

_LINE, _VALUE, _MEASURE = "line", "value", "measure"
_ATTENTION, _RATE = "attention (propensity)", "click rate"
_DASHES = "Dashed: what raw click rates say."


def curve(curves: PlottedCurves, contexts: str, reference: int | None) -> Figure:
    """Propensity by position, with 95 % intervals.

    Args:
        curves: of each context.
        contexts: the columns that tell them apart.
        reference: the position that others are compared with; None where contexts differ in it.
    """
    lines = curves.lines.with_columns(pl.format("{} {}", pl.lit(contexts), CONTEXT).alias(_LINE))
    described = [f"Line chart of {len(curves.positions):,} positions."]
    for context in curves.contexts:
        known = lines.filter((pl.col(CONTEXT) == context) & pl.col(PROPENSITY).is_not_null())
        if known.height:
            last = known.row(-1, named=True)
            rate = "" if last[RELATIVE_RATE] is None else f", and raw click rates say {last[RELATIVE_RATE]:.2f}"
            where = f"For {contexts} {context}, position" if context else "Position"
            described.append(f"{where} {last[POSITION]:,} gets {last[PROPENSITY]:.2f}{rate}.")
    below = "Shown for pages on which nothing above was clicked." if curves.browsing else ""
    note = ["Shaded: 95 % intervals.", _DASHES, below, *curves.omissions]
    spec = _curve_spec(lines, single=len(curves.contexts) == 1, reference=reference)
    return Figure("curve", "Attention by position", " ".join(described), spec, " ".join(filter(None, note)))


def curves_of_results(lines: pl.DataFrame, note: str) -> Figure:
    """The curves of several results, distinguished by the column `line`."""
    names = lines[_LINE].unique(maintain_order=True).to_list()
    described = f"Line chart of propensity by position in {len(names)} results: {', '.join(names)}."
    note = f"Shaded: 95 % intervals. {_DASHES} {note}".strip()
    return Figure("runs", "Attention by position and result", described, _curve_spec(lines, single=False), note)


def _relative_to(reference: int | None) -> str:
    return "relative to the top" if reference is None else f"relative to position {reference}"


def _curve_spec(lines: pl.DataFrame, *, single: bool, reference: int | None = None) -> Spec:
    """Lines with their intervals, and dashed ones of click rates; of a single line, colours tell these two apart."""
    attention = lines.select(POSITION, _LINE, LOW, HIGH, pl.col(PROPENSITY).alias(_VALUE))
    rates = lines.select(POSITION, _LINE, pl.col(RELATIVE_RATE).alias(_VALUE))
    measured = [
        frame.with_columns(pl.lit(name).alias(_MEASURE)) for name, frame in ((_ATTENTION, attention), (_RATE, rates))
    ]
    base = _chart_of(pl.concat(measured, how="diagonal").filter(pl.col(_VALUE).is_not_null()))
    x = _position_axis(lines[POSITION])
    y = alt.Y(f"{_VALUE}:Q", title=_relative_to(reference), scale=alt.Scale(zero=True))
    if single:
        names = {"color": _series(_MEASURE, [_ATTENTION, _RATE])["color"]}
    else:
        names = _series(_LINE, lines[_LINE].unique(maintain_order=True).to_list())
    is_rate = f"datum.{_MEASURE} == '{_RATE}'"
    dashes = base.transform_filter(is_rate).mark_line(strokeDash=[5, 4]).encode(x=x, y=y, color=names["color"])
    return _spec_of(dashes, *_line(base.transform_filter(f"!({is_rate})"), x, y, names, interval="band"))


# --- the user browsing model: by position and by the last click above ---

_MOST_POSITIONS = 40
_NUMBERS_UP_TO = 12  # positions whose cells have room for a number
_CELL = 26  # pixels
_DARK_BELOW = 0.6  # viridis is dark below, so that numbers are white there


def browsing(curves: PlottedCurves, contexts: str) -> Figure:
    """A heat map of propensity by position and last click above, in the most frequent context."""
    first = curves.contexts[0]
    cells = curves.cells.filter((pl.col(CONTEXT) == first) & (pl.col(POSITION) <= _MOST_POSITIONS))
    known = cells.filter(pl.col(PROPENSITY).is_not_null())
    x = alt.X(f"{POSITION}:O", title="position", axis=alt.Axis(labelAngle=0))
    y = alt.Y(f"{PREVIOUS_CLICK}:O", title="last click above (0: none)")
    base = _chart_of(known.select(POSITION, PREVIOUS_CLICK, PROPENSITY))
    unknown = _chart_of(cells.filter(pl.col(PROPENSITY).is_null()).select(POSITION, PREVIOUS_CLICK))
    has_numbers = cells[POSITION].n_unique() <= _NUMBERS_UP_TO
    key = None if has_numbers else alt.Legend(type="symbol", format=".2f", title="propensity")
    colour = alt.Color(f"{PROPENSITY}:Q", scale=alt.Scale(scheme="viridis", domainMin=0), legend=key)
    layers = [unknown.mark_rect(style="unknown").encode(x=x, y=y), base.mark_rect().encode(x=x, y=y, color=colour)]
    if has_numbers:
        largest = known[PROPENSITY].max()
        bright = _DARK_BELOW * (float(largest) if isinstance(largest, float) else 1.0)
        number = alt.Text(f"{PROPENSITY}:Q", format=".2f")
        ink = alt.condition(f"datum.{PROPENSITY} < {bright}", alt.value("#ffffff"), alt.value("#000000"))
        layers.append(base.mark_text(fontSize=10).encode(x=x, y=y, text=number, color=ink))
    note = ["Grey: unknown, as nothing compares it with the top position."]
    note += [f"Of {contexts} {first}."] if first else []
    note += [f"The first {_MOST_POSITIONS} positions are drawn."] if curves.positions[-1] > _MOST_POSITIONS else []
    return Figure(
        "browsing",
        "Attention by position and last click above",
        f"Heat map of {cells.height:,} cells, {cells[PROPENSITY].null_count():,} of them unknown.",
        _spec_of(*layers, height=max(_CELL * cells[PREVIOUS_CLICK].n_unique(), 60)),
        " ".join(note),
    )


# --- from result to result, and from day to day ---


def course(rows: pl.DataFrame, results: Sequence[str], note: str) -> Figure:
    """The propensities of some positions over results: `result`, `position`, `propensity`, `low`, `high`."""
    positions = [f"position {number}" for number in rows[POSITION].unique().sort()]
    base = _chart_of(rows.with_columns(pl.format("position {}", POSITION).alias(_LINE)))
    axis = alt.Axis(labelLimit=120, labelOverlap="greedy", grid=False)
    x = alt.X("result:O", sort=list(results), title=None, axis=axis)
    y = alt.Y(f"{PROPENSITY}:Q", title=_relative_to(None), scale=alt.Scale(zero=True))
    return Figure(
        "course",
        "Attention from result to result",
        f"Line chart of the propensities of {', '.join(positions)} over {len(results):,} results.",
        _spec_of(*_line(base, x, y, _series(_LINE, positions), interval="bars")),
        note,
    )


def click_rate_by_day(days: pl.DataFrame, note: str) -> Figure:
    """The click rate by day: `day`, `impressions`, `clicks`."""
    rates = days.select("day", (pl.col(CLICKS) / pl.col(IMPRESSIONS)).alias("rate"))
    x = alt.X("day:T", title=None, axis=alt.Axis(grid=False))
    y = alt.Y("rate:Q", title="click rate", axis=alt.Axis(format=".1%"), scale=alt.Scale(zero=False))
    described = f"Line chart of the click rate on {days.height:,} days."
    return Figure("days", "Click rate by day", described, _spec_of(*_line(_chart_of(rates), x, y, {})), note)


# --- differences with their intervals ---

_ROW = 34  # pixels


def differences(rows: Sequence[Interval], title: str, about: str, *, form: str = "+.0%", zero: bool = True) -> Figure:
    """Values with their 95 % intervals, one below the other.

    Args:
        rows: the values.
        title: of the chart.
        about: a sentence on what the values are.
        form: of the numbers along the axis.
        zero: whether values are differences, so that a line stands at 0.
    """
    labels = [escaped(row.label) for row in rows]
    cells = [(label, *row[1:]) for label, row in zip(labels, rows, strict=True)]
    schema = {"label": pl.String, _VALUE: pl.Float64, LOW: pl.Float64, HIGH: pl.Float64}
    base = _chart_of(pl.DataFrame(cells, schema, orient="row"))
    y = alt.Y("label:N", sort=labels, title=None, axis=alt.Axis(labelLimit=150, grid=False, ticks=False))
    x = alt.X(f"{_VALUE}:Q", title=None, axis=alt.Axis(format=form, tickCount=5), scale=alt.Scale(zero=zero))
    layers = [
        base.mark_rule().encode(x=alt.X(f"{LOW}:Q", title=None), x2=f"{HIGH}:Q", y=y),
        base.mark_point(filled=True).encode(x=x, y=y),
    ]
    if zero:
        nothing = _chart_of(pl.DataFrame({_VALUE: [0.0]})).mark_rule(style="reference")
        layers.insert(0, nothing.encode(x=x))
    values = "; ".join(f"{label} {row.value:+.3g}" for label, row in zip(labels, rows, strict=True))
    spec = _spec_of(*layers, height=_ROW * len(rows))
    return Figure(
        "differences", title, f"Points with 95 % intervals: {values}.", spec, f"{about} Bars: 95 % intervals."
    )
