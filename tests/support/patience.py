"""How long a test waits, and what a process has worked: on a busy machine seconds go by in which nothing happens."""

import os
from pathlib import Path

PATIENCE = 600
"""Seconds that a test waits for what takes a few: only what hangs takes longer, on any machine."""


def worked(pid: int) -> float:
    """Seconds of processor time that a running process has used."""
    used = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")
