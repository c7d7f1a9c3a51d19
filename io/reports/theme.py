"""The looks of charts: on the page in the colours of its style sheet, light or dark; in pictures in light."""

from collections.abc import Mapping
from typing import Any

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
