"""Options said as words are the same options again."""

import dataclasses
from pathlib import Path

import pytest

from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.options import CountingOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.options.words import values_of, with_words, words_of

COLUMNS = ColumnOptions(
    session=["visit", "-query time"], doc=["a b"], position="slot", randomized_where=["p=random@1,5"]
)
READING = ReadingOptions(
    clicks=["clicks.csv"],
    position_base="-1",
    click_counts=True,
    max_bad_rows=0.25,
    temp_dir=Path("scratch"),
    null_click="0",
)
COUNTING = CountingOptions(model="ubm", max_position=7, period="day")


@pytest.mark.parametrize("group", [COLUMNS, READING, COUNTING, ReadingOptions()])
def test_words_say_what_options_are_set_to(group: ColumnOptions | ReadingOptions | CountingOptions) -> None:
    words = words_of(values_of(group))

    assert with_words(type(group)(), words) == group


def test_defaults_need_no_words() -> None:
    assert words_of(values_of(ColumnOptions(), ReadingOptions(), CountingOptions())) == []


def test_words_of_other_groups_are_passed_over_and_what_is_said_last_counts() -> None:
    words = ["--doc", "sku", "--click-counts", "--position-base=-1", "--model", "ubm"]

    assert with_words(ColumnOptions(doc=["id"], query=["q"]), words) == ColumnOptions(doc=["sku"], query=["q"])
    assert with_words(ReadingOptions(), words) == ReadingOptions(click_counts=True, position_base="-1")
    assert dataclasses.asdict(with_words(CountingOptions(), words))["model"] == "ubm"
