#!/usr/bin/env bash
# DuckDB 2.0.1: read_json takes a column of texts for UUIDs where all look like them, and a UUID is written in small
# letters. So an id of capital letters (as .NET, SQL Server and many trackers write them) is another text than the same
# id read from NDJSON by Polars 2.1.0, or from CSV by DuckDB itself, and a join of the two finds no row, with no message.
# A single other id in the sample ("none") keeps all as they stand: the same job joins or not by what a day holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check duckdb==2.0.1 polars==2.1.0 pyarrow==26.0.1
cd "$folder"
cat > try.py <<'PYTHON'
import json
from pathlib import Path

import duckdb
import polars as pl

ids = ["550E8400-E29B-41D4-A716-446655440000", "6FA459EA-EE8A-3CA4-894E-DB77E160355E"]


def write(name, values):
    Path(f"{name}.ndjson").write_text("".join(json.dumps({"doc": value}) + "\n" for value in values))
    Path(f"{name}.csv").write_text("doc\n" + "".join(value + "\n" for value in values))


write("log", ids)
write("mixed", [*ids, "none"])
by_json = duckdb.sql("select doc from read_json('log.ndjson')").pl()
by_csv = duckdb.sql("select doc from read_csv('log.csv')").pl()
by_polars = pl.read_ndjson("log.ndjson")
mixed = duckdb.sql("select doc from read_json('mixed.ndjson')").pl()
joined = by_polars.join(by_json, on="doc").height
print("in the file:   ", ids)
print("DuckDB, JSON:  ", by_json["doc"].to_list())
print("DuckDB, CSV:   ", by_csv["doc"].to_list())
print("Polars, JSON:  ", by_polars["doc"].to_list())
print("with one more: ", mixed["doc"].to_list())
print("rows that Polars and DuckDB share:", joined, "of 2")
assert by_json["doc"].to_list() == [value.lower() for value in ids]
assert by_csv["doc"].to_list() == by_polars["doc"].to_list() == ids
assert mixed["doc"].to_list() == [*ids, "none"]
assert joined == 0
PYTHON
venv/bin/python try.py
