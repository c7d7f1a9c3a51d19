"""Contexts: the curve of each, and what its own data say without the others."""

import altair as alt
import polars as pl
from msgspec import UNSET

from posbias.core.reporting.curves import CONTEXT, HIGH, LOW, PROPENSITY
from posbias.core.schema import POSITION
from posbias.io.reports.drawing import data_of, position_axis, spec_of, tooltips
from posbias.io.reports.elements import Block, Figure, Section, Spec, table_of
from posbias.io.reports.read import ReportedFit

UNSHRUNK = "unshrunk_propensity"
_HEIGHT = 220


def contexts_section(fit: ReportedFit) -> Section | None:
    """The section; None where there are no contexts."""
    curves = fit.curves
    if not fit.context:
        return None
    shrunk = UNSHRUNK in curves.cells.columns
    about = f"The curve of each context ({', '.join(fit.context)}), with 95 % intervals."
    if shrunk:
        about += (
            " Rings are what its own data say; the line is shrunk towards the other contexts as far as the log says."
            " Intervals hold for each context by itself, and need not lie evenly about the line."
        )
    differ = fit.estimate.contexts_differ
    said: list[Block] = [about, *curves.omissions]
    if differ is not None:
        verdict = "differ by more than chance" if differ.rejected else "do not differ by more than chance"
        said.append(f"The contexts {verdict} (p = {differ.p_value:.2g}).{'' if differ.rejected else _missed(fit)}")
    return Section(
        "contexts", "Contexts", (*said, *(_figure(fit, context, shrunk=shrunk) for context in curves.contexts))
    )


def _missed(fit: ReportedFit) -> str:
    """Which differences the test of contexts could have missed."""
    by_cell = fit.estimate.contexts_found_by_four_of_five
    factors = [] if by_cell is UNSET else [factor for factor in by_cell if factor is not None]
    if not factors:
        return ""
    return (
        f" Differences from the others by less than a factor of {min(factors):.2f} at the best known position, and of "
        f"{max(factors):.2f} at the least known, may have been missed."
    )


def _figure(fit: ReportedFit, context: str, *, shrunk: bool) -> Figure:
    own = fit.curves.lines.filter(pl.col(CONTEXT) == context)
    named = {UNSHRUNK: "by itself"} if shrunk else {}
    return Figure(
        "contexts",
        f"{', '.join(fit.context)}: {context}",
        f"Line chart of propensity by position in the context {context}, with 95 % intervals.",
        _spec(own, _largest(fit), shrunk=shrunk),
        table_of(
            f"Propensities in {context}",
            own,
            position="position",
            propensity="propensity",
            low="from",
            high="to",
            **named,
            impressions="impressions",
            clicks="clicks",
        ),
    )


def _largest(fit: ReportedFit) -> float:
    """The upper end of the axis, the same for all contexts."""
    ends = fit.curves.lines.select(pl.max_horizontal(pl.col(PROPENSITY, HIGH)).max()).item()
    return 1.0 if ends is None else float(ends)


def _spec(own: pl.DataFrame, largest: float, *, shrunk: bool) -> Spec:
    base = alt.Chart(data_of(own.select(POSITION, PROPENSITY, LOW, HIGH, *([UNSHRUNK] if shrunk else []))))
    x = position_axis(own[POSITION].unique().sort().to_list())
    y = alt.Y(f"{PROPENSITY}:Q", title="propensity", scale=alt.Scale(domain=[0, largest], nice=True))
    band = base.mark_area(style="band").encode(x=x, y=alt.Y(f"{LOW}:Q", title="propensity"), y2=f"{HIGH}:Q")
    line = base.mark_line().encode(x=x, y=y)
    titles = {POSITION: "position", PROPENSITY: "propensity", LOW: "from", HIGH: "to"}
    formats = {POSITION: ",d", PROPENSITY: ".3f", LOW: ".3f", HIGH: ".3f"}
    point = base.mark_point(filled=True).encode(x=x, y=y, tooltip=tooltips(titles, formats))
    layers = [band, line, point]
    if shrunk:
        by_itself = alt.Y(f"{UNSHRUNK}:Q", title="propensity")
        more = tooltips({POSITION: "position", UNSHRUNK: "by itself"}, {POSITION: ",d", UNSHRUNK: ".3f"})
        layers.append(base.mark_point(filled=False, size=110).encode(x=x, y=by_itself, tooltip=more))
    return spec_of(*layers, height=_HEIGHT)
