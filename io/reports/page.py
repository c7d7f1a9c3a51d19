"""One HTML file that holds all it shows, runs no script and fetches nothing.

Whatever comes from data passes `in_html`. The page's own policy (Content-Security-Policy) forbids all but its
style sheet.
"""

import re
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from typing import Literal, TypeAlias

from posbias.core.errors import in_html
from posbias.io.reports.charts import NARROW, WIDE, Figure, inline_svg
from posbias.io.results.conclusions import Reason, Verdict

_ONE = r"[-+]?[\d,]+(\.\d+)?(e[-+]?\d+)?%?"
_NUMBER = re.compile(rf"{_ONE}( (-|to) {_ONE})?|below {_ONE}|-")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Banner:
    """The verdict on a result, and its conclusion."""

    verdict: Verdict
    conclusion: str


@dataclass(frozen=True)
class KeyFigure:
    """A number that a reader should take away, what it is, and what it rests on."""

    value: str
    label: str
    note: str


@dataclass(frozen=True)
class Table:
    """A table of texts; without headings, its first column says what a row is about."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Code:
    """A command to type, or a long text to look something up in."""

    text: str


@dataclass(frozen=True)
class Fold:
    """Blocks behind a line that unfolds them."""

    title: str
    blocks: tuple["Block", ...]
    is_open: bool = False
    paper: Literal["no", "line", "open"] = "no"  # whether it is printed, folded to its title or not


@dataclass(frozen=True)
class Orders:
    """What a query shows now, and what it would show, from the top."""

    names: tuple[str, str]
    before: tuple[str, ...]
    after: tuple[str, ...]


Block: TypeAlias = str | Banner | tuple[KeyFigure, ...] | tuple[Reason, ...] | Table | Figure | Code | Fold | Orders


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading."""

    title: str  # in few words, also for the navigation
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Page:
    """What stands on a page: sections, or parts about several results."""

    kind: str  # of result, in few words
    title: str
    sections: tuple[Section, ...]
    parts: tuple[tuple[str, tuple[Section, ...]], ...] = ()


