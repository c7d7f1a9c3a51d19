"""What a page consists of, and its charts by Altair. All text here is plain: it is escaped in `page` alone.

A column has one name everywhere: `_HEADINGS` and `_FORMATS` say how it is called, and written, in tables and tooltips.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeAlias, cast

import altair as alt
import polars as pl

Spec: TypeAlias = dict[str, Any]
"""A chart as Vega-Lite says it, without colours of its own."""

MOST_ROWS = 600
"""Rows of a table on the page."""

DIFFERENCE = "difference"

_HEADINGS = {
    "previous_click": "last click",
    "low": "from",
    "high": "to",
    "relative_rate": "relative click rate",
    "unshrunk_propensity": "by itself",
    "rate": "click rate",
    "estimator": "estimate",
}
_FORMATS = {
    **dict.fromkeys(("position", "previous_click", "other_position", "documents"), ",d"),
    **dict.fromkeys(("propensity", "low", "high", "value", "unshrunk_propensity"), ".3f"),
    **dict.fromkeys(("impressions", "clicks", "observed", "linking_clicks"), ",.0f"),
    **dict.fromkeys(("click_rate", "attractiveness"), ".0%"),
    "expected": ",.1f",
    DIFFERENCE: "+.2%",
    "rate": ".2%",
    "share": ".1%",
}


Named: TypeAlias = str | tuple[str, str]
"""A column under its usual heading, or with another one."""


@dataclass(frozen=True)
class Points:
    """Sentences, one below the other; those that warn look like it."""

    sentences: tuple[str, ...]
    warn: bool = False


@dataclass(frozen=True)
class Table:
    """A table of texts: the first rows, up to `MOST_ROWS`, and how many there are in all."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    rows_in_all: int


@dataclass(frozen=True)
class Figure:
    """A chart, in words and as a table for who cannot see it."""

    name: str  # what kind of chart it is
    title: str
    description: str  # what can be seen on it
    spec: Spec
    table: Table


@dataclass(frozen=True)
class Listing:
    """A long text, to be unfolded."""

    title: str
    text: str


Block: TypeAlias = str | Points | Table | Figure | Listing


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading."""

    name: str  # what it is about, in one word
    title: str
    blocks: tuple[Block, ...]


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table of values."""
    texts = [tuple(map(in_words, row)) for row in rows]
    return Table(caption, tuple(columns), tuple(texts[:MOST_ROWS]), len(texts))


def table_of(caption: str, frame: pl.DataFrame, *columns: Named) -> Table:
    """A table of some columns of a frame, under their usual headings or under others."""
    headings = _headings(columns)
    rows = frame.head(MOST_ROWS).select(list(headings)).iter_rows()
    return Table(caption, tuple(headings.values()), tuple(tuple(map(in_words, row)) for row in rows), frame.height)


def _headings(columns: Sequence[Named]) -> dict[str, str]:
    named = (
        (entry, _HEADINGS.get(entry, entry.replace("_", " "))) if isinstance(entry, str) else entry for entry in columns
    )
    return dict(named)


