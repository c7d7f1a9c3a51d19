"""Every click model can be simulated: clicks follow its equation, written here once more, click pattern by pattern."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from hashlib import sha256
from itertools import product
from typing import Any

import numpy as np
import polars as pl
import pytest

from posbias.core.errors import UsageError
from posbias.core.models import click_model_names
from posbias.core.simulation.options import CELL_MODELS, shared_parameters, values_by_position
from posbias.core.simulation.simulate import SimulationOptions, simulate, simulate_blocks

Pattern = tuple[int, ...]
Row = dict[str, Any]
"""What is shown at a position: the truth about the document, and `position`."""

OTHERS = [name for name in click_model_names() if name not in CELL_MODELS]
SMALL = SimulationOptions(
    n_sessions=30_000,
    n_queries=3,
    docs_per_query=4,
    n_positions=3,
    ranker_strength=0.0,
    attractiveness_shape=(2.0, 1.0),  # many clicks: a tenth off what follows one would be seen
    seed=3,
)
STANDARD_ERRORS = 5.0  # of the number of pages with one pattern; none of a few dozen strays that far by chance

EVERYTHING: dict[str, Any] = {
    "contexts": (0.5, 1.0),
    "segments": 2,
    "readiness": (0.5, 1.5),
    "attractiveness_scale": 0.5,
    "theta_shock": 0.1,
    "feedback_strength": 1.0,
    "days": 3,
    "depth": 0.9,
    "swap_share": 0.1,
    "swaps": ((1, 3),),
    "randomized_share": 0.2,
}
MORE: dict[str, Any] = {
    "segments": 2,
    "depth": 0.6,
    "days": 4,
    "feedback_strength": 2.0,
    "ranker_strength": 1.0,
    "randomized_share": 0.2,
    "swaps": ((1, 3),),
    "swap_share": 0.2,
}


# --- the equations, page by page ------------------------------------------------------------------------------


def rates(page: list[Row], shared: Callable[..., float], model: str) -> list[float]:
    """Return P(click) of the models in which clicks do not depend on each other."""
    if model == "tpbm":
        return [
            shared("examination", at)
            * (
                shared("perceived_if_relevant", at) * row["relevance"]
                + shared("perceived_if_not_relevant", at) * (1 - row["relevance"])
            )
            for row in page
            for at in [row["position"]]
        ]
    if model == "gctr":
        return [shared("click_rate")] * len(page)
    return [shared("click_rate", row["position"]) if model == "rctr" else row["click_rate"] for row in page]


def goes_on(row: Row, click: int, shared: Callable[..., float], model: str) -> float:
    """Return P(the next one is examined | this one was, and clicked or not)."""
    if model == "dbn":
        return shared("continuation") * (1 - click * row["satisfaction"])
    if model == "sdbn":
        return 1 - click * row["satisfaction"]
    if model == "ccm" and click:
        a = row["attractiveness"]
        on, off = shared("continuation_after_relevant_click"), shared("continuation_after_irrelevant_click")
        return a * on + (1 - a) * off
    if model == "ccm":
        return shared("continuation_after_skip")
    if model == "dcm":
        return shared("continuation", row["position"]) if click else 1.0
    assert model == "cm"
    return 1.0 - click


def probability(pattern: Pattern, page: list[Row], shared: Callable[..., float], model: str) -> float:
    """Return that of a whole page's clicks: in a cascade the sum over how many documents were examined."""
    if "attractiveness" not in page[0]:
        return float(np.prod([p if c else 1 - p for c, p in zip(pattern, rates(page, shared, model), strict=True)]))
    total = 0.0
    for examined in range(1, len(page) + 1):
        if any(pattern[examined:]):
            continue
        p = 1.0
        for at, (row, click) in enumerate(zip(page[:examined], pattern, strict=False), start=1):
            on = goes_on(row, click, shared, model)
            p *= row["attractiveness"] if click else 1 - row["attractiveness"]
            p *= on if at < examined else 1 - on if examined < len(page) else 1.0
        total += p
    return total


