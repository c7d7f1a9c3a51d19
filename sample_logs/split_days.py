"""Split a log into one file per day, as an export that runs every night would leave them.

    python sample_logs/split_days.py web_search.parquet daily

writes daily/2026-01-05.parquet, daily/2026-01-06.parquet and so on, in the order of the days.
"""

import sys
from pathlib import Path

import polars as pl


def main() -> None:
    """Read the log and the directory from the command line and write the days."""
    log, directory = Path(sys.argv[1]), Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    for day in pl.read_parquet(log).partition_by("date", maintain_order=True):
        day.write_parquet(directory / f"{day.item(0, 'date')}.parquet")


if __name__ == "__main__":
    main()
