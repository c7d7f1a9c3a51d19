"""Guards against logs of what was clicked: false alarms on logs that are whole, and how many of the others are found.

Part of `recovery.py guards`. The constants of the guards were chosen on the seeds from 1000 on; what is printed is from
the seeds 0 to 199. Logs differ in everything that moves click rates: 30 to 3,000 pages, 2 to 20 positions, PBM and UBM,
flat to steep curves, documents that are hardly ever and nearly always clicked, pages of one length and of many.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.log.guards import (
    ENOUGH_ROWS,
    FEWEST_PAGES,
    FEWEST_ROWS,
    LogTotals,
    PageEnds,
    count_page_ends,
    sum_page_ends,
)
from posbias.core.log.pages import pages
from posbias.core.simulation.simulate import SimulationOptions, simulate

ATTRACTIVENESS = ((1.0, 2.0), (1.0, 9.0), (2.0, 2.0), (3.0, 1.0), (9.0, 1.0))
VERY_ATTRACTIVE = (20.0, 1.0)
_ROOT = Path(__file__).resolve().parents[2]
_REAL = (
    _ROOT.parent / "shared" / "data" / "yandex_web_search.parquet",
    _ROOT.parent / "shared" / "data" / "open_bandit_zozo.parquet",
    _ROOT / "sample_logs" / "web_search.parquet",
    _ROOT / "sample_logs" / "open_bandit.parquet",
)
_NAMES = {"campaign": "query", "item_id": "doc"}

_CLICKED = pl.col("click") == 1
_PLACES = pl.col("position").filter(_CLICKED).over("session", mapping_strategy="join")
FAULTS = {
    "whole": pl.lit(value=True),
    "clicks only": _CLICKED,
    "clicks and 1 in 100 others": _CLICKED | ((~_CLICKED).cum_sum() <= 0.01 * _CLICKED.sum()),
    "to the last click, no page without one": pl.col("position") <= _PLACES.list.max(),
    "to the last click, others whole": pl.col("position") <= _PLACES.list.max().fill_null(1000),
}
"""Which rows are logged."""


@dataclass(frozen=True)
class Found:
    """What the guards say of one log.

    Attributes:
        rows: its rows.
        pages: its pages of two rows or more with a click.
        only_clicked: whether it is taken for a log of clicks only.
        cut_off: whether its pages are taken to end at their last click.
    """

    rows: int
    pages: int
    only_clicked: bool
    cut_off: bool

    @property
    def stopped(self) -> bool:
        """Whether it is refused."""
        return self.only_clicked or self.cut_off


def guards(console: Console, replications: int) -> None:
    """Print how many logs are refused: simulated ones, whole and with each fault, and the real ones."""
    table = Table("logs", "refused", "of", "of enough rows or pages", box=SIMPLE_HEAD, title="Logs that are refused")
    for fault in FAULTS:
        found = [_look(_drawn(seed), fault) for seed in range(replications)]
        table.add_row(fault, *_counts(found, fault))
    absurd = [_look(_drawn(seed, VERY_ATTRACTIVE), "whole") for seed in range(replications)]
    table.add_row("whole, mean attractiveness .95", *_counts(absurd, "whole"))
    console.print(table)
    real = Table("real log", *FAULTS, box=SIMPLE_HEAD)
    for path in filter(Path.exists, _REAL):
        log = pl.read_parquet(path)
        log = log.rename({name: role for name, role in _NAMES.items() if name in log.columns})
        faults = [fault for fault in FAULTS if "session" in log.columns or "last" not in fault]
        said = ["refused" if _look(log, fault).stopped else "read" for fault in faults]
        real.add_row(path.name, *said)
    console.print(real)


def _counts(found: list[Found], fault: str) -> list[str]:
    enough = [one for one in found if one.rows >= (ENOUGH_ROWS if "others" in fault else FEWEST_ROWS)]
    if "last" in fault:
        enough = [one for one in found if one.pages >= FEWEST_PAGES]
    return [
        str(sum(one.stopped for one in found)),
        str(len(found)),
        f"{sum(one.stopped for one in enough)} of {len(enough)}",
    ]


def _drawn(seed: int, attractiveness: tuple[float, float] | None = None) -> pl.DataFrame:
    """A log of a design that the seed chooses."""
    rng = np.random.default_rng(seed)
    n_positions = int(rng.choice([2, 3, 5, 10, 20]))
    options = SimulationOptions(
        model=("pbm", "pbm", "ubm")[rng.integers(3)],
        n_sessions=int(rng.choice([30, 100, 300, 1000, 3000])),
        n_queries=int(rng.choice([2, 10, 50])),
        docs_per_query=n_positions + int(rng.integers(10)),
        n_positions=n_positions,
        eta=float(rng.choice([0.0, 0.3, 1.0, 2.0])),
        attractiveness_shape=attractiveness or ATTRACTIVENESS[rng.integers(len(ATTRACTIVENESS))],
        attractiveness_scale=float(rng.choice([0.02, 0.1, 0.5, 1.0, 1.0])),
        depth=(None, 0.9, 0.6)[rng.integers(3)],
        ranker_strength=float(rng.choice([0.0, 1.0, 3.0])),
        seed=seed,
    )
    return simulate(options).log


def _look(log: pl.DataFrame, fault: str) -> Found:
    logged = log.filter(FAULTS[fault])
    ends = PageEnds()
    if "session" in logged.columns:
        ends = sum_page_ends([count_page_ends(pages(logged.lazy())).collect()])
    totals = LogTotals(logged.height, int(logged["click"].sum()), ends)
    return Found(logged.height, ends.pages, totals.only_clicked, ends.cut_off)
