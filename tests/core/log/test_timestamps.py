"""Numbers as days: one unit for a whole column, recognised by a sample."""

from datetime import UTC, date, datetime

import polars as pl
import pytest
from present import present

from posbias.core.log.impressions import TIME_UNITS, time_unit_of

DAY = date(2026, 1, 5)
SAME_TIME = {
    "yyyymmdd": 20260105,
    "yyyymmddhh": 2026010512,
    "yyyymmddhhmm": 202601051230,
    "yyyymmddhhmmss": 20260105123059,
    "yyyymmddhhmmssfff": 20260105123059250,
    "days since 1970": 20458,
    "seconds since 1970": 1767616259,
    "milliseconds since 1970": 1767616259250,
    "microseconds since 1970": 1767616259250000,
    "nanoseconds since 1970": 1767616259250000000,
}


def days(values: list[int], unit_of: list[int]) -> list[date | None]:
    """The days of values in the unit of others."""
    unit = present(time_unit_of(pl.Series(unit_of)))
    return pl.select(unit.day(pl.lit(pl.Series(values)))).to_series().to_list()


def test_every_unit_is_known_here() -> None:
    assert list(SAME_TIME) == [unit.words for unit in TIME_UNITS]


@pytest.mark.parametrize("words", SAME_TIME)
def test_one_number_tells_its_unit_and_its_day(words: str) -> None:
    assert present(time_unit_of(pl.Series([SAME_TIME[words]]))).words == words
    assert days([SAME_TIME[words]], [SAME_TIME[words]]) == [DAY]


@pytest.mark.parametrize("words", SAME_TIME)
def test_a_number_of_another_unit_is_no_day(words: str) -> None:
    others = [number for name, number in SAME_TIME.items() if name != words]
    if words == "seconds since 1970":
        others.remove(SAME_TIME["yyyymmddhh"])  # a second of 2034, which a log of seconds may well hold

    assert days(others, [SAME_TIME[words]]) == [None] * len(others)


@pytest.mark.parametrize("number", [0, -1, 1, 86_400, 7, 46027, 491_000, 29_459_520, 99_999_999, 10**18 * 9])
def test_a_number_that_is_a_day_of_no_log_has_no_unit(number: int) -> None:
    assert time_unit_of(pl.Series([number])) is None


def test_the_unit_is_that_of_most() -> None:
    seconds = [1767571200 + 3600 * hour for hour in range(20)]

    assert days([*seconds, 20260105], [20260105, *seconds])[-1] is None


def test_seconds_of_the_years_in_which_they_look_like_hours_are_still_seconds() -> None:
    start = int(datetime(2034, 3, 14, tzinfo=UTC).timestamp())

    assert (
        present(time_unit_of(pl.Series([start + 7 * number for number in range(1000)]))).words == "seconds since 1970"
    )


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("yyyymmdd", 20260230),
        ("yyyymmddhh", 2026010524),
        ("yyyymmddhhmm", 202601051260),
        ("yyyymmddhhmmss", 20260105126000),
        ("yyyymmddhhmmss", 20260105123060),
    ],
)
def test_written_days_hours_and_minutes_must_be_some(words: str, number: int) -> None:
    assert days([number], [SAME_TIME[words]]) == [None]