def pages_with_truth(options: SimulationOptions) -> tuple[Counter[tuple[Any, ...]], Callable[..., float]]:
    """Return how often each page, with the truth about it, got each pattern of clicks; and what documents share."""
    drawn = simulate(options)
    log, truth = drawn.log, drawn.attractiveness
    if truth.columns:
        keys = [name for name in ("query", "doc", "segment", "position") if name in truth.columns]
        log = log.join(truth, on=keys, how="left", maintain_order="left")
    shown = ["position", *(name for name in truth.columns if name not in {"query", "doc", "segment", "position"})]
    pages = log.group_by("session").agg(pl.struct(shown).alias("page"), "click").select("page", "click")
    found = Counter((tuple(tuple(row.items()) for row in page), tuple(click)) for page, click in pages.iter_rows())
    values = {(name, at): value for name, at, value in drawn.parameters.iter_rows()} if drawn.parameters.columns else {}

    def shared(name: str, position: int | None = None) -> float:
        return values[name, position]

    return found, shared


def strays(options: SimulationOptions) -> dict[Pattern, float]:
    """Return, by pattern of clicks, how far the number of pages with it is from what it should be, in its errors."""
    found, shared = pages_with_truth(options)
    n_pages = Counter[tuple[Any, ...]]()
    for (page, _), number in found.items():
        n_pages[page] += number
    sums = {pattern: np.zeros(3) for k in range(1, 4) for pattern in product((0, 1), repeat=k)}
    for page, number in n_pages.items():
        rows = [dict(row) for row in page]
        patterns = list(product((0, 1), repeat=len(rows)))
        p = np.array([probability(pattern, rows, shared, options.model) for pattern in patterns])
        assert p.sum() == pytest.approx(1)
        for pattern, likely in zip(patterns, p, strict=True):
            sums[pattern] += found[page, pattern], number * likely, number * likely * (1 - likely)
    impossible = [pattern for pattern, (seen, expected, _) in sums.items() if expected == 0 < seen]
    assert impossible == []
    return {
        pattern: abs(seen - expected) / variance**0.5
        for pattern, (seen, expected, variance) in sums.items()
        if variance > 0
    }


