"""What a shell must know to ask posbias for completions, printed or written where the shell looks for it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from posbias.cli.messages import tell
from posbias.core.errors import OutputError, OutputExistsError

Shell = Literal["bash", "zsh", "fish"]

SCRIPTS: Mapping[Shell, str] = {
    "bash": """\
# Completion of posbias for bash.
_posbias_completion() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(
        _POSBIAS_COMPLETION=bash posbias "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null
    )
}
complete -o default -F _posbias_completion posbias
""",
    "zsh": """\
#compdef posbias
# Completion of posbias for zsh.
_posbias() {
    local -a found
    found=("${(@f)$(_POSBIAS_COMPLETION=zsh posbias "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -- "${found[@]}"; else _files; fi
}
if [ "$funcstack[1]" = "_posbias" ]; then _posbias "$@"; else compdef _posbias posbias; fi
""",
    "fish": """\
# Completion of posbias for fish.
complete -c posbias -a '(env _POSBIAS_COMPLETION=fish posbias (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
""",
}

_OURS = "# Completion of posbias for "
_LONGEST_START = 200


def install(shell: Shell) -> None:
    """Write the script where the shell looks for it, and say what is still to be done.

    Raises:
        OutputExistsError: a file of somebody else is there.
        OutputError: it cannot be written.
    """
    from posbias.io.results.atomic import write_settings  # noqa: PLC0415 - only where something is written

    target, advice = _place(shell)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        is_there = os.path.lexists(target)
        if is_there and not (target.is_file() and _is_ours(target)):
            raise OutputExistsError(f"{target}: already exists, and posbias did not write it. Move it away first.")
    except OSError as error:
        raise OutputError(f"{target}: cannot be written: {error.strerror}.") from error
    write_settings(target, SCRIPTS[shell], force=is_there)
    tell(f"written: {target}. {advice}")


def _is_ours(target: Path) -> bool:
    with target.open(encoding="utf-8", errors="replace") as file:
        return _OURS in file.read(_LONGEST_START)


def _place(shell: Shell) -> tuple[Path, str]:
    """Where a shell looks for completions of a user, and what it takes for it to look there."""
    home = Path.home()
    if shell == "bash":
        data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
        target = data / "bash-completion" / "completions" / "posbias"
        return target, f"New shells load it where bash-completion is installed; elsewhere, add to ~/.bashrc: . {target}"
    if shell == "zsh":
        target = home / ".zfunc" / "_posbias"
        return target, "In ~/.zshrc, if it is not there yet: fpath+=(~/.zfunc); autoload -Uz compinit; compinit"
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    return config / "fish" / "completions" / "posbias.fish", "New shells load it."
