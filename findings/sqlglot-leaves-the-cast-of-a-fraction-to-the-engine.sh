#!/usr/bin/env bash
# sqlglot 30.30.0 writes CAST(x AS INT) of DuckDB as the same cast for SQLite (and Spark, ClickHouse, Snowflake, BigQuery),
# although the engines do not agree what it does to a fraction: DuckDB 2.0.1 rounds 2.7 to 3 (and 2.5 to 2),
# SQLite cuts to 2, as Spark and ClickHouse document. Other differences of the same kind are translated (integer division,
# GREATEST with NULL for SQLite and Snowflake), so one trusts it; a query that makes a slot or a page of a position by
# CAST(position / 10.0 AS INT) counts other cells on the other engine, with no message.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check sqlglot==30.30.0 duckdb==2.0.1
cd "$folder"
cat > try.py <<'PYTHON'
import sqlite3

import duckdb
import sqlglot

query = "SELECT CAST(position / 10.0 AS INT) AS page, COUNT(*) AS n FROM log GROUP BY 1 ORDER BY 1"
values = "INSERT INTO log VALUES " + ", ".join(f"({position})" for position in range(1, 31))
here, there = duckdb.connect(), sqlite3.connect(":memory:")
for connection in (here, there):
    connection.execute("CREATE TABLE log (position INTEGER)")
    connection.execute(values)
translated = sqlglot.transpile(query, read="duckdb", write="sqlite")[0]
counts = {"DuckDB": here.execute(query).fetchall(), "SQLite": there.execute(translated).fetchall()}
print("translated:", translated)
for engine, rows in counts.items():
    print(engine, rows)
divided = sqlglot.transpile("SELECT 7 // 2, 7 / 2", read="duckdb", write="sqlite")[0]
print("integer division is translated:", divided)
for dialect in ("sqlite", "spark", "clickhouse"):
    cast = sqlglot.transpile("SELECT CAST(2.7 AS INT)", read="duckdb", write=dialect)[0]
    assert "ROUND" not in cast.upper(), cast
assert counts["DuckDB"] == [(0, 5), (1, 9), (2, 11), (3, 5)], counts["DuckDB"]
assert counts["SQLite"] == [(0, 9), (1, 10), (2, 10), (3, 1)], counts["SQLite"]
assert divided != "SELECT 7 // 2, 7 / 2"
PYTHON
venv/bin/python try.py
