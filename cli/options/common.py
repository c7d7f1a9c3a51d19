"""The options that every command takes."""

from dataclasses import dataclass
from typing import Annotated

import typer

from posbias.cli.messages import LogFormat
from posbias.cli.options.help import HelpAll
from posbias.cli.options.option import option

_OUTPUT = "Output"


@dataclass(frozen=True)
class CommonOptions:
    """How a command is looked at, and what it says."""

    log_format: Annotated[
        LogFormat,
        option("--log-format", "Messages on stderr as text, or as lines of JSON for collectors of logs.", _OUTPUT),
    ] = "text"
    print_config: Annotated[
        bool,
        typer.Option(
            "--print-config", help="Print every option, its value and where that comes from.", rich_help_panel=_OUTPUT
        ),
    ] = False
    help_all: HelpAll = False