def html_of(page: Page) -> str:
    """The page as a file."""
    links = [*(section.title for section in page.sections), *(title for title, _ in page.parts)]
    entries = "".join(f'<li><a href="#s{number}">{in_html(title)}</a></li>' for number, title in enumerate(links))
    sections = "".join(_section(section, f"s{number}", 2) for number, section in enumerate(page.sections))
    parts = "".join(
        f'<article id="s{number}"><h2>{in_html(title)}</h2>'
        f"{''.join(_section(section, f's{number}-{at}', 3) for at, section in enumerate(of_part))}</article>\n"
        for number, (title, of_part) in enumerate(page.parts, start=len(page.sections))
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="generator" content="posbias {in_html(version("posbias"))}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{in_html(page.title)}: {in_html(page.kind)}</title>
<style>
{files("posbias.io.reports").joinpath("page.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<header><p class="kind">{in_html(page.kind)}</p><h1>{in_html(page.title)}</h1></header>
<nav aria-label="Sections"><ul>{entries}</ul></nav>
<main>
{sections}{parts}</main>
<footer>Made by posbias {in_html(version("posbias"))}. This file needs no network, and connects to nothing.</footer>
</body>
</html>
"""


def _section(section: Section, anchor: str, level: int) -> str:
    body = "\n".join(
        _figure(block, caption=block.title != section.title) if isinstance(block, Figure) else _block(block)
        for block in section.blocks
    )
    return f'<section id="{anchor}">\n<h{level}>{in_html(section.title)}</h{level}>\n{body}\n</section>\n'


def _block(block: Block) -> str:
    """A block of any kind in HTML."""
    match block:
        case str():
            html = f"<p>{in_html(block)}</p>"
        case Banner():
            kind = block.verdict.replace(" ", "-")
            words = f"<strong>{in_html(block.verdict)}</strong><span>{in_html(block.conclusion)}</span>"
            html = f'<p class="banner {kind}">{words}</p>'
        case Table():
            html = _table(block)
        case Figure():
            html = _figure(block)
        case Code():
            html = f"<pre><code>{in_html(block.text, keep=chr(10))}</code></pre>"
        case Fold():
            body = "\n".join(map(_block, block.blocks))
            is_open = " open" if block.is_open else ""
            title = f"<summary>{in_html(block.title)}</summary>"
            html = f'<details class="paper-{block.paper}"{is_open}>{title}\n{body}</details>'
        case Orders():
            html = _orders(block)
        case tuple():
            html = _list(block)
    return html


def _list(block: tuple[KeyFigure, ...] | tuple[Reason, ...]) -> str:
    entries = [_key_figure(entry) if isinstance(entry, KeyFigure) else _reason(entry) for entry in block]
    kind = "figures" if block and isinstance(block[0], KeyFigure) else "reasons"
    return f'<ul class="{kind}">{"".join(entries)}</ul>'


def _key_figure(figure: KeyFigure) -> str:
    note = f"<small>{in_html(figure.note)}</small>" if figure.note else ""
    return f"<li><strong>{in_html(figure.value)}</strong><span>{in_html(figure.label)}</span>{note}</li>"


_MARKS = {"good": ("+", "for"), "note": ("i", "note"), "caution": ("!", "with care"), "stop": ("-", "against")}


def _reason(reason: Reason) -> str:
    mark, meaning = _MARKS[reason.severity]
    more = f"<details><summary>details</summary>{in_html(reason.details)}</details>" if reason.details else ""
    return (
        f'<li class="{reason.severity}"><b title="{meaning}">{mark}</b><div>{in_html(reason.sentence)}{more}</div></li>'
    )


def _figure(figure: Figure, *, caption: bool = True) -> str:
    charts = "".join(
        f'<div class="{name}">{inline_svg(figure, width)}</div>' for name, width in (("wide", WIDE), ("narrow", NARROW))
    )
    note = f"<small>{in_html(figure.note)}</small>" if figure.note else ""
    title = f"<figcaption>{in_html(figure.title)}</figcaption>" if caption else ""
    return (
        f'<figure>{title}<div role="img" '
        f'aria-label="{in_html(figure.description)}" data-chart="{figure.name}">{charts}</div>{note}</figure>'
    )


def _table(table: Table) -> str:
    """A table; columns of numbers stand on the right."""
    numeric = [all(map(_NUMBER.fullmatch, cells)) for cells in zip(*table.rows, strict=True)]
    kinds = [' class="number"' if are_numbers else "" for are_numbers in numeric]
    heads = "".join(f"<th{kind}>{in_html(name)}</th>" for kind, name in zip(kinds, table.columns, strict=False))
    rows = "".join(
        f"<tr>{''.join(f'<td{kind}>{in_html(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>"
        for row in table.rows
    )
    caption = f"<caption>{in_html(table.caption)}</caption>" if table.caption else ""
    head = f"<thead><tr>{heads}</tr></thead>" if heads else ""
    return f'<div class="scroll" tabindex="0"><table>{caption}{head}<tbody>{rows}</tbody></table></div>'


def _orders(orders: Orders) -> str:
    """Two lists side by side; in the second one, how far each document moves."""
    was = {name: place for place, name in enumerate(orders.before)}
    before = "".join(f"<li>{in_html(name)}</li>" for name in orders.before)
    after = "".join(
        f"<li>{in_html(name)} {_moved(was[name] - place if name in was else None)}</li>"
        for place, name in enumerate(orders.after)
    )
    now, new = map(in_html, orders.names)
    return f'<div class="orders"><div>{now}<ol>{before}</ol></div><div>{new}<ol>{after}</ol></div></div>'


def _moved(places: int | None) -> str:
    if places is None:
        return "<i>new</i>"
    return f"<i>{'↑' if places > 0 else '↓'}{abs(places)}</i>" if places else ""
