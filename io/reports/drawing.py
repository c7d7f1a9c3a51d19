"""Charts by Altair: what all of them share.

Their columns have names of our own, so that no name in a log becomes an expression.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from posbias.io.reports.elements import Spec

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
