"""How long a test waits, and what a process has worked: on a busy machine seconds go by in which nothing happens."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

PATIENCE = 600
"""Seconds that a test waits for what takes a few: only what hangs takes longer, on any machine."""


def ended(command: Sequence[str | Path], *, check: bool = False, **options: Any) -> CompletedProcess[str]:  # noqa: ANN401 - of subprocess
    """Run a program to its end, however it ends, and return what it printed."""
    if not {"input", "stdin"} & {*options}:
        options["stdin"] = subprocess.DEVNULL
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=check, **options)


def worked(pid: int) -> float:
    """Seconds of processor time that a running process has used."""
    used = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")
