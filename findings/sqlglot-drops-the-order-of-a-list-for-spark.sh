#!/usr/bin/env bash
# sqlglot 30.30.0 writes list(click ORDER BY position) of DuckDB 2.0.1 as COLLECT_LIST(click) for Spark, Databricks and
# Hive: the ORDER BY inside is gone, and no message is given, though other losses are reported (IGNORE NULLS for SQLite,
# the third argument of arg_max for Spark). Nulls go as well: DuckDB's list keeps them, COLLECT_LIST leaves them out. So a
# query that makes a page's list of clicks by position runs on both engines, and on Spark the n-th value is not that of the
# n-th position; Spark documents the order of COLLECT_LIST as not determined, and it is right in every small test where
# the rows lie in order. sqlglot knows of the nulls: read as Spark, the same text is given a filter against nulls for
# DuckDB, by which the loss is shown here. ORDER BY in string_agg is carried over for Spark (LISTAGG ... WITHIN GROUP).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check sqlglot==30.30.0 duckdb==2.0.1
cd "$folder"
cat > try.py <<'PYTHON'
import logging

import duckdb
import sqlglot

messages = []
handler = logging.Handler()
handler.emit = lambda record: messages.append(record.getMessage())
logging.getLogger("sqlglot").addHandler(handler)
logging.getLogger("sqlglot").propagate = False

query = "SELECT page, list(click ORDER BY position) AS clicks FROM log GROUP BY page ORDER BY page"
rows = "(1, 3, 0), (1, 1, 1), (1, 2, NULL), (2, 2, 1), (2, 1, 0), (2, 3, 0)"  # page, position, click
duckdb.execute(f"CREATE TABLE log AS SELECT * FROM (VALUES {rows}) AS given (page, position, click)")
for dialect in ("spark", "databricks", "hive"):
    written = sqlglot.transpile(query, read="duckdb", write=dialect)[0]
    print(f"{dialect:10} {written}")
    assert "COLLECT_LIST(click)" in written and "position" not in written
assert messages == [], messages
back = sqlglot.transpile(sqlglot.transpile(query, read="duckdb", write="spark")[0], read="spark", write="duckdb")[0]
print(f"read again {back}")
given, kept = duckdb.execute(query).fetchall(), duckdb.execute(back).fetchall()
print("as it was written: ", given)
print("by way of Spark:   ", kept)
assert given == [(1, [1, None, 0]), (2, [0, 1, 0])] and kept == [(1, [0, 1]), (2, [1, 0, 0])]
joined = sqlglot.transpile("SELECT string_agg(doc, ',' ORDER BY position) FROM log", read="duckdb", write="spark")[0]
print("string_agg:        ", joined)
assert "ORDER BY position" in joined
sqlglot.transpile("SELECT last_value(click IGNORE NULLS) OVER () FROM log", read="duckdb", write="sqlite")
print("reported of others:", messages)
assert messages == ["SQLite does not support IGNORE NULLS."]
PYTHON
venv/bin/python try.py
