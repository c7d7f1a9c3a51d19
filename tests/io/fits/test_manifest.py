"""What the manifest says about a fit: plain JSON whatever was found, and a prior that is read as it was written."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from posbias.core.attractiveness import AttractivenessPrior
from posbias.core.fit.periods import PeriodChoice, PeriodLook
from posbias.core.standard_errors.contrasts import ContrastTest, contrast_test
from posbias.io.fits.saved_fit import StoredEstimate, contrast_section, period_section


def as_json(section: object) -> dict[str, object]:
    """A section as it is read again."""
    return json.loads(json.dumps(msgspec.to_builtins(section), allow_nan=False))


@pytest.mark.parametrize(
    "test",
    [contrast_test(np.ones(2), np.ones(2), np.ones(2)), contrast_test(np.zeros(1), np.zeros(1), np.ones(1))],
    ids=["tested", "no contrast"],
)
def test_a_test_is_json_with_or_without_contrasts(test: ContrastTest) -> None:
    said = as_json(contrast_section(test, 3))

    assert said["contrasts"] == test.n_contrasts
    assert (said["statistic"] is None) == (test.n_contrasts == 0)


def test_a_choice_of_days_without_an_error_can_be_written_down() -> None:
    said = as_json(period_section(PeriodChoice(looks=(PeriodLook("none"),), error_ratio=np.inf)))

    assert said["largest_ratio_of_standard_errors"] is None


def test_where_there_was_nothing_to_choose_only_what_was_used_is_said() -> None:
    assert as_json(period_section(PeriodChoice("day"))) == {"used": "day"}


PRIOR = AttractivenessPrior(4.1, 0.27, (1, 2, 5), (0.3, 0.2, 0.1), (60.0, 3.0, 5.0))


def estimate_with(prior: object) -> StoredEstimate:
    """The section of a fit as it is read, with a prior."""
    numbers = {"cells": 1, "cells_identified": 1, "click_share_identified": 1.0, "query_spread": 0.0}
    clicks = {"observed": [1.0], "expected": [1.0]}
    section = {"method": "joint", "converged": True, "period": {"used": "none"}, "clicks": clicks, "model_tests": None}
    return msgspec.convert(section | numbers | {"attractiveness_prior": as_json(prior)}, StoredEstimate)


def test_a_prior_is_read_as_it_was_written() -> None:
    assert estimate_with(PRIOR).attractiveness_prior == PRIOR


@pytest.mark.parametrize(
    "change",
    [
        {"mean": 1.0},
        {"strength": -1.0},
        {"strength": 1e300},
        {"positions": (2, 1, 5)},
        {"positions": (0, 1, 2)},
        {"means": (0.3,)},
        {"means": (0.3, 0.0, 0.1)},
        {"strengths": (60.0,)},
    ],
)
def test_a_prior_that_is_none_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        estimate_with(replace(PRIOR, **change))
