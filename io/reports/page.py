"""Self-contained HTML pages, without scripts and external resources.

All text from data passes `html_text`. The page's Content-Security-Policy forbids everything except its style sheet.
"""

import re
from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from typing import Literal, NamedTuple, NewType, TypeAlias

from posbias.core.errors import html_text
from posbias.io.reports.charts import NARROW, WIDE, Figure, inline_svg
from posbias.io.results.conclusions import Reason, Verdict

_DIGITS = r"[-+]?[\d,]+(\.\d+)?(e[-+]?\d+)?%?"
_NUMBER = re.compile(rf"{_DIGITS}( (-|to) {_DIGITS})?|below {_DIGITS}|-")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


Html = NewType("Html", str)
"""HTML with all text from data escaped."""

Block: TypeAlias = Html | Figure


class Section(NamedTuple):
    """A section of the page under a heading."""

    title: str  # short, also for the navigation
    blocks: Sequence[Block]


def page_html(
    kind: str, title: str, sections: Sequence[Section], parts: Sequence[tuple[str, Sequence[Section]]] = ()
) -> str:
    """Return a page as the text of a file.

    Args:
        kind: of the result or page, in few words.
        title: of the page.
        sections: its first sections.
        parts: titled groups of sections, one for each of several results.
    """
    links = [*(section.title for section in sections), *(name for name, _ in parts)]
    entries = "".join(f'<li><a href="#s{number}">{html_text(name)}</a></li>' for number, name in enumerate(links))
    contents = "".join(_section(section, f"s{number}", 2) for number, section in enumerate(sections))
    contents += "".join(
        f'<article id="s{number}"><h2>{html_text(name)}</h2>'
        f"{''.join(_section(section, f's{number}-{at}', 3) for at, section in enumerate(part))}</article>\n"
        for number, (name, part) in enumerate(parts, start=len(sections))
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="generator" content="posbias {html_text(version("posbias"))}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{html_text(title)}: {html_text(kind)}</title>
<style>
{files("posbias.io.reports").joinpath("page.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<header><p class="kind">{html_text(kind)}</p><h1>{html_text(title)}</h1></header>
<nav aria-label="Sections"><ul>{entries}</ul></nav>
<main>
{contents}</main>
<footer>Made by posbias {html_text(version("posbias"))}. This file needs no network, and connects to nothing.</footer>
</body>
</html>
"""


def _section(section: Section, anchor: str, level: int) -> str:
    blocks = "\n".join(
        _figure(block, caption=block.title != section.title) if isinstance(block, Figure) else block
        for block in section.blocks
    )
    return f'<section id="{anchor}">\n<h{level}>{html_text(section.title)}</h{level}>\n{blocks}\n</section>\n'


def _figure(figure: Figure, *, caption: bool) -> str:
    charts = "".join(
        f'<div class="{name}">{inline_svg(figure, width)}</div>' for name, width in (("wide", WIDE), ("narrow", NARROW))
    )
    note = f"<small>{html_text(figure.note)}</small>" if figure.note else ""
    title = f"<figcaption>{html_text(figure.title)}</figcaption>" if caption else ""
    return (
        f'<figure>{title}<div role="img" '
        f'aria-label="{html_text(figure.description)}" data-chart="{figure.name}">{charts}</div>{note}</figure>'
    )


# --- blocks ---


def paragraph(text: str) -> Html:
    """Return a paragraph."""
    return Html(f"<p>{html_text(text)}</p>")


def banner(verdict: Verdict, conclusion: str) -> Html:
    """Return the verdict with the conclusion, coloured by the verdict."""
    words = f"<strong>{html_text(verdict)}</strong><span>{html_text(conclusion)}</span>"
    return Html(f'<p class="banner {verdict.replace(" ", "-")}">{words}</p>')


def code(text: str) -> Html:
    """Return preformatted text, with its line breaks."""
    return Html(f"<pre><code>{html_text(text, keep=chr(10))}</code></pre>")


def key_figures(figures: Sequence[tuple[str, ...]]) -> Html:
    """Return a list of key figures, each as (value, label, notes...)."""
    entries = (
        f"<li><strong>{html_text(value)}</strong><span>{html_text(label)}</span>"
        f"{''.join(f'<small>{html_text(text)}</small>' for text in note if text)}</li>"
        for value, label, *note in figures
    )
    return Html(f'<ul class="figures">{"".join(entries)}</ul>')


_MARKS = {"good": ("+", "for"), "note": ("i", "note"), "caution": ("!", "with care"), "stop": ("-", "against")}


def reason_list(reasons: Sequence[Reason]) -> Html:
    """Return a list of reasons with marks of their severities."""
    entries: list[str] = []
    for reason in reasons:
        mark, meaning = _MARKS[reason.severity]
        more = f"<details><summary>details</summary>{html_text(reason.details)}</details>" if reason.details else ""
        words = f"<div>{html_text(reason.sentence)}{more}</div>"
        entries.append(f'<li class="{reason.severity}"><b title="{meaning}">{mark}</b>{words}</li>')
    return Html(f'<ul class="reasons">{"".join(entries)}</ul>')


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> Html:
    """Return a table with columns of numbers aligned right; `columns` are its headings, or empty."""
    numeric = [all(map(_NUMBER.fullmatch, cells)) for cells in zip(*rows, strict=True)]
    kinds = [' class="number"' if are_numbers else "" for are_numbers in numeric]
    heads = "".join(f"<th{kind}>{html_text(name)}</th>" for kind, name in zip(kinds, columns, strict=False))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{html_text(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>"
        for row in rows
    )
    head = f"<thead><tr>{heads}</tr></thead>" if heads else ""
    about = f"<caption>{html_text(caption)}</caption>" if caption else ""
    return Html(f'<div class="scroll" tabindex="0"><table>{about}{head}<tbody>{body}</tbody></table></div>')


def fold(
    title: str, blocks: Sequence[Html], *, is_open: bool = False, paper: Literal["no", "line", "open"] = "no"
) -> Html:
    """Return blocks that unfold under a title.

    Args:
        title: always shown on screen.
        blocks: the content.
        is_open: whether to unfold them at first.
        paper: in print: nothing, the title alone (line), or title and content (open).
    """
    summary, opened = f"<summary>{html_text(title)}</summary>", " open" if is_open else ""
    return Html(f'<details class="paper-{paper}"{opened}>{summary}\n{chr(10).join(blocks)}</details>')


def orders(names: tuple[str, str], before: Sequence[str], after: Sequence[str]) -> Html:
    """Return two orders of documents side by side, with the change of rank of each document in the second order."""
    entries: list[str] = []
    old_ranks = {name: rank for rank, name in enumerate(before)}
    for rank, name in enumerate(after):
        change = old_ranks[name] - rank if name in old_ranks else None
        sign = "new" if change is None else f"{'↑' if change > 0 else '↓'}{abs(change)}"
        entries.append(f"<li>{html_text(name)} {'' if change == 0 else f'<i>{sign}</i>'}</li>")
    old_entries = "".join(f"<li>{html_text(name)}</li>" for name in before)
    old, new = map(html_text, names)
    lists = f"<div>{old}<ol>{old_entries}</ol></div><div>{new}<ol>{''.join(entries)}</ol></div>"
    return Html(f'<div class="orders">{lists}</div>')
