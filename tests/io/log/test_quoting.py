"""Quotes in text files mark fields or are letters; whatever they are, no line is swallowed in silence."""

import gzip
from pathlib import Path

import polars as pl
import pytest
from command_results import Refused, Run

HEADER = ["session", "query", "doc", "position", "click", "note"]
N_SESSIONS, N_POSITIONS = 40, 3


def rows(queries: tuple[str, str] = ("a", "b"), note: str = "") -> list[list[str]]:
    """Rows of a small log of two queries, which take turns."""
    return [
        [
            f"s{session}",
            queries[session % 2],
            f"d{(session // 2 + position) % N_POSITIONS}",
            str(position),
            str(int((session * 7 + position * 3) % (position + 2) == 0)),
            note if session == 4 and position == 2 else "",
        ]
        for session in range(N_SESSIONS)
        for position in range(1, N_POSITIONS + 1)
    ]


def text(ending: str, lines: list[list[str]], end: str = "\n") -> str:
    """Fields as they are, with what stands between them."""
    separator = "\t" if ending.startswith("tsv") else ","
    return end.join(separator.join(line) for line in lines) + end


def write(path: Path, content: str) -> None:
    """Write text, compressed if the name says so."""
    raw = content.encode()
    if path.suffix == ".zst":
        with path.open("wb") as file:
            pl.DataFrame({"line": content.rstrip("\n").split("\n")}).lazy().sink_csv(
                file, include_header=False, quote_style="never", compression="zstd"
            )
        return
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def counted(run: Run, folder: Path, *names: str) -> tuple[pl.DataFrame, str]:
    """What was counted, and what was said."""
    done = run("collect", *names, "-o", "out", "--force", code=(0, 1))
    return pl.read_parquet(folder / "out" / "part-*.parquet"), done.stderr


@pytest.mark.parametrize("ending", ["tsv", "tsv.gz", "tsv.zst"])
@pytest.mark.parametrize(
    "queries",
    [
        ('"nike', "adidas"),  # nothing closes it: to the end of the file, or to the same query further down
        ('"nike', '"adidas'),
        ('"nike', 'adidas"'),  # one closes the other, as if lines between were part of a field
        ('5" tv', "6 tv"),
        ('5" by 6" tv', "tv"),
        ('"nike" shoe', "nike"),
        ('""nike""', "nike"),
    ],
    ids=str,
)
@pytest.mark.slow_after(3)
def test_quotes_that_mark_no_field_of_tsv_are_letters(
    run_in_process: Run, tmp_path: Path, queries: tuple[str, str], ending: str
) -> None:
    write(tmp_path / f"log.{ending}", text(ending, [HEADER, *rows(queries)]))

    pairs, said = counted(run_in_process, tmp_path, f"log.{ending}")

    assert pairs["impressions"].sum() == N_SESSIONS * N_POSITIONS
    assert set(pairs["query"]) == set(queries)
    assert f"log.{ending} line" in said
    assert "quotes in TSV are read as letters" in said


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (('"nike"', '"adidas"'), ("nike", "adidas")),
        (('"5"" tv"', "tv"), ('5" tv', "tv")),
        (('"""nike"', "tv"), ('"nike', "tv")),
        (('"two\nlines"', "tv"), ("two\nlines", "tv")),
        (('"three\n""quoted""\n\nlines"', "tv"), ('three\n"quoted"\n\nlines', "tv")),
        (('"a\tb"', '"a,b"'), ("a\tb", "a,b")),
    ],
    ids=str,
)
@pytest.mark.slow_after(2)
def test_quotes_that_mark_fields_are_no_part_of_them(
    run_in_process: Run, tmp_path: Path, written: tuple[str, str], meant: tuple[str, str], ending: str, end: str
) -> None:
    write(tmp_path / f"log.{ending}", text(ending, [HEADER, *rows(written)], end))

    pairs, said = counted(run_in_process, tmp_path, f"log.{ending}")

    assert pairs["impressions"].sum() == N_SESSIONS * N_POSITIONS
    assert set(pairs["query"]) == set(meant)
    assert "quotes" not in said


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "csv.zst"])
@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("query", ('"nike', "adidas")),
        ("query", ('"nike', '"adidas')),
        ("query", ('"nike', 'adidas"')),
        ("query", ('5" tv', "tv")),
        ("note", '"open'),  # a column that is not read, too
        ("note", 'in" between'),
    ],
    ids=str,
)
def test_quotes_of_csv_that_would_swallow_lines_are_refused_with_file_and_line(
    refused: Refused, tmp_path: Path, column: str, values: str | tuple[str, str], ending: str
) -> None:
    broken = rows(note=values) if isinstance(values, str) else rows(values)
    write(tmp_path / f"log.{ending}", text(ending, [HEADER, *broken]))
    line = 2 if column == "query" else 2 + 4 * N_POSITIONS + 1

    assert f"log.{ending} line {line}: a quote is opened" in refused("fit", f"log.{ending}")


def test_a_field_of_a_column_that_is_not_read_may_have_several_lines(run_in_process: Run, tmp_path: Path) -> None:
    note = '"Dear all,\nthis ""note"" has commas, and\nthree lines"'
    write(tmp_path / "log.csv", text("csv", [HEADER, *rows(note=note)]))

    pairs, _ = counted(run_in_process, tmp_path, "log.csv")

    assert pairs["impressions"].sum() == N_SESSIONS * N_POSITIONS


def test_all_files_of_tsv_are_read_in_one_way(run_in_process: Run, tmp_path: Path) -> None:
    days = [rows(('"nike air"', "b")), rows(('"nike air"', '"b'))]
    for number, day in enumerate(days):
        named = [[f"{number}{session}", *rest] for session, *rest in day]
        write(tmp_path / f"{number}.tsv", text("tsv", [HEADER, *named]))

    pairs, said = counted(run_in_process, tmp_path, "0.tsv", "1.tsv")

    assert set(pairs["query"]) == {'"nike air"', "b", '"b'}
    assert "1.tsv line 5" in said


def test_a_tsv_whose_header_is_quoted_is_quoted(run_in_process: Run, tmp_path: Path) -> None:
    quoted = [[f'"{field}"' for field in line] for line in [HEADER, *rows()]]
    write(tmp_path / "log.tsv", text("tsv", quoted))
    assert set(counted(run_in_process, tmp_path, "log.tsv")[0]["query"]) == {"a", "b"}

    quoted[5][1] = '"a'
    write(tmp_path / "log.tsv", text("tsv", quoted))
    done = run_in_process("fit", "log.tsv", "-o", "broken", code=2)

    assert "log.tsv line 6: a quote is opened" in done.stderr


def test_clicks_and_features_are_looked_at_too(run_in_process: Run, tmp_path: Path) -> None:
    write(tmp_path / "log.csv", text("csv", [HEADER, *rows()]))
    clicks = [["session", "doc", "why"], *([line[0], line[2], '"x'] for line in rows() if line[4] == "1")]
    write(tmp_path / "clicks.csv", text("csv", clicks))
    prices = [["doc", "price", "brand"], *([f"d{number}", "1", '"x'] for number in range(N_POSITIONS))]
    write(tmp_path / "prices.csv", text("csv", prices))

    for words in (("fit", "log.csv", "--clicks", "clicks.csv"), ("run", "log.csv", "--features", "prices.csv")):
        done = run_in_process(*words, "-o", "out", code=2)
        assert f"{words[-1]} line 2: a quote is opened" in done.stderr
