"""What cannot be read, or not with these options, is refused in words that say why, and nothing is written.

`refused/commands.txt` has a line for each: the command, whose files lie beside it, and a part of what is said.
"""

import shlex
from pathlib import Path

import pytest
from workshop import RunPosbias, Workshop, assert_refused, attempt

FILES = Path(__file__).with_name("refused")
CASES = [line.split(" -> ") for line in (FILES / "commands.txt").read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow_after(40)
@pytest.mark.parametrize(("command", "said"), CASES)
def test_what_cannot_be_read_is_refused(run_in_process: RunPosbias, tmp_path: Path, command: str, said: str) -> None:
    for name in ("results", "scratch"):
        (tmp_path / name).mkdir()
    workshop = Workshop(tmp_path / "input", tmp_path / "results" / "out", run_in_process)
    words = [FILES / word if (FILES / word).is_file() else word for word in shlex.split(command)]
    done = attempt(workshop, *words)
    assert_refused(done, workshop)
    assert said in " ".join(done.stderr.split())
