"""A conclusion as it is printed: its sentence and the next command, tables, what speaks for and against it, facts.

The one place that prints it: while a command runs, and again by `posbias show`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec import structs
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table

from posbias.cli.console import line, say
from posbias.cli.messages import Level, is_plain, tell
from posbias.cli.report.table import markdown_table, markdown_text, renderable_table
from posbias.io.results.conclusions import CAUTION, STOP, Conclusion, Reason, Severity, condition_of
from posbias.io.results.result import Printed, PrintedTable, without_details

_MARKS: dict[Severity, tuple[str, str, str]] = {
    "stop": ("✘", "x", "red"),
    "caution": ("!", "!", "yellow"),
    "good": ("✔", "+", "green"),
    "note": ("-", "-", ""),
}
"""The mark of a severity, the same in ASCII, and its colour; in the order in which reasons are printed."""

_VERDICTS: dict[str, tuple[Severity, str]] = {
    "good": ("good", "Good"),
    "with care": ("caution", "With care"),
    "do not use": ("stop", "Do not use"),
}
_LEVELS: dict[Severity, Level] = {"good": "info", "note": "info", "caution": "warning", "stop": "warning"}

Item = Printed | Conclusion | Reason


def in_order(conclusion: Conclusion, printed: Sequence[Printed], facts: Sequence[str], *, details: bool) -> list[Item]:
    """All that is printed of a result, in its order."""
    tables = printed if details else [without_details(one) for one in printed]
    reasons = sorted(conclusion.reasons, key=lambda reason: list(_MARKS).index(reason.severity))
    return [conclusion, *tables, *reasons, *facts]


def renderable(item: Item, *, details: bool = False) -> RenderableType:
    """An item as Rich prints it."""
    if isinstance(item, str):
        return line(item)
    if isinstance(item, PrintedTable):
        return renderable_table(item)
    return _Marked(item, details=details)


def markdown(items: Iterable[Item], *, details: bool) -> str:
    """Items as paragraphs of Markdown, tables with all columns."""
    blocks = [
        markdown_table(item)
        if isinstance(item, PrintedTable)
        else "\n\n".join(map(markdown_text, _lines(item, details)))
        for item in items
    ]
    return "\n\n".join(blocks) + "\n"


def print_items(items: Iterable[Item], console: Console, *, details: bool) -> None:
    """Print items on stderr; where messages alone are printed, tables are left to the manifest."""
    for item in items:
        if not is_plain():
            say(console, renderable(item, details=details))
        elif not isinstance(item, PrintedTable):
            level = _LEVELS[item.severity] if isinstance(item, Reason) else "info"
            for text in _lines(item, details):
                tell(text, level=level)


def print_warnings(conclusion: Conclusion, console: Console) -> None:
    """Print the conclusion and what speaks against the result on stderr, where something does."""
    against = [reason for reason in conclusion.reasons if reason.severity in {CAUTION, STOP}]
    if against:
        print_items([structs.replace(conclusion, next=None), *against], console, details=False)


def _mark_of(item: Conclusion | Reason) -> Severity:
    return item.severity if isinstance(item, Reason) else _VERDICTS[item.verdict][0]


def _lines(item: str | Conclusion | Reason, details: bool) -> list[str]:  # noqa: FBT001 - of one who decided
    """The lines of an item, without its mark."""
    if isinstance(item, str):
        return [item]
    if isinstance(item, Conclusion):
        label = f"{_VERDICTS[item.verdict][1]}{':' if condition_of(item.conclusion) is None else ','}"
        return [f"{label} {item.conclusion}", *([] if item.next is None else [f"next: {item.next}"])]
    sentences = item.sentence.split("\n") if item.code == "log-not-valid" else [item.sentence]
    return [*sentences, *([item.details] if details and item.details else [])]


@dataclass(frozen=True)
class _Marked:
    """A conclusion or a reason behind its mark; on a terminal its lines are broken beside the mark."""

    item: Conclusion | Reason
    details: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it within a width."""
        sign, ascii_sign, colour = _MARKS[_mark_of(self.item)]
        mark, in_bold = ascii_sign if options.ascii_only else sign, isinstance(self.item, Conclusion)
        first, *others = _lines(self.item, self.details)
        yield _beside(mark, first, colour, "bold" if in_bold else "", console)
        for text in others:
            yield line(text, whole=True) if in_bold else _beside(" ", text, "", "dim", console)


def _beside(mark: str, text: str, colour: str, style: str, console: Console) -> RenderableType:
    """A mark and a text; in a file on one line, for those who search it."""
    if not console.is_terminal:
        return line(f"{mark} {text}", whole=True)
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(line(mark, colour), line(text, style))
    return grid
