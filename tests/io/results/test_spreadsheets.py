"""CSV for people: no cell of text is a formula to a spreadsheet, and numbers stay numbers. Trainers' CSV is exact."""

import csv
from pathlib import Path

import polars as pl
import pytest
from command_results import Run

from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.results.tables import as_spreadsheet_columns, write_attractiveness_csv, write_small_table

FORMULAS = [
    "=1+1",
    "+1",
    "-5",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    " =1",
    "\x00=1",
    "\uff1d1+1",
    '=HYPERLINK("http://127.0.0.1","x")',
    "shoes;=1+1",
    "shoes\n-1",
    "=1;=1",
    "shoes; =1",
]
PLAIN = ["shoes", "'=1", "a=b", "1-5", "joe@x", "", "a;b", "größer"]


def cells_by(text: str, separator: str) -> list[str]:
    """The cells that a spreadsheet finds."""
    return [cell for row in csv.reader(text.splitlines(), delimiter=separator) for cell in row]


def is_formula(cell: str) -> bool:
    """Whether a spreadsheet computes it."""
    inner = cell.lstrip("".join(map(chr, range(33))))
    return inner.startswith(("=", "+", "-", "@", *"\uff1d\uff0b\uff0d\uff20"))


@pytest.mark.parametrize("text", FORMULAS)
@pytest.mark.parametrize("dtype", [pl.String, pl.Categorical, pl.Enum(FORMULAS)])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_no_cell_of_text_is_a_formula(text: str, dtype: type[pl.DataType], separator: str) -> None:
    rows = pl.LazyFrame({"query": pl.Series([text], dtype=pl.String).cast(dtype), "clicks": [1]})
    written = as_spreadsheet_columns(rows).collect().write_csv()

    assert not any(map(is_formula, cells_by(written, separator)))
    assert as_spreadsheet_columns(rows).collect()["query"][0].replace("'", "") == text.replace("'", "")


@pytest.mark.parametrize("name", FORMULAS)
def test_no_header_is_a_formula(name: str) -> None:
    written = as_spreadsheet_columns(pl.LazyFrame({name: ["x"]})).collect()

    assert not is_formula(written.columns[0])
    assert written.columns[0].replace("'", "") == name


@pytest.mark.parametrize("text", PLAIN)
def test_other_text_stays_as_it_is(text: str) -> None:
    rows = pl.DataFrame({"query": [text, None]})

    assert as_spreadsheet_columns(rows.lazy()).collect().equals(rows)


def test_numbers_stay_numbers(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {"position": [1, -2], "ci_low": [-0.5, 1e-9], "reason": [None, "-"], "identified": [True, False]}
    )
    write_small_table(table, tmp_path, "propensities", csv=True)

    read = pl.read_csv(tmp_path / "propensities.csv")
    assert read["position"].to_list() == [1, -2]
    assert read["ci_low"].to_list() == [-0.5, 1e-9]
    assert read["reason"].to_list() == [None, "'-"]
    assert pl.read_parquet(tmp_path / "propensities.parquet").equals(table)


def test_keys_of_several_columns_are_written_too(tmp_path: Path) -> None:
    pl.DataFrame({"query": [{"a": "=1", "b": -1}], "doc": ["=2"]}).write_parquet(tmp_path / "attractiveness.parquet")
    write_attractiveness_csv(tmp_path)

    assert (tmp_path / "attractiveness.csv").read_text() == 'query,doc\n"{""a"":""=1"",""b"":-1}",\'=2\n'


def test_a_log_of_formulas_gives_tables_without_and_training_files_to_the_letter(
    tmp_path: Path, run_in_process: Run
) -> None:
    log = simulate(SimulationOptions(n_sessions=200, n_queries=4, docs_per_query=4, n_positions=3, seed=3)).log
    texts = [("=cmd|'/c calc'!A1" + pl.col(name).cast(pl.String)).alias(name) for name in ("query", "doc")]
    device = pl.when(pl.col("session") % 2 == 0).then(pl.lit("@app")).otherwise(pl.lit("-web"))
    log.with_columns(*texts, device.alias("+device")).write_parquet(tmp_path / "log.parquet")
    run_in_process(
        *("run", "log.parquet", "--context", "+device", "--csv", "--format", "csv", "-o", "out"), code=(0, 1)
    )

    for name in ("propensities", "attractiveness"):
        parquet = pl.read_parquet(tmp_path / "out" / f"{name}.parquet")
        table = pl.read_csv(tmp_path / "out" / f"{name}.csv")
        numbers = [column for column, dtype in parquet.schema.items() if dtype.is_numeric()]
        texts_of = [column for column in table.columns if table[column].dtype == pl.String]
        assert table.select(numbers).cast(pl.Float64).equals(parquet.select(numbers).cast(pl.Float64))
        assert not any(is_formula(cell or "") for column in texts_of for cell in [column, *table[column]])
        assert table.height == parquet.height
    assert "'+device" in pl.read_csv(tmp_path / "out" / "propensities.csv").columns
    trained = pl.read_csv(next((tmp_path / "out" / "training" / "rows").glob("part-*.csv")))
    assert set(trained["query"]) == {f"=cmd|'/c calc'!A1{number}" for number in range(4)}
