"""The options that every command takes."""

from posbias.cli.messages import LogFormat
from posbias.cli.options.help import show_all
from posbias.cli.options.option import option, options


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
