"""Units with equal rows kept once: EM finds what it finds over all units, in memory or put aside."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pytest

from posbias.core.models import get_click_model
from posbias.core.models import page_matrices as module
from posbias.core.models.em import EMOptions, ModelEstimate, fit, standard_errors
from posbias.core.models.page_matrices import (
    Certain,
    PageBatch,
    PagesInMemory,
    Signatures,
    find_signatures,
    small_batches,
)

ALONE = ["pbm", "ubm", "tpbm"]
N_QUERIES, N_DOCS, N_POSITIONS = 1000, 3, 4
N_UNITS = N_QUERIES * N_DOCS
HIGH = np.array([0.0, 0.9, 0.8, 0.7, 0.6])


@dataclass(frozen=True)
class OneByOne:
    """Pages whose units are all kept, equal or not."""

    pages: PagesInMemory

    @property
    def n_units(self) -> int:
        """J."""
        return self.pages.n_units

    @property
    def n_positions(self) -> int:
        """K."""
        return self.pages.n_positions

    def __iter__(self) -> Iterator[PageBatch]:
        return iter(self.pages)

    def uncertain(self, certain: Certain) -> "OneByOne":
        """What is left of the pages."""
        return OneByOne(self.pages.uncertain(certain))

    def signatures(self, columns: Sequence[str]) -> Signatures:
        """Each unit has one of its own."""
        rows = module.count_rows(self.pages, columns)
        counted = self.pages.signatures(columns)
        place = {"position 0": rows["position"]}
        if "previous_click" in columns:
            place["previous_click"] = rows["previous_click"]
        weights = rows["impressions"] - rows["clicks"], rows["clicks"]
        frames = [
            pl.DataFrame({"shown 0": 2 * rows["posbias_unit"] + click, **place, "weight": weight})
            for click, weight in enumerate(weights)
        ]
        batches = tuple(small_batches(pl.concat(frames).filter(pl.col("weight") > 0)))
        return replace(counted, rows=(batches,), of_unit=np.arange(self.n_units + 1), n_units=self.n_units)


def log(name: str, *, weighted: bool = False, seed: int = 0) -> PagesInMemory:
    """Pages of documents in random order, each query some times, with gaps between positions; some units never."""
    rng = np.random.default_rng(seed)
    query = rng.integers(0, N_QUERIES - 5, 3000)
    unit = query[:, np.newaxis] * N_DOCS + np.stack([rng.permutation(N_DOCS)[:2] for _ in query])
    position = np.sort(np.stack([rng.permutation(N_POSITIONS)[:2] for _ in query]) + 1, axis=1)
    weight = rng.choice([0.5, 1.0, 2.5], len(query)) if weighted else np.ones(len(query))
    shown = np.ones(unit.shape, dtype=np.bool_)
    pages = PageBatch(unit, position, np.zeros_like(shown), shown, weight)
    model = get_click_model(name)
    spread = {"unit": 0.3, "one": 2.0, "position": 2.0, "position and previous click": 2.0}
    truth = {
        p.name: rng.beta(spread[p.shape], spread[p.shape], p.dimensions(N_UNITS, N_POSITIONS)) for p in model.parameters
    }
    if name == "tpbm":
        truth = {"relevance": rng.beta(1, 1, N_UNITS + 1), "click_if_relevant": HIGH, "click_if_not_relevant": HIGH / 5}
    return PagesInMemory((pages.with_clicks(model.sample(truth, pages, rng)),), N_UNITS, N_POSITIONS)


def both(name: str, *, weighted: bool, options: EMOptions) -> tuple[ModelEstimate, ModelEstimate]:
    pages, model = log(name, weighted=weighted), get_click_model(name)
    assert pages.signatures(model.statistics_columns).n_units < 0.6 * N_UNITS
    return fit(model, pages, options, lambda: None), fit(model, OneByOne(pages), options, lambda: None)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ALONE)
def test_equal_units_kept_once_go_the_way_of_all_units(name: str, *, weighted: bool) -> None:
    once, all_units = both(name, weighted=weighted, options=EMOptions(passes=30))
    for parameter, values in all_units.parameters.items():
        assert once.parameters[parameter].shape == values.shape
        assert once.parameters[parameter] == pytest.approx(values, abs=1e-9)
    for parameter, trials in all_units.trials.items():
        assert once.trials[parameter] == pytest.approx(trials, rel=1e-9)


@pytest.mark.parametrize("name", ALONE)
def test_equal_units_kept_once_come_to_rest_where_all_units_do(name: str) -> None:
    once, all_units = both(name, weighted=False, options=EMOptions())
    assert (once.passes, once.converged) == (all_units.passes, all_units.converged)
    for parameter, values in all_units.parameters.items():
        assert once.parameters[parameter] == pytest.approx(values, abs=1e-7)
    for parameter, prior in all_units.priors.items():
        assert once.priors[parameter].mean == pytest.approx(prior.mean, rel=1e-7)
        assert once.priors[parameter].strength == pytest.approx(prior.strength, rel=1e-7)


@pytest.mark.parametrize("name", ALONE)
def test_the_jackknife_over_signatures_is_that_over_all_units(name: str) -> None:
    pages, model, options = log(name), get_click_model(name), EMOptions()
    groups = np.append(np.repeat(np.arange(N_QUERIES) % 5, N_DOCS), 0)
    fitted = fit(model, pages, options, lambda: None)
    once, one_by_one = (
        standard_errors(model, some, groups, fitted, options, lambda: None) for some in (pages, OneByOne(pages))
    )
    assert once.keys() == one_by_one.keys()
    assert any(np.isfinite(errors).any() for errors in one_by_one.values())
    for parameter, errors in one_by_one.items():
        assert once[parameter] == pytest.approx(errors, rel=1e-6, nan_ok=True)


@pytest.mark.parametrize("name", ALONE)
def test_a_log_without_a_group_is_the_log_of_its_other_pages(name: str) -> None:
    pages, model = log(name), get_click_model(name)
    left_out = np.append(np.repeat(np.arange(N_QUERIES) % 5 == 0, N_DOCS), [False])
    (batch,) = pages.batches
    kept = np.flatnonzero(~left_out[batch.unit[:, 0]])
    others = PageBatch(batch.unit[kept], batch.position[kept], batch.click[kept], batch.shown[kept], batch.weight[kept])
    columns = model.statistics_columns
    less, rest = pages.signatures(columns).without(left_out), replace(pages, batches=(others,)).signatures(columns)
    assert totals(less) == pytest.approx(totals(rest))
    assert less.multiplicity.sum() == rest.multiplicity.sum() == N_UNITS + 1


def totals(signatures: Signatures) -> dict[tuple[int, int, bool], float]:
    """By cell and click, the impressions of all units."""
    found: dict[tuple[int, int, bool], float] = {}
    for batch in signatures:
        weight = (batch.row_weight * signatures.multiplicity[batch.unit]).ravel()
        rows = zip(batch.position.ravel(), batch.previous_click.ravel(), batch.click.ravel(), weight, strict=True)
        for position, above, click, number in rows:
            key = int(position), int(above), bool(click)
            found[key] = found.get(key, 0.0) + float(number)
    return {key: number for key, number in found.items() if number > 0}


@pytest.mark.parametrize("most", [1, 200, 1 << 20])
def test_signatures_put_aside_give_the_same_parameters(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, pages = get_click_model("ubm"), log("ubm")
    whole = fit(model, pages, EMOptions(), lambda: None)
    monkeypatch.setattr(module, "_ENTRIES", most)
    found = find_signatures(by_query(pages), model.statistics_columns, N_UNITS, N_POSITIONS, in_memory)
    in_parts = fit(model, Found(found, N_UNITS), EMOptions(), lambda: None)
    assert (len(found.rows) > 1) == (most < 1 << 20)
    for parameter, values in whole.parameters.items():
        assert in_parts.parameters[parameter] == pytest.approx(values, abs=1e-7)


def in_memory(rows: pl.DataFrame, _: int) -> tuple[PageBatch, ...]:
    return tuple(small_batches(rows))


def by_query(pages: PagesInMemory) -> list[list[PageBatch]]:
    """The pages of one query after those of another, in four parts."""
    (batch,) = pages.batches
    part = batch.unit[:, 0] // N_DOCS % 4
    return [
        [PageBatch(batch.unit[at], batch.position[at], batch.click[at], batch.shown[at], batch.weight[at])]
        for at in (np.flatnonzero(part == number) for number in range(4))
    ]


@dataclass(frozen=True)
class Found:
    """Pages whose signatures are known."""

    found: Signatures
    n_units: int
    n_positions: int = N_POSITIONS

    def __iter__(self) -> Iterator[PageBatch]:
        raise NotImplementedError

    def uncertain(self, certain: Certain) -> "Found":
        """These."""
        raise NotImplementedError

    def signatures(self, columns: Sequence[str]) -> Signatures:
        """These."""
        del columns
        return self.found


def test_models_that_look_at_no_click_above_find_more_units_equal() -> None:
    pages = log("ubm")
    by_position, by_both = (pages.signatures(get_click_model(name).statistics_columns) for name in ("pbm", "ubm"))
    assert by_position.n_units < by_both.n_units < N_UNITS
