"""How an option is declared: its flag, its environment variable, its help."""

from typing import Any

import typer


def option(flag: str, help_text: str, panel: str | None = None, *, short: str | None = None, **settings: Any) -> Any:  # noqa: ANN401
    """An option with its environment variable: --position-base is also POSBIAS_POSITION_BASE."""
    environment = "POSBIAS_" + flag.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    names = (flag,) if short is None else (flag, short)
    return typer.Option(
        *names, help=help_text, envvar=environment, show_envvar=False, rich_help_panel=panel, **settings
    )
