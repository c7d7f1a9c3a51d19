"""The page: one HTML file that holds all it needs, and may fetch nothing; and one chart of it as a picture.

Whatever comes from data is escaped here, once: in HTML as text, in the data of charts as JSON without `<`. The page's
own policy (Content-Security-Policy) lets two scripts run, by their digests, and forbids all else, connections too.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from importlib.metadata import version
from importlib.resources import files
from itertools import count, groupby
from typing import Literal

import vl_convert

from posbias.core.errors import UsageError, escaped
from posbias.io.reports.drawing import Block, Figure, Listing, Points, Section, Table, page_config, picture_config
from posbias.io.reports.sections import MOST_IN_FULL, Part

_OF_VEGA = (
    "Charts by Vega, Vega-Lite and Vega-Embed, Copyright (c) University of Washington Interactive Data Lab, "
    "BSD-3-Clause licence."
)
_NUMBER = re.compile(r"[-+]?[\d,]+(\.\d+)?(e[-+]?\d+)?%?|-")
_WIDTH = 720  # pixels of a picture
_SCALE = 2.0  # of PNG, for screens of high resolution


def page_of(parts: Sequence[Part], names: Sequence[str]) -> str:
    """The page of a report.

    Args:
        parts: what it holds.
        names: of the results that it is about.
    """
    library, program = _library(), _own("page.js")
    title = f"Position bias: {names[0]}" if len(names) == 1 else f"Position bias: {len(names):,} results"
    number = count(1)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(library, program)}">
<meta name="generator" content="posbias {_text(version("posbias"))}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{_text(title)}</title>
<style>
{_own("page.css")}</style>
</head>
<body>
<header>
<h1>{_text(title)}</h1>
{_intro(parts, names)}
</header>
{_navigation(parts)}
<main>
<noscript><p class="warn">Charts need JavaScript. Their numbers are in the tables below them.</p></noscript>
{"".join(_part(part, place, number) for place, part in enumerate(parts))}
</main>
<footer>
<p>Made by posbias {_text(version("posbias"))}. The page holds all that it shows, and connects to nothing.</p>
<p>{_text(_OF_VEGA)}</p>
</footer>
<script type="application/json" id="config">{_json(page_config())}</script>
<script>{library}</script>
<script>{program}</script>
</body>
</html>
"""


def _intro(parts: Sequence[Part], names: Sequence[str]) -> str:
    in_full = len(parts) - 1
    if len(names) <= MOST_IN_FULL or not in_full:
        return ""
    return _paragraph(f"Of {len(names):,} results, the last {in_full} are shown in full; all are compared below.")


