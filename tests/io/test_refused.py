"""What cannot be read, or not with these options, is refused in words that say why, and nothing is written.

`refused/commands.txt` has a line for each: the command, whose files lie beside it, and a part of what is said.
"""

import shlex
from pathlib import Path

import pytest
from command_results import Refused

FILES = Path(__file__).with_name("refused")
CASES = [line.split(" -> ") for line in (FILES / "commands.txt").read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow_after(18)
@pytest.mark.parametrize(("command", "said"), CASES)
def test_what_cannot_be_read_is_refused(refused: Refused, command: str, said: str) -> None:
    words = [FILES / word if (FILES / word).is_file() else word for word in shlex.split(command)]
    assert said in " ".join(refused(*words).split())
