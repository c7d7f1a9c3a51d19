"""Results in notebooks: a short card in HTML, and the printed text."""

from collections.abc import Iterable, Sequence

import polars as pl
from rich.console import RenderableType

from posbias.cli.console import SafeConsole
from posbias.core.errors import in_html
from posbias.core.fit.plot_data import CONTEXT, HIGH, LOW, PROPENSITY, plotted_curves
from posbias.core.schema import IMPRESSIONS, POSITION
from posbias.io.jobs.tables import Printed, PrintedTable

_TEXT_WIDTH = 120
_MOST_ROWS, _MOST_WARNINGS = 10, 3
_COLOURS = {"good": "#1a7f37", "with care": "#b35900", "do not use": "#c62828"}
_LINES = ("#3b6fb6", "#b35900", "#1a7f37", "#8250df", "#c62828", "#57606a")
_WIDTH, _HEIGHT, _MARGIN, _LEGEND = 360, 150, 28, 240  # pixels


def rendered(contents: Iterable[RenderableType]) -> str:
    """Sentences and tables as the command line prints them into a file."""
    console = SafeConsole(stderr=False, width_in_a_file=_TEXT_WIDTH)
    console.width = _TEXT_WIDTH
    with console.capture() as text:
        for content in contents:
            console.print(content, crop=False)
    return text.get().rstrip("\n")


def card(
    title: str,
    verdict: str,
    conclusion: str,
    warnings: Sequence[str],
    propensities: pl.DataFrame | None,
    printed: Sequence[Printed],
) -> str:
    """A card: the verdict, what speaks against the result, the curve, and the first table.

    It takes its colours of text and background from the notebook, light or dark.

    Args:
        title: what it is about.
        verdict: in a word.
        conclusion: in a sentence; may be empty.
        warnings: sentences, of which the first are shown.
        propensities: the table of a fit, if there is one.
        printed: what the command prints.
    """
    table = next((one for one in printed if isinstance(one, PrintedTable)), None)
    mark = f'<b style="color:{_COLOURS.get(verdict, "inherit")}">&#9679; {in_html(verdict)}</b>'
    parts = [f'<div style="margin-bottom:4px">{in_html(title)} {mark}</div>']
    parts += [f"<div>{in_html(conclusion[:1].upper() + conclusion[1:])}</div>"] if conclusion else []
    parts += [f'<div style="opacity:.8">&#9888; {in_html(each)}</div>' for each in warnings[:_MOST_WARNINGS]]
    more = len(warnings) - _MOST_WARNINGS
    parts += [f'<div style="opacity:.8">... and {more} more in <code>.warnings</code></div>'] if more > 0 else []
    parts += [] if propensities is None else [curve_in_svg(propensities)]
    if table is not None:
        parts.append(_table(table))
    else:
        parts += [
            f'<pre style="overflow-x:auto">{in_html(one, keep=chr(10))}</pre>'
            for one in printed
            if isinstance(one, str)
        ]
    return f'<div style="max-width:60em">{"".join(parts)}</div>'


def _table(table: PrintedTable) -> str:
    """The first rows of a table, without the columns that can be spared."""
    columns = [column for column in table.columns if not column.spare]
    rows = list(zip(*(column.cells for column in columns), strict=True))
    heads = "".join(f"<th>{in_html(column.name)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{in_html(cell)}</td>' for cell in row)}</tr>" for row in rows[:_MOST_ROWS])
    more = len(rows) - _MOST_ROWS
    below = f"<div>... and {more:,} more rows</div>" if more > 0 else f"<div>{in_html(table.more)}</div>"
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{below}"


def curve_in_svg(table: pl.DataFrame) -> str:
    """Propensity by position with its interval, a line for each of the first contexts; nothing where none is known."""
    apart = [name for name in table.columns[: table.columns.index(IMPRESSIONS)] if name != POSITION]
    curves = plotted_curves(table, apart, where="propensities")
    known = curves.cells.filter(pl.col(PROPENSITY).is_not_null())
    if known.is_empty():
        return ""
    last = max(int(known["position"].max()), 2)  # type: ignore[arg-type]
    top = max(float(known.select(pl.max_horizontal(PROPENSITY, HIGH).max()).item()), 1.0)

    def at(position: float, value: float) -> str:
        across = _MARGIN + (position - 1) / (last - 1) * (_WIDTH - 2 * _MARGIN)
        return f"{across:.1f},{_HEIGHT - _MARGIN - value / top * (_HEIGHT - 2 * _MARGIN):.1f}"

    drawn: list[str] = []
    for number, (colour, label) in enumerate(zip(_LINES, curves.contexts, strict=False)):
        line = known.filter(pl.col(CONTEXT) == label).sort(POSITION)
        rows = line.select(POSITION, PROPENSITY, LOW, HIGH).rows()
        for position, value, low, high in rows:
            if low is not None and high is not None:
                ends = f"M{at(position, low)}L{at(position, high)}"
                drawn.append(f'<path d="{ends}" stroke="{colour}" stroke-width="5" stroke-opacity=".3"/>')
            x, y = at(position, value).split(",")
            drawn.append(f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}"/>')
        points = " ".join(at(position, value) for position, value, _, _ in rows)
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        name = f"{', '.join(apart).replace('_', ' ')} {label}".strip()
        drawn.append(
            f'<text x="{_WIDTH}" y="{_MARGIN + 14 * number}" font-size="11" fill="{colour}">{in_html(name)}</text>'
        )
    if curves.n_contexts > len(curves.contexts):
        more = f"and {curves.n_contexts - len(curves.contexts):,} more"
        drawn.append(f'<text x="{_WIDTH}" y="{_HEIGHT - 10}" font-size="11" fill="currentColor">{more}</text>')
    axes = f'<path d="M{at(1, top)}L{at(1, 0)}L{at(last, 0)}" fill="none" stroke="currentColor" stroke-opacity=".4"/>'
    words = (
        (_MARGIN, _HEIGHT - 10, "position 1"),
        (_WIDTH - _MARGIN - 12, _HEIGHT - 10, f"{last:,}"),
        (2, _MARGIN + 4, f"{top:.3g}"),
        (_MARGIN, 14, "propensity, with 95 % intervals"),
    )
    texts = "".join(f'<text x="{x}" y="{y}" font-size="11" fill="currentColor">{word}</text>' for x, y, word in words)
    label = f"Propensity by position, to {float(known.sort('position')['propensity'][-1]):.3g} at position {last:,}"
    width = _WIDTH + (_LEGEND if apart else 0)
    size = f'width="{width}" height="{_HEIGHT}" viewBox="0 0 {width} {_HEIGHT}"'
    return f'<svg {size} role="img" aria-label="{label}">{axes}{"".join(drawn)}{texts}</svg>'
