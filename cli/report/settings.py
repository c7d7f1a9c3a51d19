"""Options as a file `posbias.toml`, with the reason for each beside it, or with where its value comes from."""

import json
import re
from collections.abc import Mapping, Sequence

from posbias.cli.options.settings import Setting
from posbias.cli.options.words import several
from posbias.core.wording import shown
from posbias.io.log.findings import Finding

_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_DELETE = "\x7f"


def settings_text(
    logs: Sequence[str], values: Mapping[str, object], findings: Sequence[Finding], advice: Sequence[str]
) -> str:
    """The file.

    Args:
        logs: as named by the user.
        values: what options are set to, by flag.
        findings: what was recognised, with the options that say it.
        advice: what would help.
    """
    named = " ".join(logs)
    lines = [
        *_comment(f"What posbias found of {named}. `posbias run LOGS -o DIR` in this directory reads logs like it."),
        *_comment("A flag on the command line goes before what stands here."),
    ]
    said: set[str] = set()
    for finding in findings:
        doubt = "" if finding.certain else " (a guess: see whether it is right)"
        flags = dict.fromkeys(word.partition("=")[0] for word in finding.options if word.startswith("--"))
        lines += ["", *_comment(f"{finding.said}{doubt}")]
        lines += [
            setting_line(flag.removeprefix("--"), values[flag]) for flag in flags if flag in values and flag not in said
        ]
        said.update(flags)
    others = {flag: value for flag, value in values.items() if flag not in said}
    lines += ["", *_comment("as it was said")] if others else []
    lines += [setting_line(flag.removeprefix("--"), value) for flag, value in others.items()]
    lines += ["", *_comment("What would help an estimate:")] if advice else []
    lines += [line for sentence in advice for line in _comment(sentence)]
    return "\n".join(lines) + "\n"


def _comment(sentence: str) -> list[str]:
    return [f"# {shown(part)}" for part in sentence.splitlines()]


def setting_line(name: str, value: object) -> str:
    """An option in TOML."""
    if isinstance(value, bool):
        return f"{name} = {str(value).lower()}"
    texts = [_value(str(single)) for single in several(value)]
    return f"{name} = {texts[0]}" if len(texts) == 1 else f"{name} = [{', '.join(texts)}]"


def _value(text: str) -> str:
    """A value in TOML: its basic strings are those of JSON, but for one letter."""
    return text if _WHOLE.fullmatch(text) else json.dumps(text, ensure_ascii=False).replace(_DELETE, "\\u007f")


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
