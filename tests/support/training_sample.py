"""A small training set of every layout, written by any format in two parts, and the script that trains on it."""

import runpy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from posbias.core.training.layout import get_layout
from posbias.io.training import get_format
from posbias.io.training.laid_out import Feature, TrainingPart, TrainingSet

_GROUPS, _ROWS_OF_A_GROUP, _GROUPS_OF_A_CHUNK = 40, 8, 7
BRANDS = ("", "acme", 'six "inch"', "tab\tbed", "two,halves # one", "ünï中")

_COLUMNS: dict[str, tuple[str, ...]] = {
    "pointwise": ("group", "query", "doc", "label", "weight"),
    "session": ("group", "session", "query", "doc", "position", "click", "propensity", "weight"),
    "clicked-group": ("group", "query", "doc", "label", "weight", "clicks"),
    "pairs": ("group", "query", "doc", "label", "weight"),
    "judgments": ("group", "query", "doc", "label", "label_std_dev", "grade", "impressions", "clicks", "weight"),
}


@dataclass(frozen=True)
class Sample:
    """A training set in memory.

    Attributes:
        of: what is known of it.
        rows: all rows, in order.
        preferences: of the layout `pairs`.
    """

    of: TrainingSet
    rows: pl.DataFrame
    preferences: pl.DataFrame = field(default_factory=pl.DataFrame)

    @property
    def numbers(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The features as trainers get them from the API: texts by number, missing ones as nan."""
        brand = pl.col("brand").cast(pl.Enum(BRANDS)).to_physical()
        names = [feature.name for feature in self.of.features]
        return self.rows.with_columns(brand).select(names).cast(pl.Float64).fill_null(np.nan).to_numpy()

    @property
    def group_sizes(self) -> list[int]:
        """The number of rows of each group."""
        return self.rows["group"].rle().struct.field("len").to_list()

    @property
    def group_weights(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The weight of each group."""
        return self.rows.group_by("group", maintain_order=True).first()["weight"].to_numpy()

    def parts(self) -> list[TrainingPart]:
        """The rows in two parts, each of several chunks; the second part first."""
        return [self._part(1, _GROUPS // 2, _GROUPS), self._part(0, 0, _GROUPS // 2)]

    def _part(self, number: int, first: int, end: int) -> TrainingPart:
        starts = range(first, end, _GROUPS_OF_A_CHUNK)
        bounds = [(start, min(start + _GROUPS_OF_A_CHUNK, end)) for start in starts]
        chunks = (self.rows.filter(pl.col("group").is_between(a, b, closed="left")) for a, b in bounds)
        if self.of.layout.name != "pairs":
            return TrainingPart(number, chunks, None)
        pairs = self.preferences.lazy().filter(pl.col("group").is_between(first, end, closed="left"))
        return TrainingPart(number, chunks, pairs)

    def empty(self) -> "Sample":
        """The same training set without rows."""
        return Sample(self.of, self.rows.clear(), self.preferences.clear())

    def write(self, form: str, folder: Path) -> Path:
        """Write all of it in a format."""
        folder.mkdir(parents=True, exist_ok=True)
        for part in self.parts():
            get_format(form).write(self.of, part, folder)
        get_format(form).finish(self.of, folder)
        return folder


def make_sample(layout: str, *, features: bool = True, seed: int = 1) -> Sample:
    """Rows whose label depends on the features, with missing values, weights of 0 and odd texts."""
    random = np.random.default_rng(seed)
    n = _GROUPS * _ROWS_OF_A_GROUP
    price = random.normal(size=n)
    clicked = np.arange(n) % _ROWS_OF_A_GROUP == np.repeat(random.integers(0, _ROWS_OF_A_GROUP, _GROUPS), 8)
    group = np.arange(n) // _ROWS_OF_A_GROUP
    per_group = layout == "clicked-group"
    weight = random.exponential(3, n) * (random.random(n) > 0.1)
    rows = pl.DataFrame(
        {
            "group": group,
            "session": group + 1000,
            "query": [f"red\tshoes #{g // 2}\n" for g in group],
            "doc": np.arange(n) * 7 % 100,
            "position": np.arange(n, dtype=np.int32) % _ROWS_OF_A_GROUP + 1,
            "click": clicked.astype(np.int8),
            "propensity": 1 / (1 + np.arange(n) % _ROWS_OF_A_GROUP),
            "label": random.random(n) if layout == "judgments" else np.ones(n) if layout == "pairs" else clicked * 1,
            "label_std_dev": random.random(n),
            "grade": random.integers(0, 5, n).astype(np.int32),
            "impressions": random.integers(1, 50, n),
            "clicks": random.integers(0, 9, n),
            "weight": weight[group * _ROWS_OF_A_GROUP] if per_group else weight,
        }
    )
    if layout in {"pairs", "judgments"}:
        rows = rows.with_columns(weight=pl.lit(1.0))
    learnt = (
        pl.Series("price", price + clicked).set(pl.Series(random.random(n) < 0.1), np.nan),
        pl.Series("brand", random.choice(BRANDS, n)).set(pl.Series(random.random(n) < 0.1), None),
        pl.Series("in stock", random.integers(-5, 5, n)).set(pl.Series(random.random(n) < 0.1), None),
        pl.Series("sale", random.random(n) < 0.3),
        pl.Series("tiny, {x}", random.normal(size=n) * 10.0 ** random.integers(-20, 5, n)),
    )
    names = tuple(Feature(x.name, BRANDS if x.name == "brand" else None) for x in learnt) if features else ()
    rows = rows.select(_COLUMNS[layout]).hstack(list(learnt) if features else [])
    ids = ("session", "query", "doc", "position") if layout == "session" else ("query", "doc")
    of = TrainingSet(get_layout(layout), ids, names)
    return Sample(of, rows, _preferences(rows, clicked, random)) if layout == "pairs" else Sample(of, rows)


def _preferences(rows: pl.DataFrame, clicked: "np.ndarray[Any, Any]", random: np.random.Generator) -> pl.DataFrame:
    """The clicked row of each group over every other."""
    numbered = rows.select("group", "query", "doc").with_row_index("row").with_columns(clicked=pl.Series(clicked))
    winners, losers = numbered.filter("clicked"), numbered.filter(~pl.col("clicked"))
    pairs = winners.join(losers, on=["group", "query"], suffix="_loser", maintain_order="left_right")
    weight = random.exponential(3, pairs.height) * (random.random(pairs.height) > 0.1)
    return pairs.select(
        "group",
        "query",
        winner="doc",
        loser="doc_loser",
        winner_row="row",
        loser_row="row_loser",
        weight=pl.Series(weight),
    )


def load(folder: Path) -> dict[str, Any]:
    """Run a folder's `load.py` in this process and return its names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["load.py"])
        return runpy.run_path(str(folder / "load.py"))