def _policy(*scripts: str) -> str:
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, as `vl_convert` ships them: it needs no network."""
    script = vl_convert.javascript_bundle("window.drawChart = vegaEmbed;")
    return re.sub(r"<(?=/script|!--|script)", r"\\x3c", script, flags=re.IGNORECASE)


def _own(name: str) -> str:
    return files("posbias.io.reports").joinpath(name).read_text(encoding="utf-8")


def _navigation(parts: Sequence[Part]) -> str:
    if len(parts) == 1:
        links = [(_anchor(0, section), section.title) for section in parts[0].sections]
    else:
        links = [(f"part-{place}", part.title or "All results") for place, part in enumerate(parts)]
    entries = "".join(f'<li><a href="#{anchor}">{_text(title)}</a></li>' for anchor, title in links)
    return f'<nav aria-label="Sections"><ul>{entries}</ul></nav>'


def _anchor(place: int, section: Section) -> str:
    return f"{section.name}-{place}"


def _part(part: Part, place: int, number: Iterator[int]) -> str:
    level = 2 if part.title is None else 3
    heading = "" if part.title is None else f"<h2>{_text(part.title)}</h2>\n"
    sections = "".join(_section(section, _anchor(place, section), level, number) for section in part.sections)
    return f'<div id="part-{place}">\n{heading}{sections}</div>\n'


def _section(section: Section, anchor: str, level: int, number: Iterator[int]) -> str:
    parts: list[str] = []
    for is_figure, blocks in groupby(section.blocks, key=lambda block: isinstance(block, Figure)):
        html = [_block(block, number) for block in blocks]
        parts.append(f'<div class="charts">{"".join(html)}</div>' if is_figure and len(html) > 1 else "\n".join(html))
    body = "\n".join(parts)
    return (
        f'<section id="{anchor}" aria-labelledby="{anchor}-title">\n'
        f'<h{level} id="{anchor}-title">{_text(section.title)}</h{level}>\n{body}\n</section>\n'
    )


def _block(block: Block, number: Iterator[int]) -> str:
    match block:
        case str():
            return _paragraph(block)
        case Points():
            kind = "points warn" if block.warn else "points"
            return f'<ul class="{kind}">{"".join(f"<li>{_text(said)}</li>" for said in block.sentences)}</ul>'
        case Table():
            return _table(block)
        case Figure():
            return _figure(block, next(number))
        case Listing():
            text = escape(block.text)
            return f"<details><summary>{_text(block.title)}</summary><pre>{text}</pre></details>"


def _paragraph(text: str) -> str:
    return f"<p>{_text(text)}</p>"


def _figure(figure: Figure, number: int) -> str:
    name = f"chart-{number}"
    spec = {**figure.spec, "description": escaped(figure.description)}
    return (
        f'<figure aria-labelledby="{name}-title"><figcaption id="{name}-title">{_text(figure.title)}</figcaption>'
        f'<div class="chart" role="img" aria-label="{_text(figure.description)}" data-chart="{name}"></div>'
        f'<details class="numbers"><summary>The numbers as a table</summary>{_table(figure.table)}</details>'
        f'<script type="application/json" id="{name}">{_json(spec)}</script></figure>'
    )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{_text(column)}</th>' for column in table.columns) if any(table.columns) else ""
    cell = _cell if head else _fact
    rows = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in table.rows)
    caption = table.caption
    if table.rows_in_all > len(table.rows):
        caption += f" (the first {len(table.rows):,} of {table.rows_in_all:,} rows)"
    return (
        f'<div class="scroll" tabindex="0"><table><caption>{_text(caption)}</caption>'
        f"{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{rows}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    return f'<td class="number">{_text(text)}</td>' if _NUMBER.fullmatch(text) else _fact(text)


def _fact(text: str) -> str:
    """A cell of a table without headings, in which a column holds all kinds of things."""
    return f"<td>{_text(text)}</td>"


def _text(text: str) -> str:
    """Text within HTML, also between quotes; what cannot be seen is written as an escape."""
    return escape(escaped(text))


def _json(content: object) -> str:
    """JSON that cannot end the element that it stands in."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def figure_named(parts: Sequence[Part], name: str) -> Figure:
    """The first chart of a kind.

    Raises:
        UsageError: the report has none.
    """
    figures = [
        block for part in parts for section in part.sections for block in section.blocks if isinstance(block, Figure)
    ]
    found = next((figure for figure in figures if figure.name == name), None)
    if found is None:
        known = ", ".join(dict.fromkeys(figure.name for figure in figures)) or "none"
        raise UsageError(f"--chart {name}: these results have no such chart. Charts of them: {known}.")
    return found


def picture_of(figure: Figure, title: str, form: Literal["svg", "png"]) -> bytes:
    """A chart as a picture, for mail and slides."""
    spec = json.dumps(
        {
            **figure.spec,
            "config": picture_config(),
            "description": escaped(figure.description),
            "padding": 16,
            "title": {"text": figure.title, "subtitle": title},
            "width": _WIDTH,
        },
        allow_nan=False,
    )
    if form == "svg":
        return vl_convert.vegalite_to_svg(spec).encode()
    return vl_convert.vegalite_to_png(spec, scale=_SCALE)
