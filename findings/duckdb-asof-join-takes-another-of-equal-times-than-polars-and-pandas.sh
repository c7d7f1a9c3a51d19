#!/usr/bin/env bash
# DuckDB 2.0.1: ASOF JOIN gives a click the last page of the same user that is not later than it. Where several are the
# last (two requests in one second, a log whose times are cut to seconds or minutes), it takes the first of them in a
# small table, and in one of many rows now one and now another. join_asof of Polars 2.1.0 and merge_asof of pandas 3.1.1
# take the last row. So the same attribution by two engines gives clicks to other pages and so to other positions, with
# no message; no clause inside an ASOF JOIN sorts equal times. Clicks and pages per user agree, so totals do not show
# it. Make times unique first (row_number() over (partition by user, time)) or join on the id of the answer.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    duckdb==2.0.1 polars==2.1.0 pandas==3.1.1 numpy==2.4.6
cd "$folder"
cat > try.py <<'PYTHON'
import warnings

warnings.simplefilter("ignore")  # of Polars: sorted by time, as it must be
import duckdb
import pandas as pd
import polars as pl

query = "SELECT clicks.user, page FROM clicks ASOF JOIN pages ON clicks.user = pages.user AND clicks.time >= pages.time"


def joined(users, pages):
    """Which page the click of each user at 35 s belongs to, by engine; pages are rows of user, time and page."""
    engine = duckdb.connect()
    engine.execute("SET threads = 1; CREATE TABLE pages (user INTEGER, time INTEGER, page INTEGER)")
    engine.execute(
        "INSERT INTO pages SELECT unnest($1), unnest($2), unnest($3)", [list(column) for column in zip(*pages)]
    )
    engine.execute(f"CREATE TABLE clicks AS SELECT range::INTEGER AS user, 35 AS time FROM range({users})")
    names = ["user", "time", "page"]
    clicks, table = {"user": range(users), "time": [35] * users}, pl.DataFrame(pages, schema=names, orient="row")
    return {
        "DuckDB": dict(engine.execute(query).fetchall()),
        "Polars": dict(pl.DataFrame(clicks).join_asof(table, on="time", by="user").select("user", "page").rows()),
        "pandas": pd.merge_asof(pd.DataFrame(clicks), pd.DataFrame(pages, columns=names), on="time", by="user")
        .set_index("user")["page"]
        .to_dict(),
    }


small = joined(1, [(0, 20, 1), (0, 30, 2), (0, 30, 3), (0, 30, 4)])
print("pages 1 at 20 s; 2, 3 and 4 at 30 s; a click at 35 s:", small)
assert small == {"DuckDB": {0: 2}, "Polars": {0: 4}, "pandas": {0: 4}}
many = joined(
    1000, [(row % 1000, row // 3000 * 10, row) for row in range(30_000)]
)  # three pages of each user at a time
others = sum(many["DuckDB"][user] != many["Polars"][user] for user in range(1000))
chosen = sorted({(many["DuckDB"][user] - user) // 1000 for user in range(1000)})
print(f"1000 users, 3 pages at each time: DuckDB has another page than Polars for {others} clicks, rows {chosen}")
assert many["Polars"] == many["pandas"] and others > 100 and set(chosen) <= {9, 10, 11}
apart = joined(1000, [(row % 1000, row // 1000, row) for row in range(30_000)])
assert apart["DuckDB"] == apart["Polars"] == apart["pandas"]
print("with a time for each page all three agree")
PYTHON
venv/bin/python try.py
