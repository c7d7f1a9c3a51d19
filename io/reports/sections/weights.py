"""The weights of clicks: which positions they lift, and what clipping did to them."""

import altair as alt
import polars as pl
from msgspec import UNSET

from posbias.core.reporting.curves import MOST_POSITIONS, thinned
from posbias.core.schema import POSITION
from posbias.io.reports.drawing import data_of, position_axis, spec_of, tooltips
from posbias.io.reports.elements import Block, Figure, Section, Spec, table
from posbias.io.reports.read import ReportedResult, WeightsSection

SHARE, OF = "share", "of"
_CLICKS, _WEIGHT = "of the clicks", "of the weight"

_ABOUT = (
    "A click weighs 1 / weight_propensity, so that clicks far down count more. This column of propensities.parquet is "
    "the propensity, or the smooth curve where the propensity is poorly known. Clipping bounds the weights: a little "
    "bias for much less noise. The effective sample size says how many clicks of equal weight would be as informative."
)


def weights_section(result: ReportedResult) -> Section | None:
    """The section; None where no training files were written, or these have no click weights."""
    said = result.said
    if said.weights is UNSET:
        return None
    blocks: list[Block] = [
        _ABOUT,
        _clipping(said.weights),
    ]
    rows = [(entry.position, float(entry.clicks), entry.weight_share) for entry in said.weights_by_position]
    frame = pl.DataFrame(rows, {POSITION: pl.Int64, "clicks": pl.Float64, "weight_share": pl.Float64}, orient="row")
    by_position = frame.group_by(POSITION).agg(pl.all().sum()).sort(POSITION)
    if by_position.height and by_position["clicks"].sum() > 0:
        blocks += _figure(by_position)
    return Section("weights", "Weights", tuple(blocks))


def _clipping(weights: WeightsSection) -> Block:
    rows: tuple[tuple[str, object, object], ...] = (
        ("clicks that are weighted", None, weights.clicks_weighted),
        ("clicks without a propensity, left out", None, weights.clicks_without_propensity),
        ("clicks whose weight was clipped", None, weights.clicks_clipped),
        ("sum of weights", weights.weight_before_clipping, weights.weight_after_clipping),
        (
            "effective sample size",
            weights.effective_sample_size_before_clipping,
            weights.effective_sample_size,
        ),
    )
    return table("What clipping did", ("", "before", "after"), rows)


def _figure(by_position: pl.DataFrame) -> list[Block]:
    shown = thinned(by_position[POSITION].to_list(), MOST_POSITIONS)
    shares = by_position.with_columns(
        (pl.col("clicks") / pl.col("clicks").sum()).alias(_CLICKS), pl.col("weight_share").alias(_WEIGHT)
    ).filter(pl.col(POSITION).is_in(shown))
    blocks: list[Block] = []
    if by_position.height > len(shown):
        blocks.append(f"Of {by_position.height:,} positions, {len(shown)} are drawn.")
    figure = Figure(
        "weights",
        "Share of the clicks and of the weight by position",
        "Line chart by position: the share of the clicks, and the share of the weight that these clicks have.",
        _spec(shares),
        table(
            "Shares by position",
            ("position", "clicks", _CLICKS, _WEIGHT),
            shares.select(POSITION, "clicks", _CLICKS, _WEIGHT).rows(),
        ),
    )
    return [*blocks, figure]


def _spec(shares: pl.DataFrame) -> Spec:
    names = [_CLICKS, _WEIGHT]
    long = shares.select(POSITION, *names).unpivot(names, index=POSITION, variable_name=OF, value_name=SHARE)
    base = alt.Chart(data_of(long))
    x = position_axis(shares[POSITION].to_list())
    y = alt.Y(f"{SHARE}:Q", title="share", axis=alt.Axis(format=".0%"))
    colour = alt.Color(f"{OF}:N", sort=names, title=None, scale=alt.Scale(domain=names))
    shape = alt.Shape(f"{OF}:N", sort=names, title=None, scale=alt.Scale(domain=names))
    said = tooltips({POSITION: "position", OF: "share", SHARE: "is"}, {POSITION: ",d", SHARE: ".1%"})
    points = base.mark_point(filled=True).encode(x=x, y=y, color=colour, shape=shape, tooltip=said)
    return spec_of(base.mark_line().encode(x=x, y=y, color=colour), points, height=260)
