"""Draw propensities with their 95 % intervals, beside the truth and the click rates, as an SVG.

posbias run sample_logs/web_search.parquet -o out
python sample_logs/draw_curve.py out/propensities.parquet sample_logs/web_search_truth.parquet propensities.svg
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 20, 50
ESTIMATE, TRUTH, RATE = "#0b62a4", "#222222", "#c2571a"


def main() -> None:
    """Read the two tables named on the command line and write the picture."""
    estimate, truth, picture = map(Path, sys.argv[1:4])
    picture.write_text(curve(pl.read_parquet(estimate), pl.read_parquet(truth)), encoding="utf-8")


def curve(estimate: pl.DataFrame, truth: pl.DataFrame) -> str:
    """The picture of the propensities of a position-based model.

    Args:
        estimate: `propensities.parquet` of a fit.
        truth: position and propensity.
    """
    n = estimate.height
    rates = (estimate["ctr"] / estimate["ctr"][0]).to_list()
    bars = zip(estimate["position"], estimate["ci_low"], estimate["ci_high"], strict=True)
    points = zip(estimate["position"], estimate["propensity"], strict=True)
    words = "Propensity by position: estimate, truth and relative click rate"
    box, font = f'viewBox="0 0 {WIDTH} {HEIGHT}"', 'font-family="sans-serif" font-size="13"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} {font} role="img" aria-label="{words}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *_axes(estimate["position"].to_list()),
        _line([(place, rate) for place, rate in enumerate(rates, 1)], n, RATE, "5 4"),
        _line(list(truth.select("position", "propensity").iter_rows()), n, TRUTH, "none"),
        *(_bar(_x(place, n), _y(low), _y(high)) for place, low, high in bars),
        *(f'<circle cx="{_x(place, n):.1f}" cy="{_y(value):.1f}" r="3" fill="{ESTIMATE}"/>' for place, value in points),
        *_legend(),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _x(position: int, n_positions: int) -> float:
    return LEFT + (position - 0.5) * (WIDTH - LEFT - RIGHT) / n_positions


def _y(propensity: float) -> float:
    return HEIGHT - BOTTOM - propensity * (HEIGHT - TOP - BOTTOM) / 1.05


def _axes(positions: Sequence[int]) -> Iterable[str]:
    right = WIDTH - RIGHT
    for tenths in range(0, 11, 2):
        y = _y(tenths / 10)
        yield f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tenths / 10:.1f}</text>'
    for position in positions:
        x = _x(position, len(positions))
        yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{position}</text>'
    yield f'<text x="{(LEFT + right) / 2:.1f}" y="{HEIGHT - 10}" text-anchor="middle">position</text>'


def _line(points: Sequence[tuple[int, float]], n_positions: int, colour: str, dashes: str) -> str:
    path = " ".join(f"{_x(place, n_positions):.1f},{_y(value):.1f}" for place, value in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5" stroke-dasharray="{dashes}"/>'


def _bar(x: float, low: float, high: float) -> str:
    ends = f"M{x - 6:.1f},{low:.1f}h12M{x - 6:.1f},{high:.1f}h12"
    return f'<path d="M{x:.1f},{low:.1f}V{high:.1f}{ends}" stroke="{ESTIMATE}" stroke-width="1.5" fill="none"/>'


def _legend() -> Iterable[str]:
    entries = (
        (ESTIMATE, "none", "estimated propensity, 95 % interval"),
        (TRUTH, "none", "truth"),
        (RATE, "5 4", "relative click rate"),
    )
    for row, (colour, dashes, text) in enumerate(entries):
        y = TOP + 20 + 22 * row
        yield (
            f'<line x1="330" x2="360" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{dashes}"/>'
        )
        yield f'<text x="370" y="{y}">{text}</text>'
    yield f'<circle cx="345" cy="{TOP + 16}" r="3" fill="{ESTIMATE}"/>'


if __name__ == "__main__":
    main()
