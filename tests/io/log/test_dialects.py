"""Text files that are written in other ways: each is read as its plain twin, and its options are found."""

import gzip
import json
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from small_logs import LOG_OF_TEXTS as LOG

from posbias.core.errors import LogFormatError, UsageError
from posbias.core.log.impressions import PLAIN_TEXT, ReadingRules, TextValues, check_timestamp_format
from posbias.core.schema import Roles
from posbias.io.forms.recognition import find_dialects
from posbias.io.log.click_log import LogRequest, open_log
from posbias.io.log.lists import find_click_words, find_timestamp_format
from posbias.io.log.scan import resolve_quotes
from posbias.io.log.sources import PLAIN, Dialect, find_sources, read_columns, read_encoding, read_separator
from posbias.io.log.text import find_log_files
from posbias.io.places.object_stores import copies_below

WITH_WEIGHTS = Roles(weight="copies")


@pytest.fixture(autouse=True)
def copies(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Keep copies for as long as a test runs."""
    with copies_below(tmp_path_factory.mktemp("copies")):
        yield


def read(path: Path, dialect: Dialect = PLAIN, values: TextValues = PLAIN_TEXT) -> pl.DataFrame:
    """The canonical impressions of a file."""
    request = LogRequest((str(path),), WITH_WEIGHTS, ReadingRules(values=values), dialect=dialect)
    log = open_log(request)
    return replace(log, sources=resolve_quotes(log.sources)[0]).impressions.collect()


def test_an_array_with_line_breaks_and_braces_in_its_text_is_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posbias.io.log.text._PIECE", 7)
    odd = LOG.with_columns(query=pl.col("query") + ' },{"x\\')
    odd.write_csv(tmp_path / "plain.csv")
    rows = [json.dumps(row, indent=1, ensure_ascii=False) for row in odd.to_dicts()]
    (tmp_path / "log.json").write_text(f" [ {' ,'.join(rows)}\r\n]\n", encoding="utf-8")

    assert_frame_equal(read(tmp_path / "log.json"), read(tmp_path / "plain.csv"))


def test_text_is_transcoded_in_pieces_that_may_end_within_a_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posbias.io.log.text._PIECE", 3)
    (tmp_path / "log.csv").write_bytes(LOG.write_csv().encode("utf-16"))
    LOG.write_csv(tmp_path / "plain.csv")

    assert_frame_equal(read(tmp_path / "log.csv", Dialect(encoding="utf-16")), read(tmp_path / "plain.csv"))


def test_a_point_is_no_fraction_where_a_comma_is_one() -> None:
    texts = pl.DataFrame({"text": ["1,5", "1.5", "1.234,5", " -2,25 ", "3", "x"]})

    assert texts.select(
        TextValues(decimal_comma=True).number(pl.col("text").str.strip_chars())
    ).to_series().to_list() == [*(1.5, None, None, -2.25, 3.0, None)]


def test_counts_may_have_marks_between_thousands_and_a_comma_that_could_be_either_is_refused() -> None:
    texts = pl.DataFrame({"text": ["2,000", "1,234,567", "12'000", "3\u202f000", "1.234", "0,500", "12,34", "7"]})
    read = [texts.select(TextValues(comma).count(pl.col("text"))).to_series().to_list() for comma in (False, True)]

    assert read[0] == [2000, 1234567, 12000, 3000, 1.234, None, None, 7]
    assert read[1] == [None, None, 12000, 3000, 1234, 0.5, 12.34, 7]


@pytest.mark.parametrize(("mark", "options"), [(",", []), (".", ["--decimal", ","])])
def test_marks_before_three_digits_beside_numbers_without_are_between_thousands(
    tmp_path: Path, mark: str, options: list[str]
) -> None:
    counts = [f"{n:,}".replace(",", mark) for n in range(700, 1300)]
    pl.DataFrame({"doc": "d", "impressions": counts}).write_csv(tmp_path / "log.csv")

    (finding,) = find_dialects(find_sources([str(tmp_path / "log.csv")]))
    assert ("between thousands" in finding.text, list(finding.options)) == (True, options)


def test_words_of_a_click_column_go_before_what_numbers_mean(tmp_path: Path) -> None:
    written = LOG.with_columns(click=pl.when(pl.col("click") == "1").then(pl.lit(" Ja")).otherwise(pl.lit("2")))
    written.write_csv(tmp_path / "words.csv")
    LOG.write_csv(tmp_path / "plain.csv")

    assert_frame_equal(
        read(tmp_path / "words.csv", values=TextValues(true=("ja",), false=("2",))), read(tmp_path / "plain.csv")
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'[{"a": 1}, {"a": 2}', "damaged or truncated"),
        (b'[{"a": 1} {"a": 2}]', "',' is expected"),
        (b'[{"a": 1}, 5]', "row 2"),
        (b'[{"a": 1}, {"a": ]', "damaged or truncated"),
        (b'[{"a": 1}] trailing', "the end of the array is followed by"),
        (b'[{"a": 1},]', "is expected"),
        (b'[{"a": "\xe9"}]', "--encoding"),
        (b'[{"a": 1}, {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]", "row 2 of the JSON cannot be read"),
    ],
    ids=["cut", "no comma", "no object", "no value", "more", "comma", "bytes", "deep"],
)
def test_an_array_that_is_none_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "log.json").write_bytes(content)

    with pytest.raises(LogFormatError, match=said):
        find_log_files([str(tmp_path / "log.json")])


def test_an_array_may_hold_a_number_of_any_length(tmp_path: Path) -> None:
    digits = "9" * 5000
    (tmp_path / "log.json").write_text(f'[{{"a": {digits}}}]', encoding="utf-8")
    (found,) = find_log_files([str(tmp_path / "log.json")])

    assert found.copy is not None
    assert found.copy.read_text(encoding="utf-8") == f'{{"a": {digits}}}\n'


@pytest.mark.parametrize(
    ("content", "encoding", "said"),
    [
        ("a,é\n1,2\n".encode("latin-1"), "utf-8-sig", "is not utf-8: near line 1"),
        (b"a,b\n" * 9 + b"\x81\n", "cp1252", "near line 10"),
        ("a,b\n".encode("utf-16-le"), "cp1252", "zero byte"),
        (b"a,b\n1,2\n", "utf-16", "is not utf-16"),
        ("a,b\n".encode("utf-16"), None, "--encoding utf-16"),
        ("a,b\n".encode("utf-16-le"), None, "--encoding utf-16-le"),
        (gzip.compress(b"a,b\n" * 999, mtime=0)[:-9], "cp1252", "ends too early"),
    ],
)
def test_bytes_of_another_encoding_are_refused(tmp_path: Path, content: bytes, encoding: str | None, said: str) -> None:
    (tmp_path / "log.csv").write_bytes(content)

    with pytest.raises(LogFormatError, match=said):
        find_log_files([str(tmp_path / "log.csv")], Dialect(encoding=encoding))


REFUSED: dict[str, tuple[Callable[[Any], object], list[str | None]]] = {
    "--separator": (read_separator, ["", ";;", "x", '"', "\n", "§"]),
    "--encoding": (read_encoding, ["nonsense", "base64", "rot13", "", "a\0b"]),
    "--columns": (partial(read_columns, header=False), [None, "a,,b", "a,a", ","]),
    "--timestamp-format": (check_timestamp_format, ["%H:%M", "%Y", "garbage", "%Q", "%d.%m.%Y %H", "%m/%d"]),
}


@pytest.mark.parametrize(("option", "text"), [(option, text) for option in REFUSED for text in REFUSED[option][1]])
def test_a_value_that_cannot_be_is_refused(option: str, text: str | None) -> None:
    with pytest.raises(UsageError, match=option):
        REFUSED[option][0](text)


def test_times_with_a_zone_are_those_of_utc() -> None:
    texts = pl.DataFrame({"text": ["31/Jan/2026:23:30:00 -0200", None, "x"]})
    form = "%d/%b/%Y:%H:%M:%S %z"
    check_timestamp_format(form)

    days = texts.select(TextValues(timestamp_format=form).time(pl.col("text")).dt.strftime("%F %R")).to_series()
    assert days.to_list() == ["2026-02-01 01:30", None, None]


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (["yes", "No", None, "yes "], ("--true", "yes", "--false", "no")),
        (["Ja", "nein"], ("--true", "ja", "--false", "nein")),
        (["oui", "non"], ("--true", "oui", "--false", "non")),
        (["sim", "nao"], ("--true", "sim", "--false", "nao")),
        (["clicked", None], ("--true", "clicked")),
        (["0", "1", "true"], None),
        (["yes", "maybe"], None),
        (["yes", "nein"], None),
        ([None, ""], None),
    ],
)
def test_words_of_clicks_are_found(values: list[str | None], options: tuple[str, ...] | None) -> None:
    found = find_click_words(values)
    assert (found and found.options) == options


@pytest.mark.parametrize(
    ("values", "form", "certain"),
    [
        (["31.01.2026 13:00", "01.02.2026 00:00"], "%d.%m.%Y %H:%M", True),
        (["01/31/2026 13:00"], "%m/%d/%Y %H:%M", True),
        (["31/01/2026"], "%d/%m/%Y", True),
        (["01/02/2026", "03/04/2026"], "%d/%m/%Y", False),
        (["01/31/2026 01:00 PM"], "%m/%d/%Y %I:%M %p", True),
        (["31/01/2026", "01/31/2026"], None, True),
        (["Sat, 31 Jan 2026 13:00:05 GMT"], "%a, %d %b %Y %H:%M:%S GMT", True),
        (["20260131T130005Z"], "%Y%m%dT%H%M%SZ", True),
        (["soon"], None, True),
        ([], None, True),
    ],
)
def test_forms_of_times_are_found_and_never_guessed(values: list[str], form: str | None, certain: bool) -> None:  # noqa: FBT001
    found = find_timestamp_format(values)
    if form is None:
        assert found is None
        return
    assert found is not None
    assert (found.options, found.certain) == (("--timestamp-format", form), certain)
    assert certain or "%m/%d/%Y" in found.text
