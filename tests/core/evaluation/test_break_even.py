"""How far a verdict holds, against closed forms."""

from collections.abc import Callable

import numpy as np
import pytest
from present import present

from posbias.core.evaluation.break_even import POWERS, SHARES, Bend, BreakEven, bends

Line = Callable[[float], tuple[float, float, float]]


def held(of_power: Line, of_share: Line | None = None) -> BreakEven:
    """Return the break-even of a difference whose interval is known at every bend."""
    return BreakEven.of(of_power(1.0), [*map(of_power, POWERS), *(map(of_share, SHARES) if of_share else ())])


@pytest.mark.slow
def test_lines_turn_where_they_cross_zero_and_the_set_reaches_as_far_as_their_intervals_hold_zero() -> None:
    rising = held(lambda s: (s - 0.6, s - 0.75, s - 0.5))
    assert rising.clear
    assert (rising.below.at, rising.below.first, rising.below.last) == pytest.approx((0.6, 0.5, 0.75))
    assert np.isnan([rising.above.at, rising.above.first, rising.above.last]).all()
    falling = held(lambda s: (2.2 - s, 1.8 - s, 3.5 - s))
    assert (falling.above.at, falling.above.first, falling.above.last) == pytest.approx((2.2, 1.8, 3.0))


def test_a_sign_that_turns_nowhere_may_be_clear_on_one_side_alone() -> None:
    one = held(lambda s: (s + 0.1, s - 0.2, s + 0.5))
    assert np.isnan(one.below.at)
    assert (one.below.first, one.below.last) == pytest.approx((0.0, 0.2))
    assert np.isnan([one.above.at, one.above.first]).all()
    nothing = held(lambda _: (0.0, 0.0, 0.0))
    assert np.isnan([nothing.below.first, nothing.above.last]).all()
    unknown = held(lambda _: (0.1, np.nan, np.nan))
    assert np.isnan([unknown.below.first, unknown.above.last]).all()


def test_a_verdict_that_is_not_clear_has_a_set_around_the_estimate() -> None:
    one = held(lambda s: (s - 0.9, s - 1.2, s - 0.7))
    assert not one.clear
    assert (one.below.at, one.below.first, one.below.last) == pytest.approx((0.9, 0.7, 1.2))
    assert (one.above.first, one.above.last) == pytest.approx((0.7, 1.2))


def test_hidden_relevance_turns_on_its_own_scale() -> None:
    one = held(lambda s: (s, s - 0.1, s + 0.1), lambda share: (1 - share / 1.5, 1 - share, 1 - share / 1.8))
    hidden = present(one.hidden)
    assert (hidden.at, hidden.first, hidden.last) == pytest.approx((1.5, 1.0, 1.8), abs=0.03)
    assert held(lambda s: (s, s - 0.1, s + 0.1)).hidden is None


def test_bends_leave_cells_unknown_or_without_attention_as_they_are() -> None:
    theta = np.array([1.0, 0.5, np.nan, 0.0])
    position = np.arange(1.0, 5.0)
    assert Bend().theta(theta, position).tolist()[:2] == [1.0, 0.5]
    np.testing.assert_allclose(Bend(0.0).theta(theta, position), [1, 1, np.nan, 0])
    np.testing.assert_allclose(Bend(slope=2.0).theta(theta, position), [1, 2, np.nan, 0])
    assert [bend.slope for bend in bends(0.3)][-3:] == pytest.approx([0.15, 0.3, 0.6])
    assert len(bends(0.0)) == len(POWERS)
