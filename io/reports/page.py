"""One HTML file that holds all it shows, runs no script and fetches nothing.

Whatever comes from data passes `html_text`. The page's own policy (Content-Security-Policy) forbids all but its
style sheet.
"""

import re
from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from typing import Literal, NamedTuple, NewType, TypeAlias

from posbias.core.errors import html_text
from posbias.io.reports.charts import NARROW, WIDE, Figure, inline_svg
from posbias.io.results.conclusions import Reason, Verdict

_ONE = r"[-+]?[\d,]+(\.\d+)?(e[-+]?\d+)?%?"
_NUMBER = re.compile(rf"{_ONE}( (-|to) {_ONE})?|below {_ONE}|-")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


Html = NewType("Html", str)
"""HTML, in which all that comes from data is escaped."""

Block: TypeAlias = Html | Figure


class Section(NamedTuple):
    """A part of the page under a heading."""

    title: str  # in few words, also for the navigation
    blocks: Sequence[Block]


def html_of(
    kind: str, title: str, sections: Sequence[Section], parts: Sequence[tuple[str, Sequence[Section]]] = ()
) -> str:
    """A page as a file.

    Args:
        kind: of result, in few words.
        title: of the page.
        sections: its contents.
        parts: about several results, after these.
    """
    links = [*(section.title for section in sections), *(name for name, _ in parts)]
    entries = "".join(f'<li><a href="#s{number}">{html_text(name)}</a></li>' for number, name in enumerate(links))
    contents = "".join(_section(section, f"s{number}", 2) for number, section in enumerate(sections))
    contents += "".join(
        f'<article id="s{number}"><h2>{html_text(name)}</h2>'
        f"{''.join(_section(section, f's{number}-{at}', 3) for at, section in enumerate(of_part))}</article>\n"
        for number, (name, of_part) in enumerate(parts, start=len(sections))
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
    """A sentence, or several."""
    return Html(f"<p>{html_text(text)}</p>")


def banner(verdict: Verdict, conclusion: str) -> Html:
    """The verdict on a result, and its conclusion."""
    words = f"<strong>{html_text(verdict)}</strong><span>{html_text(conclusion)}</span>"
    return Html(f'<p class="banner {verdict.replace(" ", "-")}">{words}</p>')


def code(text: str) -> Html:
    """A command to type, or a long text to look something up in."""
    return Html(f"<pre><code>{html_text(text, keep=chr(10))}</code></pre>")


def key_figures(figures: Sequence[tuple[str, ...]]) -> Html:
    """A list of numbers that a reader should take away, each with what it is, and perhaps what it rests on."""
    entries = (
        f"<li><strong>{html_text(value)}</strong><span>{html_text(label)}</span>"
        f"{''.join(f'<small>{html_text(text)}</small>' for text in note if text)}</li>"
        for value, label, *note in figures
    )
    return Html(f'<ul class="figures">{"".join(entries)}</ul>')


_MARKS = {"good": ("+", "for"), "note": ("i", "note"), "caution": ("!", "with care"), "stop": ("-", "against")}


def reasons_of(reasons: Sequence[Reason]) -> Html:
    """A list of reasons, each behind its mark."""
    entries: list[str] = []
    for reason in reasons:
        mark, meaning = _MARKS[reason.severity]
        more = f"<details><summary>details</summary>{html_text(reason.details)}</details>" if reason.details else ""
        words = f"<div>{html_text(reason.sentence)}{more}</div>"
        entries.append(f'<li class="{reason.severity}"><b title="{meaning}">{mark}</b>{words}</li>')
    return Html(f'<ul class="reasons">{"".join(entries)}</ul>')


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> Html:
    """A table of texts; columns of numbers stand on the right. Without headings, the first column names the rows."""
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
    """Blocks behind a line that unfolds them; `paper` says whether they are printed, folded to the title or not."""
    summary, opened = f"<summary>{html_text(title)}</summary>", " open" if is_open else ""
    return Html(f'<details class="paper-{paper}"{opened}>{summary}\n{chr(10).join(blocks)}</details>')


def orders(names: tuple[str, str], before: Sequence[str], after: Sequence[str]) -> Html:
    """What a query shows now, and what it would show, side by side; in the second, how far each document moves."""
    entries: list[str] = []
    was = {name: place for place, name in enumerate(before)}
    for place, name in enumerate(after):
        moved = was[name] - place if name in was else None
        sign = "new" if moved is None else f"{'↑' if moved > 0 else '↓'}{abs(moved)}"
        entries.append(f"<li>{html_text(name)} {'' if moved == 0 else f'<i>{sign}</i>'}</li>")
    shown_now = "".join(f"<li>{html_text(name)}</li>" for name in before)
    now, new = map(html_text, names)
    lists = f"<div>{now}<ol>{shown_now}</ol></div><div>{new}<ol>{''.join(entries)}</ol></div>"
    return Html(f'<div class="orders">{lists}</div>')
