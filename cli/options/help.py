"""What help shows: the options that a first user needs, and on request all of them, in sections."""

from collections.abc import Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperOption

from posbias.cli.options.names import filled

SHOWN_FIRST = frozenset(
    {
        *("--session", "--query", "--doc", "--position", "--click", "--timestamp"),
        *("--model", "--method", "--layout", "--format", "--features", "--propensities", "--learner"),
        *("--scores", "--models", "--judgments", "--date", "--into", "--decay", "--info"),
        *("--by", "--max-change", "--fail-if", "--pages", "--plot", "--chart"),
        *("--sessions", "--queries", "--positions", "--eta", "--labels"),
        *("--output", "--force", "--quiet", "--json", "--config", "--help", "--help-all"),
    }
)
"""Options that `--help` shows wherever a command takes them, besides those that it requires; the rest are for
`--help-all`."""

_WHOLE = "posbias.whole_help"


def _show_all(invocation: typer.Context, wanted: bool) -> None:  # noqa: FBT001 - as Typer calls it
    if wanted and not invocation.resilient_parsing:
        invocation.meta[_WHOLE] = True
        typer.echo(invocation.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all", help="Show all options and exit.", callback=_show_all, is_eager=True, expose_value=False
    ),
]


def write_parameters(invocation: Any, parameters: Iterable[Any], formatter: Any) -> None:  # noqa: ANN401 - of Typer
    """Write arguments and options: in sections where all are wanted, else the first ones."""
    whole = bool(invocation.meta.get(_WHOLE))
    sections: dict[str, list[tuple[str, str]]] = {}
    for parameter in parameters:
        if not isinstance(parameter, TyperOption):
            section = "Arguments"
        elif whole:
            section = filled(parameter.rich_help_panel or "Options")
        elif parameter.required or not SHOWN_FIRST.isdisjoint(parameter.opts):
            section = "Options"
        else:
            continue
        name, text = _row(invocation, parameter)
        sections.setdefault(section, []).append((name, filled(text)))
    for section, rows in sections.items():
        with formatter.section(section):
            formatter.write_dl(rows)


def _row(invocation: Any, parameter: Any) -> tuple[str, str]:  # noqa: ANN401 - of Typer
    """How a parameter is written, and what is said of it."""
    name, text = parameter.get_help_record(invocation)
    return (name if isinstance(parameter, TyperOption) else parameter.metavar), text
