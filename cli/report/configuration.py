"""Every option of a command with its value and where that comes from, as a section of `posbias.toml`."""

from collections.abc import Sequence

from posbias.cli.options.settings import Setting
from posbias.cli.report.settings import setting_line
from posbias.core.wording import shown


def configuration_text(command: str, settings: Sequence[Setting]) -> str:
    """The section, which sets the same where it is put into a file; what is not set is named in comments."""
    lines = [_line(setting) for setting in settings]
    width = max(map(len, lines), default=0)
    said = [f"{line:{width}}  # {shown(setting.origin)}" for line, setting in zip(lines, settings, strict=True)]
    return "\n".join([f"[{command}]", *said]) + "\n"


def _line(setting: Setting) -> str:
    if setting.value is None:
        return f"# {setting.name}"
    line = shown(setting_line(setting.name, setting.value))
    return line if setting.in_files else f"# {line}"
