"""What is said of how far a verdict holds."""

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

from posbias.core.evaluation.break_even import POWERS, SHARES, BreakEven
from posbias.io.fits.verdicts import break_even_reason, heavy_weight_reasons, pareto_clause
from posbias.io.results.conclusions import Reason

Line = Callable[[float], tuple[float, float, float]]
THETA = np.array([1.0, 0.7, np.nan, 0.5, 0.36, 0.3])


def said(of_power: Line, of_share: Line | None = None) -> Reason:
    """Return the reason for a difference whose interval is known at every bend."""
    bent = [*map(of_power, POWERS), *(map(of_share, SHARES) if of_share else ())]
    cells = pl.DataFrame({"position": range(1, 7)})
    return break_even_reason("new", "old", BreakEven.of(of_power(1.0), bent), cells, THETA)


def test_a_verdict_that_turns_names_the_bias_and_the_attention_at_which_it_does() -> None:
    one = said(lambda s: (s - 0.5, s - 0.6, s - 0.4))
    assert one.sentence == (
        "new stays ahead of old at any position bias from 0.50 times (95 % interval 0.40 to 0.60) to 3 times the "
        "estimated one; it turns if position 5 gets 0.60 of the attention of position 1 instead of 0.36."
    )
    assert one.figures["turns_below"] == pytest.approx(0.5)
    assert (one.figures["turns_above"], one.figures["verdict"]) == (None, "better")
    assert one.figures["attention_at_turn"] == pytest.approx(0.36**0.5)


def test_attention_is_named_on_the_first_of_several_curves() -> None:
    cells = pl.DataFrame({"position": [1, 2, 1, 2, 5], "block": ["ai", "ai", "none", "none", "none"]})
    bent = [(power - 0.5, power - 0.6, power - 0.4) for power in (1.0, *POWERS)]
    held = BreakEven.of(bent[0], bent[1:])
    theta = np.array([0.4, 0.1, 1.0, 0.7, 0.3])
    assert break_even_reason("new", "old", held, cells, theta).sentence.endswith(
        "it turns if position 2 gets 0.50 of the attention of position 1 instead of 0.25 (block ai)."
    )


def test_a_verdict_that_never_turns_is_said_to_hold_at_any_bias() -> None:
    assert said(lambda _: (-1.0, -1.2, -0.8)).sentence == (
        "old stays ahead of new at any position bias from none to 3 times the estimated one."
    )
    surely = said(lambda s: (s + 0.1, s - 0.25, s + 1.0)).sentence
    assert "from none (surely from 0.25 times) to 3 times the estimated one." in surely
    beyond = said(lambda s: (2.5 - s, 2.0 - s, 3.5 - s)).sentence
    assert "to 2.50 times (95 % interval 2.00 to 3 or more) the estimated one" in beyond


def test_without_a_clear_verdict_it_is_said_where_there_would_be_one() -> None:
    assert said(lambda s: (s - 1.1, s - 1.4, s - 0.8)).sentence == (
        "Which of new and old is ahead is not clear at the estimated position bias; it is below 0.80 times and above "
        "1.40 times that."
    )
    nowhere = said(lambda _: (0.1, -0.5, 0.5))
    assert nowhere.sentence == "Which of new and old is ahead is not clear at the estimated position bias."
    assert nowhere.figures["verdict"] == "unclear"


def test_relevance_that_features_hide_has_a_sentence_of_its_own() -> None:
    def steady(_: float) -> tuple[float, float, float]:
        return 1.0, 0.9, 1.1

    turning = said(steady, lambda share: (1 - share, 0.9 - share, 1.1 - share))
    assert turning.sentence.endswith(
        "It turns if features hide 1.00 times (95 % interval 0.90 to 1.10) as much relevance as they show."
    )
    assert turning.figures["turns_at_hidden"] == pytest.approx(1.0)
    assert said(steady, steady).sentence.endswith(
        "It does not turn if features hide up to 2 times as much relevance as they show."
    )


def test_heavy_weights_are_a_caution_and_others_a_few_words() -> None:
    assert pareto_clause(None, None) == ""
    assert pareto_clause(None, 0.7) == "; too few different weights for Pareto k"
    assert pareto_clause(0.3, 0.7) == "; Pareto k 0.30 (below 0.70: a few clicks do not decide)"
    assert heavy_weight_reasons(0.3, 0.7) == heavy_weight_reasons(None, 0.7) == []
    (heavy,) = heavy_weight_reasons(0.9, 0.7)
    assert heavy.severity == "caution"
    assert "0.90" in heavy.sentence
