"""Estimators compared: how far the others lie from the one that was chosen, and how far chance alone may put it off."""

import altair as alt
import polars as pl
from msgspec import UNSET

from posbias.core.reporting.curves import CONTEXT, HIGH, LOW, OTHERS, PROPENSITY
from posbias.core.schema import POSITION
from posbias.io.reports.drawing import data_of, position_axis, spec_of, tooltips
from posbias.io.reports.elements import Figure, Section, Spec, table
from posbias.io.reports.read import ReportedFit

ESTIMATOR, RATIO, VALUE = "estimator", "ratio", "value"
_LOW_RATIO, _HIGH_RATIO = "low_ratio", "high_ratio"


def estimators_section(fit: ReportedFit) -> Section | None:
    """The section; None where there is nothing to compare with."""
    chosen = fit.estimate.method
    lines = _with_others(fit)
    names = [
        name for name in (*OTHERS.values(), *_periods(fit)) if name in lines.columns and lines[name].is_not_null().any()
    ]
    if not names:
        return None
    first = fit.curves.contexts[0]
    own = lines.filter(pl.col(CONTEXT) == first)
    ratios = pl.concat(
        [
            own.select(
                POSITION,
                pl.lit(name).alias(ESTIMATOR),
                pl.col(name).alias(VALUE),
                (pl.col(name) / pl.col(PROPENSITY) - 1).alias(RATIO),
            )
            for name in names
        ]
    ).filter(pl.col(RATIO).is_not_null())
    band = own.select(
        POSITION,
        (pl.col(LOW) / pl.col(PROPENSITY) - 1).alias(_LOW_RATIO),
        (pl.col(HIGH) / pl.col(PROPENSITY) - 1).alias(_HIGH_RATIO),
    )
    where = f" This is the context {first}." if len(fit.curves.contexts) > 1 else ""
    about = (
        f"How far other estimates lie from the one that is used ({chosen}), which is the line at 0 %; the band is its "
        f"95 % interval.{where}"
    )
    figure = Figure(
        "estimators",
        "Other estimates, relative to the one that is used",
        f"Line chart, by position, of {', '.join(names)}, as differences in percent from the {chosen} estimate.",
        _spec(ratios, band, names),
        table(
            "Estimates by position",
            ("position", chosen, *names),
            own.select(POSITION, PROPENSITY, *names).rows(),
        ),
    )
    return Section("estimators", "Estimators compared", (about, figure))


def _periods(fit: ReportedFit) -> dict[str, list[float | None]]:
    """The estimates by periods of other lengths, where they were made."""
    period = fit.estimate.period
    looks = [] if period.looks is UNSET else period.looks
    words = {"none": "the log as a whole"}
    return {
        words.get(look.length, f"by {look.length}"): look.propensity
        for look in looks
        if look.propensity is not None and look.length != period.used and len(look.propensity) == fit.n_cells
    }


def _with_others(fit: ReportedFit) -> pl.DataFrame:
    """The cells with all other estimates, each under the name that it has on the page."""
    lines = fit.curves.lines
    named = [pl.col(column).alias(name) for column, name in OTHERS.items() if column in lines.columns]
    periods = [
        pl.Series(name, values, pl.Float64, strict=False).gather(lines["row"]).alias(name)
        for name, values in _periods(fit).items()
    ]
    return lines.with_columns(*named, *periods)


def _spec(ratios: pl.DataFrame, band: pl.DataFrame, names: list[str]) -> Spec:
    x = position_axis(band[POSITION].unique().sort().to_list())
    y = alt.Y(f"{RATIO}:Q", title="difference", axis=alt.Axis(format="+.0%"))
    colour = alt.Color(f"{ESTIMATOR}:N", sort=names, title=None, scale=alt.Scale(domain=names))
    shape = alt.Shape(f"{ESTIMATOR}:N", sort=names, title=None, scale=alt.Scale(domain=names))
    interval = (
        alt.Chart(data_of(band))
        .mark_area(style="chance")
        .encode(x=x, y=alt.Y(f"{_LOW_RATIO}:Q", title="difference"), y2=f"{_HIGH_RATIO}:Q")
    )
    zero = alt.Chart(data_of(pl.DataFrame({RATIO: [0.0]}))).mark_rule(style="reference").encode(y=y)
    others = alt.Chart(data_of(ratios))
    line = others.mark_line().encode(x=x, y=y, color=colour)
    point = others.mark_point(filled=True).encode(
        x=x,
        y=y,
        color=colour,
        shape=shape,
        tooltip=tooltips(
            {ESTIMATOR: "estimate", POSITION: "position", VALUE: "propensity", RATIO: "difference"},
            {POSITION: ",d", VALUE: ".3f", RATIO: "+.1%"},
        ),
    )
    return spec_of(interval, zero, line, point)
