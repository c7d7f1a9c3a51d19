"""What is printed agrees in number with what it counts."""

from pathlib import Path

import pytest
from workshop import RunPosbias as Run

from posbias.core.errors import counted


@pytest.mark.parametrize(
    ("number", "plural", "said"),
    [
        (1, "clicks", "1 click"),
        (0, "clicks", "0 clicks"),
        (1.2, "clicks", "1 click"),
        (1, "queries", "1 query"),
        (1204, "(query, doc) pairs", "1,204 (query, doc) pairs"),
    ],
)
def test_one_thing_is_counted_in_the_singular(number: float, plural: str, said: str) -> None:
    assert counted(number, plural) == said


def test_a_log_of_one_click_has_1_click(run_in_process: Run, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("session,query,doc,position,click\ns,q,d,1,1\n")
    done = run_in_process("collect", log, "-o", "out")

    assert "statistics: 1 row for 1 impression and 1 click\n" in done.stderr
