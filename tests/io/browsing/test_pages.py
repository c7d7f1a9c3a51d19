"""The pages of a log in memory and on disk, whole and held out."""

from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
import polars as pl
import pytest

from posbias.core.errors import SchemaError
from posbias.core.models import get_click_model
from posbias.core.models.em import EMOptions, fit
from posbias.core.schema import PAIR
from posbias.io.jobs.page_batches import (
    LogPages,
    all_pages,
    by_session,
    by_time,
    last_share,
    number_units,
    numbered_pages,
)

Found = TypeVar("Found")


class Held:
    """A log in several parts."""

    def __init__(self, frames: list[pl.DataFrame]) -> None:
        self._frames = frames

    @property
    def number(self) -> int:
        """How many."""
        return len(self._frames)

    @property
    def in_memory(self) -> bool:
        """As if they lay on disk."""
        return False

    def map(self, work: Callable[[int, pl.LazyFrame], Found]) -> Iterator[Found]:
        """What a function makes of each."""
        return (work(number, frame.lazy()) for number, frame in enumerate(self._frames))


def log(n_sessions: int = 60) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    session = np.repeat(np.arange(n_sessions), 3)
    return pl.DataFrame(
        {
            "session": session,
            "query": session % 4,
            "doc": np.concatenate([rng.permutation(5)[:3] for _ in range(n_sessions)]),
            "position": np.tile(np.arange(1, 4, dtype=np.int32), n_sessions),
            "click": rng.integers(0, 2, 3 * n_sessions).astype(np.int8),
            "period": [date(2026, 1, 1) + timedelta(days=int(number) // 10) for number in session],
        }
    )


def parts(rows: pl.DataFrame, n_parts: int) -> Held:
    return Held([rows.filter(pl.col("query") % n_parts == part) for part in range(n_parts)])


def as_rows(pages: LogPages, names: pl.DataFrame) -> list[tuple[object, ...]]:
    """The impressions of the pages, with the ids of their units, sorted."""
    ids = dict(zip(names["posbias_unit"].to_list(), names.select(PAIR).rows(), strict=True))
    return sorted(
        (*ids.get(int(unit), (-1, -1)), int(position), int(click), float(weight))
        for batch in pages
        for weight, *page in zip(batch.weight, batch.unit, batch.position, batch.click, strict=True)
        for unit, position, click in zip(*page, strict=True)
    )


@pytest.mark.parametrize("on_disk", [False, True])
def test_pages_in_parts_and_on_disk_are_those_of_the_whole_log(tmp_path: Path, *, on_disk: bool) -> None:
    rows = log()
    found: list[list[tuple[object, ...]]] = []
    for n_parts in (1, 2, 4):
        folder = tmp_path / str(n_parts)
        folder.mkdir()
        held = parts(rows, n_parts)
        units = number_units(held, PAIR, all_pages, folder if on_disk else None)
        (pages,) = numbered_pages(held, [units], all_pages, folder if on_disk else None, "learnt")
        assert units.number == rows.select(PAIR).n_unique() == pages.n_units
        assert (pages.n_sessions, pages.n_impressions, pages.n_positions) == (60, 180, 3)
        found.append(as_rows(pages, units.scan().collect()))
    assert found[0] == found[1] == found[2]
    assert sum(cast("float", row[-1]) for row in found[0]) == rows.height


@pytest.mark.parametrize("name", ["ubm", "dbn", "pbm", "dcm"])
@pytest.mark.slow
def test_models_fitted_to_pages_in_parts_and_on_disk_are_those_of_the_whole_log(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posbias.core.models.page_matrices._ENTRIES", 20)  # so that some are put aside
    found: list[dict[tuple[object, ...], float]] = []
    for n_parts, folder in ((1, None), (4, None), (4, tmp_path)):
        held = parts(log(400), n_parts)
        units = number_units(held, PAIR, all_pages, folder)
        (pages,) = numbered_pages(held, [units], all_pages, folder, "learnt")
        fitted = fit(get_click_model(name), pages, EMOptions(), lambda: None)
        ids = units.scan().collect().select(PAIR).rows()
        found.append(dict(zip(ids, fitted.parameters["attractiveness"][:-1].tolist(), strict=True)))
    assert found[1] == pytest.approx(found[0], abs=1e-7)
    assert found[2] == found[1]


def test_documents_that_were_not_learnt_have_the_number_after_the_last() -> None:
    rows = log()
    units = number_units(parts(rows.filter(pl.col("doc") < 3), 2), PAIR, all_pages, None)
    how = {"same_parts": False, "by_first_unit": False}
    (pages,) = numbered_pages(parts(rows, 3), [units], all_pages, None, "test", **how)
    unknown = sum(float((batch.row_weight * (batch.unit == units.number)).sum()) for batch in pages)
    assert unknown == rows.filter(pl.col("doc") >= 3).height


def test_a_split_by_session_keeps_pages_whole_and_loses_none() -> None:
    rows = log(400)
    kept = [by_session(rows.lazy(), 0.25, held_out=held_out).collect() for held_out in (False, True)]
    assert sum(side.height for side in kept) == rows.height
    assert set(kept[0]["session"]).isdisjoint(kept[1]["session"])
    assert kept[1]["session"].n_unique() == pytest.approx(100, abs=30)


def test_a_split_by_time_holds_the_latest_sessions_out() -> None:
    rows = log(60)
    start = last_share(parts(rows, 2), 0.25)
    learnt, held_out = (by_time(rows.lazy(), start, held_out=side).collect() for side in (False, True))
    assert cast("date", learnt["period"].max()) < cast("date", held_out["period"].min())
    assert held_out["session"].n_unique() == 20  # the last two of six days hold at least a quarter


def test_a_log_of_one_day_cannot_be_split_by_time() -> None:
    with pytest.raises(SchemaError, match="all sessions have one time"):
        last_share(parts(log(5), 2), 0.25)
