"""Charts by Altair, and their looks on the page and in pictures."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from posbias.io.reports.elements import Spec

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


HEIGHT = 300
LOG_SCALE_FROM = 50  # positions

_SHOWN_EXACTLY = 20  # positions that each have a tick


def data_of(frame: pl.DataFrame) -> alt.Data:
    """Rows as a chart holds them, null where nothing is known."""
    finite = [
        pl.when(pl.col(name).is_finite()).then(pl.col(name)).alias(name)
        for name, dtype in frame.schema.items()
        if dtype.is_float()
    ]
    return alt.Data(values=frame.with_columns(finite).to_dicts())


def spec_of(*layers: alt.Chart, height: int = HEIGHT) -> Spec:
    """Layers of a chart as plain values, as wide as what they stand in."""
    chart: Any = alt.layer(*layers)
    spec: Spec = chart.properties(width="container", height=height).to_dict()
    spec.pop("config", None)  # colours and the like are those of the page, or of the picture
    return spec


def position_axis(positions: Sequence[int], field: str = "position", title: str = "position") -> alt.X:
    """Positions from left to right: each one if they are few, on a logarithmic scale if they are many."""
    scale = alt.Scale(nice=False, zero=False, padding=12)
    axis = alt.Axis(tickMinStep=1, format=",d", grid=False)
    if positions and len(positions) <= _SHOWN_EXACTLY:
        axis = alt.Axis(values=list(positions), format=",d", grid=False)
    elif positions and positions[-1] > LOG_SCALE_FROM:
        scale = alt.Scale(type="log", nice=False, padding=12)
        axis = alt.Axis(format="~s", grid=False)
    return alt.X(f"{field}:Q", title=title, scale=scale, axis=axis)


def tooltips(titles: Mapping[str, str], formats: Mapping[str, str]) -> list[alt.Tooltip]:
    """What is said of a point: columns by their titles, those of numbers with a format."""
    return [
        alt.Tooltip(field=name, type="quantitative", title=title, format=formats[name])
        if name in formats
        else alt.Tooltip(field=name, type="nominal", title=title)
        for name, title in titles.items()
    ]