# --- clicks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, MORE], ids=["plain", "everything"])
@pytest.mark.parametrize("model", OTHERS)
@pytest.mark.slow_after(4)
def test_the_clicks_on_pages_follow_the_equation_of_the_model(model: str, more: dict[str, Any]) -> None:
    far = strays(replace(SMALL, model=model, **more))

    assert len(far) > 1
    assert max(far.values()) < STANDARD_ERRORS


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("gctr", {"click_rate": (0.7,)}),
        ("rctr", {"click_rate": (0.7,)}),
        ("dcm", {"continuation": (0.1, 0.9, 0.5)}),
        ("dbn", {"continuation": (0.4,)}),
        ("ccm", {"continuation_after_skip": (0.5,), "continuation_after_irrelevant_click": (0.1,)}),
        ("tpbm", {"perceived_if_relevant": (0.9,), "perceived_if_not_relevant": (0.1, 0.2, 0.3)}),
    ],
)
def test_clicks_follow_the_parameters_that_are_given(model: str, parameters: dict[str, tuple[float, ...]]) -> None:
    options = replace(SMALL, model=model, parameters=tuple(parameters.items()))
    truth = simulate(replace(options, n_sessions=1)).parameters
    for name, values in parameters.items():
        own = truth.filter(parameter=name).sort("position")["value"].to_list()
        expected = [values[0] * theta for theta in options.examination[0]] if model == "rctr" else [*values]
        assert own == pytest.approx(expected * (len(own) // len(expected)))

    assert max(strays(options).values()) < STANDARD_ERRORS


@pytest.mark.parametrize("model", ["rctr", "rdctr", "tpbm"])
def test_a_curve_of_examination_lowers_clicks_by_rank_and_by_trust(model: str) -> None:
    options = replace(SMALL, model=model, theta=(1.0, 0.1, 0.8))
    rate = simulate(options).log.group_by("position").agg(pl.mean("click")).sort("position")["click"]

    assert rate[1] < rate[2] < rate[0]
    assert max(strays(options).values()) < STANDARD_ERRORS


@pytest.mark.parametrize("model", ["dbn", "sdbn"])
def test_satisfaction_follows_its_distribution_and_not_attractiveness(model: str) -> None:
    options = SimulationOptions(model=model, n_sessions=1, n_queries=500, satisfaction_shape=(8.0, 2.0))
    truth = simulate(options).attractiveness

    assert truth["satisfaction"].mean() == pytest.approx(0.8, abs=0.01)
    assert truth["satisfaction"].std() == pytest.approx((0.8 * 0.2 / 11) ** 0.5, rel=0.05)
    assert abs(truth.select(pl.corr("attractiveness", "satisfaction")).item()) < 0.04


def test_trust_falls_with_the_position_as_in_the_paper() -> None:
    options = SimulationOptions(model="tpbm", n_sessions=1, n_positions=25, docs_per_query=25)
    truth = {(name, at): value for name, at, value in simulate(options).parameters.iter_rows()}

    assert [truth["perceived_if_relevant", at] for at in (1, 10, 20, 25)] == pytest.approx([0.98, 0.89, 0.79, 0.79])
    assert [truth["perceived_if_not_relevant", at] for at in (1, 2, 10, 25)] == pytest.approx(
        [0.65, 0.325, 0.065, 0.065]
    )
    for at in range(1, 26):
        assert truth["examination", at] == pytest.approx(1 / at)
        assert truth["click_if_relevant", at] == pytest.approx(truth["perceived_if_relevant", at] / at)
        assert truth["click_if_not_relevant", at] == pytest.approx(truth["perceived_if_not_relevant", at] / at)


# --- the log --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "more", "digest"),
    [
        ("pbm", {}, "049cb1da0f7e34c5"),
        ("pbm", EVERYTHING, "57745e232eab4e99"),
        ("pbm", {"ranker_strength": np.inf}, "95081b20089e9f47"),
        ("ubm", {}, "e4b0adeb3fb4b60f"),
        ("ubm", EVERYTHING, "86a5df184ade5986"),
    ],
)
def test_logs_and_truth_of_models_with_cells_are_what_they_were(model: str, more: dict[str, Any], digest: str) -> None:
    options = SimulationOptions(model, n_sessions=500, n_queries=10, docs_per_query=8, n_positions=4, seed=3)
    drawn = simulate(replace(options, **more))
    text = "".join(
        table.write_csv(float_precision=9) for table in (drawn.log, drawn.propensities, drawn.attractiveness)
    )

    assert sha256(text.encode()).hexdigest()[:16] == digest
    assert drawn.parameters.columns == []


# --- the truth ------------------------------------------------------------------------------------------------


def columns(tables: Iterable[pl.DataFrame]) -> list[list[str]]:
    return [table.columns for table in tables]


@pytest.mark.parametrize(
    ("model", "by_pair", "shared"),
    [
        ("gctr", [], ["click_rate"]),
        ("rctr", [], ["click_rate"]),
        ("dctr", ["query", "doc", "click_rate"], []),
        ("rdctr", ["query", "doc", "position", "click_rate"], []),
        ("cm", ["query", "doc", "attractiveness"], []),
        ("dcm", ["query", "doc", "attractiveness"], ["continuation"]),
        ("dbn", ["query", "doc", "attractiveness", "satisfaction"], ["continuation"]),
        ("sdbn", ["query", "doc", "attractiveness", "satisfaction"], []),
    ],
)
def test_the_truth_has_what_the_model_has_and_no_propensities(
    model: str, by_pair: list[str], shared: list[str]
) -> None:
    drawn = simulate(replace(SMALL, model=model, n_sessions=10))

    assert columns([drawn.propensities, drawn.attractiveness]) == [[], by_pair]
    assert drawn.parameters.columns == (["parameter", "position", "value"] if shared else [])
    if shared:
        assert drawn.parameters["parameter"].unique().to_list() == shared
    positions = drawn.parameters["position"].to_list() if shared else []
    assert positions == {"gctr": [None], "dbn": [None], "rctr": [1, 2, 3], "dcm": [1, 2, 3]}.get(model, [])


def test_every_model_of_the_family_says_what_may_be_given() -> None:
    for model in click_model_names():
        for parameter in shared_parameters(model):
            values = values_by_position(parameter, {}, 1000)
            assert values.shape == (1000,)
            assert 0 < values.min() <= values.max() < 1


def test_more_rates_by_document_and_position_than_fit_into_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posbias.core.simulation.simulate.MOST_RATES", 35)

    with pytest.raises(UsageError, match="36 of them, and there may be 35"):
        next(simulate_blocks(replace(SMALL, model="rdctr")))