def in_words(value: object) -> str:
    """A value of a table: numbers with three or four digits, whole ones in full, a dash for none."""
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        if not isfinite(value):
            return "-"
        if abs(value) >= 1000:  # noqa: PLR2004
            return f"{value:,.0f}"
        return f"{value:.3f}" if abs(value) >= 0.01 or not value else f"{value:.3g}"  # noqa: PLR2004
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""The palette of Okabe and Ito, which people with any colour vision can tell apart, in an order for white paper."""

SERIES_ON_DARK = ("#56B4E9", "#E69F00", "#2BBE8F", "#E29CC4", "#F0E442", "#F08A4B")
"""The same hues, for a dark page."""

_FONT = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
_ON_PAPER = {"text": "#1b1f24", "grid": "#e3e6ea", "muted": "#6b7280", "background": "#ffffff"}


def page_config() -> dict[str, Any]:
    """Colours that the style sheet names."""
    colours = {name: f"var(--{name})" for name in _ON_PAPER}
    series = [f"var(--series-{number})" for number in range(1, len(SERIES) + 1)]
    return _config({**colours, "background": "transparent"}, series, _FONT)


def picture_config() -> dict[str, Any]:
    """Colours for mail and slides."""
    return _config(_ON_PAPER, list(SERIES), "Liberation Sans, Arial, sans-serif")


def _config(colours: Mapping[str, str], series: list[str], font: str) -> dict[str, Any]:
    text, muted, grid = colours["text"], colours["muted"], colours["grid"]
    labels = {"labelColor": text, "titleColor": text, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": 500}
    return {
        "background": colours["background"],
        "font": font,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "view": {"stroke": None},
        "axis": {**labels, "domainColor": muted, "tickColor": muted, "gridColor": grid, "labelOverlap": "greedy"},
        "legend": {**labels, "orient": "bottom", "columns": 2, "labelLimit": 260, "symbolSize": 90, "titleLimit": 260},
        "title": {"color": text, "subtitleColor": muted, "anchor": "start", "fontSize": 15, "fontWeight": 600},
        "range": {"category": series},
        "line": {"strokeWidth": 2, "color": series[0]},
        "point": {"filled": True, "opacity": 1, "size": 55, "color": series[0]},
        "bar": {"color": series[0]},
        "rule": {"color": muted, "strokeWidth": 1.5},
        "area": {"color": series[0]},
        "text": {"color": text},
        "style": {
            "band": {"opacity": 0.18},
            "chance": {"color": muted, "opacity": 0.2},
            "reference": {"color": muted, "strokeDash": [4, 4], "strokeWidth": 1},
            "unknown": {"fill": grid},
        },
    }


LOG_SCALE_FROM = 50  # positions
_SHOWN_EXACTLY = 20  # positions that each have a tick


def chart_of(frame: pl.DataFrame) -> alt.Chart:
    """A chart of rows, null where nothing is known."""
    finite = [
        pl.when(pl.col(name).is_finite()).then(pl.col(name)).alias(name)
        for name, dtype in frame.schema.items()
        if dtype.is_float()
    ]
    return alt.Chart(alt.Data(values=frame.with_columns(finite).to_dicts()))


def spec_of(*layers: alt.Chart, height: int = 300) -> Spec:
    """Layers of a chart as plain values, as wide as what they stand in."""
    chart: Any = alt.layer(*layers)
    spec: Spec = chart.properties(width="container", height=height).to_dict()
    spec.pop("config", None)  # colours and the like are those of the page, or of the picture
    return spec


def position_axis(positions: pl.Series) -> alt.X:
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


def tooltips(*columns: Named, formats: Mapping[str, str] = _FORMATS) -> list[alt.Tooltip]:
    """What is said of a point: columns under their usual headings or under others, numbers with their formats."""
    return [
        alt.Tooltip(field=name, type="quantitative", title=title, format=formats[name])
        if name in formats
        else alt.Tooltip(field=name, type="nominal", title=title)
        for name, title in _headings(columns).items()
    ]


def told_apart(column: str, names: Sequence[str], title: str | None = None, *, legend: bool = True) -> dict[str, Any]:
    """Colours and shapes for the names in a column."""
    shared: dict[str, Any] = {"sort": list(names), "title": title, "scale": alt.Scale(domain=list(names))}
    key = alt.Legend() if legend else None
    return {which: kind(f"{column}:N", legend=key, **shared) for which, kind in _KINDS.items()}


_KINDS = {"color": alt.Color, "shape": alt.Shape}


def heat(column: str, *, numbers: str | None = None, **scale: Any) -> alt.Color:  # noqa: ANN401 - Altair's
    """Colours for the numbers in a column."""
    legend = alt.Legend(orient="bottom", gradientLength=200)
    if numbers is not None:
        legend = alt.Legend(orient="bottom", gradientLength=200, format=numbers)
    return alt.Color(f"{column}:Q", title=column, scale=alt.Scale(scheme="viridis", **scale), legend=legend)


def drawn(
    base: alt.Chart,
    x: alt.X,
    y: alt.Y,
    said: list[alt.Tooltip] | None = None,
    names: Mapping[str, Any] | None = None,
    *,
    line: bool = True,
    interval: str = "",
) -> list[alt.Chart]:
    """Intervals from `low` to `high`, a line, and points, each where it is wanted.

    Args:
        base: the data.
        x: where points lie.
        y: likewise.
        said: the tooltips of points; without them there are none.
        names: of `told_apart`.
        line: whether points are joined.
        interval: `bars`, the style of an area, or none.
    """
    colour = {} if names is None else {"color": names["color"]}
    layers: list[alt.Chart] = []
    if interval:
        mark = base.mark_rule() if interval == "bars" else base.mark_area(style=interval)
        low = alt.Y("low:Q", title=cast("str", y["title"]))
        layers.append(mark.encode(x=x, y=low, y2="high:Q", **colour))
    if line:
        layers.append(base.mark_line().encode(x=x, y=y, **colour))
    if said is not None:
        layers.append(base.mark_point(filled=True).encode(x=x, y=y, tooltip=said, **(names or {})))
    return layers


def line_at_zero(y: alt.Y) -> alt.Chart:
    """A dashed line where differences are 0."""
    return chart_of(pl.DataFrame({DIFFERENCE: [0.0]})).mark_rule(style="reference").encode(y=y)
