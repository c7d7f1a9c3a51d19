"""Days that do not look like the others: false alarms on stores of ordinary days, and how many odd days are found.

Part of `recovery.py days`. The constants were chosen on the seeds from 1000 on; what is printed is from the seeds 0 to
199. Stores differ in all that moves click rates from day to day: 3 to 42 days, 100 to 3,000 pages a day, 2 to 200
queries, days of the week with up to a quarter more or fewer clicks, further differences between days, and between the
days of a query, days with a tenth of the pages, growth by a factor of ten, rankers that learn, pages of all lengths.
Each day is compared with those before it, as the daily job does, and with all others; then the last day has a fault.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.counts.odd_days import DayLook, add_by_day, count_by_day, look_at_days
from posbias.core.log.pages import count_spans, shifted_pages
from posbias.core.simulation.simulate import SimulationOptions, simulate

GATE = 0.4
SHIFTED = {"none": 0, "1 in 20": 20, "1 in 3": 3, "1 in 2": 2}
MANY_CLICKS, FEW_DAYS = 300, 6
_ROOT = Path(__file__).resolve().parents[2]
_REAL = {
    _ROOT.parent / "shared" / "data" / "yandex_web_search.parquet": None,
    _ROOT.parent / "shared" / "data" / "open_bandit_zozo.parquet": "timestamp",
    _ROOT / "sample_logs" / "open_bandit.parquet": "timestamp",
    _ROOT / "sample_logs" / "web_search.parquet": "date",
}
_NAMES = {"campaign": "query", "item_id": "doc"}
_POSITION, _CLICK = pl.col("position"), pl.col("click")


def _scaled(factor: float) -> Callable[[pl.DataFrame, np.random.Generator], pl.DataFrame]:
    """Fewer clicks."""
    return lambda day, rng: day.with_columns(click=_CLICK * pl.Series(rng.random(day.height) < factor))


def _at_first(day: pl.DataFrame, rng: np.random.Generator) -> pl.DataFrame:
    """Half of the clicks at the first position."""
    kept = pl.Series(rng.random(day.height) < 0.5)
    return day.with_columns(click=_CLICK * (kept | (_POSITION != 1)))


def _more(day: pl.DataFrame, rng: np.random.Generator) -> pl.DataFrame:
    """Further clicks, as many as there are."""
    rate = float(day["click"].mean() or 0)  # type: ignore[arg-type]
    return day.with_columns(click=(_CLICK + pl.Series((rng.random(day.height) < rate).astype(np.int8))).clip(0, 1))


def _last(day: pl.DataFrame, _: np.random.Generator) -> pl.DataFrame:
    """A further position below the last one."""
    last = day.filter(day["position"].max() == _POSITION)
    return pl.concat([day, last.with_columns(_POSITION + 1, click=pl.lit(0, pl.Int8))])


FAULTS: dict[str, Callable[[pl.DataFrame, np.random.Generator], pl.DataFrame]] = {
    "none": lambda day, _: day,
    "base 1 higher": lambda day, _: day.with_columns(_POSITION + 1),
    "base 1 higher, cut at the last position": lambda day, _: day.with_columns(_POSITION + 1).filter(
        day["position"].max() >= _POSITION
    ),
    "positions upside down": lambda day, _: day.with_columns(position=_POSITION.max() + 1 - _POSITION),
    "a new last position": _last,
    "the last position gone": lambda day, _: day.filter(day["position"].max() > _POSITION),
    "no clicks": lambda day, _: day.with_columns(click=pl.lit(0, pl.Int8)),
    "a third of the clicks": _scaled(1 / 3),
    "half of the clicks": _scaled(0.5),
    "twice the clicks": _more,
    "half of the clicks at position 1": _at_first,
}


@dataclass(frozen=True)
class Store:
    """Days of simulated pages.

    Attributes:
        log: with a column `day`, a number from 1.
        n_days: how many.
    """

    log: pl.DataFrame
    n_days: int

    @property
    def names(self) -> list[str]:
        """The days, as they are called."""
        return [_name(day) for day in range(1, self.n_days + 1)]


def _name(day: int) -> str:
    return f"{day:03d}"


def days(console: Console, replications: int, first: int = 0) -> None:
    """Print how many ordinary days are warned of or kept out, and how many days with a fault."""
    looks: dict[str, list[DayLook]] = {fault: [] for fault in FAULTS}
    daily: list[list[DayLook]] = []
    together: list[list[DayLook]] = []
    for seed in range(first, first + replications):
        store = drawn(seed)
        counts = counted(store.log)
        daily.append([_against(counts, store.names[: day + 1]) for day in range(1, store.n_days)])
        together.append(look_at_days(counts, store.names, ()))
        for fault, change in FAULTS.items():
            looks[fault].append(with_fault(store, change, seed))
    table = Table("ordinary days", "stores", "with a warning", "days", "warned of", f"kept out by --gate {GATE}")
    table.box, table.title = SIMPLE_HEAD, "False alarms"
    for name, found in (("each against those before it", daily), ("each against all others", together)):
        alarms = [sum(look.is_odd for look in of_store) for of_store in found]
        kept_out = sum(_kept_out(look) for of_store in found for look in of_store)
        n_days = sum(map(len, found))
        table.add_row(name, str(len(found)), str(sum(map(bool, alarms))), str(n_days), str(sum(alarms)), str(kept_out))
    console.print(table)
    table = Table("fault of the last day", "warned of", "of", f"kept out by --gate {GATE}")
    table.add_column(f"warned of, where {MANY_CLICKS} clicks or more are expected")
    table.add_column(f"and {FEW_DAYS} days or more are known")
    table.box, table.title = SIMPLE_HEAD, "Days with a fault"
    for fault, found in looks.items():
        large = [look for look in found if look.expected_clicks >= MANY_CLICKS]
        week = [look for look in large if look.others >= FEW_DAYS]
        warned = [f"{sum(look.is_odd for look in some)} of {len(some)}" for some in (large, week)]
        odd, kept_out = sum(look.is_odd for look in found), sum(map(_kept_out, found))
        table.add_row(fault, str(odd), str(len(found)), str(kept_out), *warned)
    console.print(table)
    _pages(console, replications, first)
    real = Table("real log", "days", "warned of", "pages", box=SIMPLE_HEAD)
    for path, column in _REAL.items():
        if path.exists():
            log = pl.read_parquet(path)
            log = log.rename({name: role for name, role in _NAMES.items() if name in log.columns})
            log = log.with_columns(day=pl.lit("all") if column is None else pl.col(column).cast(pl.String).str.head(10))
            found = look_at_days(_counted(log, pl.col("day")), log["day"].unique().to_list(), ())
            spans = "session" in log.columns and shifted_pages(count_spans(log.lazy()).collect())
            said = str(sum(look.is_odd for look in found)), "shifted" if spans else "-"
            real.add_row(path.name, str(len(found)), *said)
    console.print(real)


def _pages(console: Console, replications: int, first: int) -> None:
    """Print how often pages are taken to be shifted, where some are and where none are."""
    stores = [drawn(seed).log for seed in range(first, first + replications)]
    table = Table("pages that are shifted", "warned of", "of", box=SIMPLE_HEAD, title="Pages from another base")
    for name, one_in in SHIFTED.items():
        shift = (pl.col("session") % one_in == 0).cast(pl.Int32) if one_in else 0
        found = [shifted_pages(count_spans(log.lazy().with_columns(_POSITION + shift)).collect()) for log in stores]
        table.add_row(name, str(sum(one is not None for one in found)), str(len(found)))
    console.print(table)


def _kept_out(look: DayLook) -> bool:
    return look.misplaced or look.without_clicks or look.beyond(GATE) is not None


def _against(counts: pl.DataFrame, names: list[str]) -> DayLook:
    """The last of these days beside those before it."""
    return look_at_days(counts, names[-1:], names[:-1])[0]


def with_fault(store: Store, change: Callable[[pl.DataFrame, np.random.Generator], pl.DataFrame], seed: int) -> DayLook:
    """The last day, with a fault, beside the others."""
    rng, is_last = np.random.default_rng(seed), pl.col("day") == store.n_days
    log = pl.concat([store.log.filter(~is_last), change(store.log.filter(is_last), rng)], how="vertical_relaxed")
    return _against(counted(log), store.names)


def counted(log: pl.DataFrame) -> pl.DataFrame:
    """The counts of a store by day."""
    return _counted(log, pl.col("day").cast(pl.String).str.zfill(3))


def _counted(log: pl.DataFrame, day: pl.Expr) -> pl.DataFrame:
    rows = log.lazy().with_columns(_POSITION.cast(pl.Int32), impressions=1, clicks=_CLICK.cast(pl.Int64))
    return add_by_day([count_by_day(rows, day).collect()])


def drawn(seed: int) -> Store:
    """A store of a design that the seed chooses."""
    rng = np.random.default_rng(seed)
    n_days, per_day = int(rng.choice([3, 7, 14, 42])), int(rng.choice([100, 300, 1000, 3000]))
    n_positions = int(rng.choice([3, 5, 10, 20]))
    options = SimulationOptions(
        model=("pbm", "pbm", "ubm")[rng.integers(3)],
        n_sessions=min((n_days + 1) * per_day, 40_000),
        n_queries=int(rng.choice([2, 20, 200])),
        docs_per_query=n_positions + int(rng.integers(10)),
        n_positions=n_positions,
        query_exponent=float(rng.choice([0.3, 0.7, 1.0])),
        eta=float(rng.choice([0.3, 1.0, 2.0])),
        attractiveness_shape=((1.0, 2.0), (1.0, 9.0), (2.0, 2.0))[rng.integers(3)],
        attractiveness_scale=float(rng.choice([0.05, 0.3, 1.0])),
        depth=(None, 0.9, 0.6)[rng.integers(3)],
        ranker_strength=float(rng.choice([0.0, 1.0, 3.0])),
        feedback_strength=float(rng.choice([0.0, 0.0, 1.0, 3.0])),
        days=n_days + 1,
        seed=seed,
    )
    log = simulate(options).log
    log = log.with_columns(day=(pl.col("session") * (n_days + 1) // options.n_sessions).cast(pl.Int64))
    log = log.filter(pl.col("day") > 0)  # on the first day, a ranker that learns knows nothing
    log = log.filter(pl.col("session").replace_strict(*_shown(log, n_days, rng)))
    return Store(log.with_columns(click=_CLICK * pl.Series(_kept_clicks(log, n_days, rng))), n_days)


def _shown(log: pl.DataFrame, n_days: int, rng: np.random.Generator) -> tuple[pl.Series, pl.Series]:
    """Which sessions there are: all, or those of a log that grows or has sparse days."""
    sessions = log.select("session", "day").unique().sort("session")
    share = np.ones(n_days)
    kind = rng.integers(4)
    if kind == 1:
        share = np.geomspace(0.1, 1, n_days)
    if kind > 1:
        share = np.where(rng.random(n_days) < 0.2, 0.1, 1.0)
    shown = rng.random(sessions.height) < share[sessions["day"].to_numpy() - 1]
    return sessions["session"], pl.Series(shown)


def _kept_clicks(log: pl.DataFrame, n_days: int, rng: np.random.Generator) -> NDArray[np.int8]:
    """Which clicks there are: days of the week differ, and days beyond that."""
    factor = np.ones(7)
    factor[rng.integers(7)] += rng.uniform(-0.25, 0.25)
    factor[5:] += rng.uniform(-0.15, 0.15)
    of_day = factor[np.arange(n_days) % 7] * np.exp(rng.normal(0, rng.choice([0, 0.03, 0.08]), n_days))
    kept = (of_day / of_day.max())[log["day"].to_numpy() - 1]
    ranks = log.select(pl.struct("query", "day").rank("dense")).to_series()
    number: NDArray[np.int64] = ranks.to_numpy().astype(np.int64) - 1
    shocks: NDArray[np.float64] = rng.normal(0, rng.choice([0, 0.2]), int(number.max()) + 1)
    of_query = np.exp(shocks) / 1.5
    chance = kept * np.minimum(of_query[number], 1)
    return (rng.random(log.height) < chance).astype(np.int8)
