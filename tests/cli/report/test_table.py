"""Printed tables at any width: nothing is cut, and what is left out is said."""

import io

import polars as pl
import pytest
from rich.console import Console

from posbias.cli.report import printing
from posbias.cli.report.printing import Drawing, markdown, renderable
from posbias.io.jobs.tables import Column, PrintedTable

TABLE = PrintedTable(
    (
        Column("position", ("1", "10"), folded="posi-\ntion", label=True),
        Column("impressions", ("1,234,567", "32,800"), folded="impres-\nsions"),
        Column("clicks", ("234,567", "1,833")),
        Column("propensity", ("1.000", "0.218"), folded="propen-\nsity"),
        Column("95 % interval", ("1.000 - 1.000", "0.207 - 0.229"), folded="95 %\ninterval", beside=True),
        Column("joint EM", ("1.000", "0.196"), spare=2),
        Column("linking\nclicks", ("48,774", "30,336"), spare=1),
    )
)
NEEDED = [cell for column in TABLE.columns if not column.spare for cell in column.cells]


def drawn(content: PrintedTable | Drawing, width: int, encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding)
    Console(file=file, width=width).print(
        renderable(content) if isinstance(content, PrintedTable) else content, crop=False
    )
    file.seek(0)
    return file.read()


@pytest.mark.parametrize("width", [32, 33, 40, 47, 55, 64, 72, 79, 80, 81, 100, 500])
def test_counts_and_intervals_are_whole_at_any_width_and_lines_fit(width: int) -> None:
    text = drawn(TABLE, width)

    assert [cell for cell in NEEDED if cell not in text] == []
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text


@pytest.mark.parametrize(
    ("width", "absent"),
    [(120, ""), (80, ""), (64, "joint EM"), (54, "joint EM, linking clicks"), (50, "joint EM, linking clicks")],
)
def test_what_a_reader_needs_last_goes_first_and_is_named(width: int, absent: str) -> None:
    text = drawn(TABLE, width)

    assert ("no room here for: " in text) == bool(absent)
    assert absent in text
    assert ("0.196" in text) == ("joint EM" not in absent)
    assert ("30,336" in text) == ("linking clicks" not in absent)


def test_an_interval_stands_beside_its_value_with_the_label_of_its_row() -> None:
    lines = drawn(TABLE, 40).splitlines()

    assert any(line.split() == ["10", "0.218", "0.207", "-", "0.229"] for line in lines)
    assert any(line.split() == ["10", "32,800", "1,833"] for line in lines)


def test_a_long_name_is_folded_and_not_cut() -> None:
    table = PrintedTable((Column("ranking", ("n" * 200,), label=True, text=True), Column("value", ("0.1234",))))
    text = drawn(table, 40)

    assert text.count("n") == 200 + len("ranking".replace("ra", "").replace("ki", "").replace("g", ""))
    assert max(map(len, text.splitlines())) <= 40


def test_a_name_acts_neither_on_a_terminal_nor_in_markdown() -> None:
    table = PrintedTable((Column("ranking", ("\x1b[31m|<b>\n*x*",), label=True, text=True),))

    assert r"\x1b[31m|<b>\n*x*" in drawn(table, 80)
    assert r"| \\x1b\[31m\|\<b\>\\n\*x\* |" in markdown([table], details=False)


# --- the curve --------------------------------------------------------------------------------------------------


def curve(propensities: list[float | None], low: list[float | None], high: list[float | None]) -> Drawing:
    """The curve of positions from 1."""
    ends = {"ci_low": low, "ci_high": high}
    position = range(1, len(propensities) + 1)
    return printing.curve(pl.DataFrame({"position": position, "propensity": propensities, **ends}), ["position"])


CURVE = curve([1.0, 0.5, 0.4, None, None], [1.0, 0.3, 0.2, None, None], [1.0, 0.9, 80.0, 0.5, None])


@pytest.mark.parametrize("width", [30, 50, 80, 120])
def test_a_curve_fits_and_says_what_is_wide_and_what_is_not_known(width: int) -> None:
    lines = [line.rstrip() for line in drawn(CURVE, width).splitlines()]

    assert max(map(len, lines)) <= width
    assert len(lines) == 6
    assert lines[3].endswith("→")
    assert "●" not in lines[4]
    assert lines[4].endswith("┤")
    assert lines[5] == "       5  not identified"


def test_a_terminal_without_unicode_has_signs_of_ascii() -> None:
    assert drawn(CURVE, 60, "ascii").isascii()


def test_a_curve_of_many_cells_says_how_many_are_not_drawn() -> None:
    many = curve([0.5] * 1000, [0.4] * 1000, [0.6] * 1000)

    assert "970 more cells" in drawn(many, 80)


@pytest.mark.parametrize("value", [1e-30, 1e-3, 7.0, 1e30])
def test_the_axis_ends_beyond_the_largest_propensity(value: float) -> None:
    text = drawn(curve([value], [value], [value]), 80)

    assert "●" in text
    assert "0" in text.splitlines()[0]
