"""Measurements in parts: on as many processes as there are cores, or on several machines, and put together afterwards.

python tests/benchmarks/learners.py mix --processes 16
python tests/benchmarks/learners.py mix --seeds 1 --first-seed 2 --save mix-2.parquet
python tests/benchmarks/learners.py mix --merge mix-*.parquet
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import polars as pl
from recovery_logs import PROCESSES, in_parallel

Task = TypeVar("Task")


@dataclass(frozen=True)
class Parts:
    """What is measured here, and where the rest is.

    Attributes:
        seeds: those to measure.
        processes: how many work at once, in one thread each.
        save: a file for what is measured.
        merge: files of what was measured before, in place of measuring.
    """

    seeds: range
    processes: int
    save: Path | None
    merge: tuple[Path, ...]

    @staticmethod
    def add_to(parser: argparse.ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--seeds", type=int, default=3, help="how many")
        parser.add_argument("--first-seed", type=int, default=0)
        parser.add_argument("--processes", type=int, default=PROCESSES)
        parser.add_argument("--save", type=Path, metavar="FILE", help="also write what is measured")
        parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", default=[], help="print what was saved")

    @classmethod
    def of(cls, asked: argparse.Namespace) -> "Parts":
        """What was asked for."""
        seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
        return cls(seeds, asked.processes, asked.save, tuple(asked.merge))

    def measure(self, function: Callable[[Task], pl.DataFrame], tasks: Sequence[Task], title: str) -> pl.DataFrame:
        """The rows of all tasks, or those that were saved."""
        if self.merge:
            return pl.concat(map(pl.read_parquet, self.merge))
        found = pl.concat(in_parallel(function, tasks, title, self.processes))
        if self.save is not None:
            found.write_parquet(self.save)
        return found
