"""The options that every command takes."""

from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperOption

from posbias.cli.messages import LogFormat
from posbias.cli.options.option import SETTINGS, filled, option, options, settings_table

SHOWN_FIRST = frozenset(
    {
        *("--session", "--query", "--doc", "--position", "--click", "--timestamp"),
        *("--model", "--method", "--layout", "--format", "--features", "--propensities", "--learner"),
        *("--scores", "--models", "--judgments", "--date", "--into", "--decay", "--info"),
        *("--by", "--max-change", "--fail-if", "--pages", "--plot", "--chart", "--write-config"),
        *("--sessions", "--queries", "--positions", "--eta", "--labels"),
        *("--output", "--force", "--quiet", "--json", "--config", "--help", "--help-all"),
    }
)
"""Options that `--help` shows wherever a command takes them, besides those that it requires; the rest are for
`--help-all`."""

_WHOLE = "posbias.whole_help"


def show_all(invocation: typer.Context, wanted: bool) -> None:  # noqa: FBT001 - as Typer calls it
    """Print the help with all options, and end."""
    if wanted and not invocation.resilient_parsing:
        invocation.meta[_WHOLE] = True
        typer.echo(invocation.get_help())
        raise typer.Exit


def write_parameters(invocation: Any, parameters: Iterable[Any], formatter: Any) -> None:  # noqa: ANN401 - of Typer
    """Write arguments and options: in sections where all are shown, else the first ones."""
    whole = bool(invocation.meta.get(_WHOLE))
    sections: dict[str, list[tuple[str, str]]] = {}
    for parameter in parameters:
        name, text = parameter.get_help_record(invocation)
        if not isinstance(parameter, TyperOption):
            name, section = parameter.metavar, "Arguments"
        elif whole:
            section = filled(parameter.rich_help_panel or "Options")
        elif parameter.required or not SHOWN_FIRST.isdisjoint(parameter.opts):
            section = "Options"
        else:
            continue
        sections.setdefault(section, []).append((name, filled(text)))
        if whole and parameter.name in SETTINGS:
            sections[f"{parameter.opts[0]} NAME=VALUE"] = [
                (name, f"{about}  [{values}]") for name, values, about in settings_table(parameter.name)
            ]
    for section, rows in sections.items():
        with formatter.section(section):
            formatter.write_dl(rows)


@options("Output")
class CommonOptions:
    """How a command is looked at, and what it says."""

    log_format: LogFormat = option(
        "Messages on stderr as text, or as lines of JSON for collectors of logs.", default="text"
    )
    print_config: bool = option("Print every option, its value and where that comes from.", environment=False)
    help_all: bool = option(
        "Show all options and exit.",
        environment=False,
        section=None,
        callback=show_all,
        is_eager=True,
        expose_value=False,
    )
