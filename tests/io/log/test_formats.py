"""One log in every form that it may come in: the same counts, ids as they came."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command_results import Output, Posbias, invoke

TOLERANCE = 1e-12
Write = Callable[[pl.DataFrame, Path], None]
WRITERS: dict[str, Callable[[pl.DataFrame, Path], object]] = {
    ".parquet": lambda frame, path: frame.write_parquet(path),
    ".csv": lambda frame, path: frame.write_csv(path),
    ".csv.gz": lambda frame, path: frame.lazy().sink_csv(path, compression="gzip"),
    ".ndjson": lambda frame, path: frame.write_ndjson(path),
    ".arrow": lambda frame, path: frame.write_ipc(path),
}


def as_text(frame: pl.DataFrame) -> pl.DataFrame:
    """The pairs under text names, in one order."""
    return frame.with_columns(pl.col("query", "doc").cast(pl.String)).sort(pl.all())


def assert_same(found: Output, expected: Output) -> None:
    """The same impressions and clicks of every pair in every cell, of which all estimates are made."""
    assert as_text(found.statistics).equals(as_text(expected.statistics))


@pytest.fixture(scope="module")
def expected(log: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Output:
    """Return the statistics of the log as one Parquet file."""
    folder = tmp_path_factory.mktemp("expected")
    log.write_parquet(folder / "log.parquet")
    invoke("collect", folder / "log.parquet", "-o", folder / "counts", code=(0, 1))
    return Output(folder / "counts")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Return an empty directory."""
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("model", "ending"),
    [("pbm", ".parquet"), ("ubm", ".parquet"), ("ubm", ".csv.gz"), ("ubm", ".ndjson"), ("pbm", ".arrow")],
)
@pytest.mark.slow_after(1)
def test_rows_in_any_order_over_any_number_of_files_give_the_same_result(
    model: str, ending: str, log: pl.DataFrame, logs: Path, posbias: Posbias, tmp_path: Path
) -> None:
    log.write_parquet(tmp_path / "log.parquet")
    shuffled = log.sample(fraction=1.0, shuffle=True, seed=5)
    for number, (first, length) in enumerate([(0, 1), (1, 700), (701, log.height)]):
        WRITERS[ending](shuffled.slice(first, length), logs / f"part-{number}{ending}")

    whole = posbias("collect", tmp_path / "log.parquet", "--model", model)
    assert_same(posbias("collect", *sorted(logs.iterdir()), "--model", model), whole)
    assert_same(posbias("collect", logs / f"part-*{ending}", "--model", model), whole)
    assert_same(posbias("collect", logs, "--model", model), whole)


def beside_hidden_files_and_markers(log: pl.DataFrame, logs: Path) -> None:
    for name in ("2026/01", "_temporary", ".hidden"):
        (logs / name).mkdir(parents=True)
    log.head(600).write_parquet(logs / "2026" / "01" / "a.parquet")
    log.tail(-600).write_parquet(logs / "b.parquet")
    (logs / "_SUCCESS").touch()
    (logs / ".part.parquet.crc").write_bytes(b"crc")
    (logs / "README.md").write_text("notes")
    log.write_parquet(logs / "_temporary" / "c.parquet")
    log.write_parquet(logs / ".hidden" / "d.parquet")


def of_two_formats(log: pl.DataFrame, logs: Path) -> None:
    log.with_columns(pl.col("doc").cast(pl.String)).head(600).write_parquet(logs / "a.parquet")
    log.tail(-600).write_csv(logs / "b.csv")


def with_crlf_and_a_byte_order_mark(log: pl.DataFrame, logs: Path) -> None:
    (logs / "log.csv").write_bytes(b"\xef\xbb\xbf" + log.write_csv(line_terminator="\r\n").encode())


def in_gzip_of_several_members(log: pl.DataFrame, logs: Path) -> None:
    """As they come from appending, and from parallel compressors."""
    lines = log.write_csv().splitlines(keepends=True)
    parts = ("".join(part).encode() for part in (lines[:700], lines[700:]))
    (logs / "log.csv.gz").write_bytes(b"".join(gzip.compress(part, mtime=0) for part in parts))


def beside_parts_without_rows(ending: str) -> Write:
    """As distributed engines write them, byte for byte the same."""

    def write(log: pl.DataFrame, logs: Path) -> None:
        for number, frame in enumerate([log.head(0), log, log.head(0)]):
            WRITERS[ending](frame, logs / f"part-{number}{ending}")

    return write


def with_columns_in_another_order(ending: str) -> Write:
    def write(log: pl.DataFrame, logs: Path) -> None:
        WRITERS[ending](log.head(600), logs / f"a{ending}")
        WRITERS[ending](log.tail(-600).select(reversed(log.columns)), logs / f"b{ending}")

    return write


LIKE_ONE_FILE: dict[str, Write] = {
    "beside hidden files and markers": beside_hidden_files_and_markers,
    "of two formats": of_two_formats,
    "with CRLF and a byte order mark": with_crlf_and_a_byte_order_mark,
    "in gzip of several members": in_gzip_of_several_members,
    **{f"beside parts without rows {of}": beside_parts_without_rows(of) for of in (".parquet", ".csv", ".arrow")},
    **{f"columns in another order {of}": with_columns_in_another_order(of) for of in (".parquet", ".csv", ".ndjson")},
}


@pytest.mark.parametrize("how", LIKE_ONE_FILE)
@pytest.mark.slow_after(6)
def test_how_a_log_is_written_changes_nothing(
    how: str, log: pl.DataFrame, logs: Path, posbias: Posbias, expected: Output
) -> None:
    LIKE_ONE_FILE[how](log, logs)

    assert_same(posbias("collect", logs), expected)


def test_times_of_files_in_different_zones_or_in_none_are_those_of_utc(
    log: pl.DataFrame, logs: Path, posbias: Posbias, tmp_path: Path
) -> None:
    moment = pl.datetime(2026, 1, 5) + pl.duration(hours=pl.col("session") // 100)
    timed = log.with_columns(timestamp=moment).sort("timestamp", "session", "position")
    timed.write_parquet(tmp_path / "log.parquet")
    zones = [None, "UTC", "Europe/Berlin"]
    for zone, (_, rows) in zip(zones, timed.group_by(pl.col("session") % len(zones)), strict=True):
        utc = pl.col("timestamp").dt.replace_time_zone("UTC")
        in_zone = pl.col("timestamp") if zone is None else utc.dt.convert_time_zone(zone)
        rows.with_columns(in_zone).write_parquet(logs / f"{zone is None}{zone == 'UTC'}.parquet")

    for options in ((), ("--timestamp", "none")):
        assert_same(posbias("collect", logs, *options), posbias("collect", tmp_path / "log.parquet", *options))


def test_a_column_of_types_that_have_nothing_in_common_is_named_and_a_query_leaves_it_out(
    log: pl.DataFrame, logs: Path, posbias: Posbias, expected: Output
) -> None:
    log.head(300).with_columns(tags=pl.lit(1)).write_parquet(logs / "a.parquet")
    log.slice(300).with_columns(tags=pl.lit([1])).write_parquet(logs / "b.parquet")

    refused = invoke("collect", logs, "-o", logs.parent / "out", code=2)
    assert (
        f"column 'tags' holds Int32 in {logs / 'a.parquet'} and List(Int64) in {logs / 'b.parquet'}" in refused.stderr
    )

    assert_same(posbias("collect", logs, "--sql", 'SELECT * EXCLUDE ("tags") FROM log'), expected)


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
@pytest.mark.slow_after(1)
def test_a_column_may_stand_in_the_names_of_the_folders(
    ending: str, log: pl.DataFrame, logs: Path, posbias: Posbias, expected: Output
) -> None:
    for (query,), rows in log.group_by("query"):
        folder = logs / "day=2026-01-05" / f"query={query}"
        folder.mkdir(parents=True)
        WRITERS[ending](rows.drop("query"), folder / f"part{ending}")

    found = posbias("collect", logs, "--timestamp", "none")
    assert_same(found, expected)
    assert found.statistics["query"].dtype == pl.String
    assert posbias("collect", logs).statistics["period"].cast(pl.String).unique().to_list() == ["2026-01-05"]


def test_the_files_columns_win_over_the_folders_names(log: pl.DataFrame, logs: Path, posbias: Posbias) -> None:
    folder = logs / "query=other"
    folder.mkdir()
    log.write_parquet(folder / "part.parquet")

    assert set(posbias("collect", logs).statistics["query"]) == set(log["query"])


def test_csv_ids_are_text_to_the_letter(log: pl.DataFrame, logs: Path, posbias: Posbias) -> None:
    names = {100: "007", 101: "7", 102: "7.0", 103: " x", 104: "1e3", 105: "NA"}
    named = log.with_columns(doc=pl.col("doc").replace_strict(names, return_dtype=pl.String))
    named.write_csv(logs / "log.csv")
    found = posbias("run", logs / "log.csv", "--layout", "session")

    assert set(found.attractiveness["doc"]) == set(names.values())
    assert found.training.select("session", "query", "doc", "position", "click").rows() == [
        (session, query, doc, position, click)
        for session, query, doc, position, click in named.with_columns(pl.col("session").cast(pl.String))
        .sort("session", "position")
        .iter_rows()
    ]


@pytest.mark.parametrize("dtype", [pl.Int32, pl.Int64, pl.UInt64, pl.String, pl.Binary])
@pytest.mark.parametrize("layout", ["pointwise", "session"])
@pytest.mark.slow_after(2)
def test_parquet_ids_keep_their_type_and_values(
    dtype: type[pl.DataType], layout: str, log: pl.DataFrame, logs: Path, posbias: Posbias
) -> None:
    columns = [
        pl.col(name).cast(pl.String).cast(dtype) if dtype in {pl.String, pl.Binary} else pl.col(name).cast(dtype)
        for name in ("query", "doc", "session")
    ]
    typed = log.with_columns(columns)
    typed.write_parquet(logs / "log.parquet")
    found = posbias("run", logs / "log.parquet", "--layout", layout)

    pairs = set(typed.select("query", "doc").rows())
    assert found.attractiveness.schema["query"] == found.attractiveness.schema["doc"] == dtype
    assert set(found.attractiveness.select("query", "doc").rows()) == pairs
    names = [name for name in ("session", "query", "doc") if name in found.training.columns]
    assert all(found.training.schema[name] == dtype for name in names)
    assert set(found.training.select(names).rows()) == set(typed.select(names).rows())


def test_binary_ids_that_are_no_text_survive(log: pl.DataFrame, logs: Path, posbias: Posbias) -> None:
    raw = [b"\x00\xff", b"\xfe", b"", b"\x80a", b"z", b"\x00"]
    binary = dict(enumerate(raw, 100))
    typed = log.with_columns(doc=pl.Series([binary[doc] for doc in log["doc"]], dtype=pl.Binary))
    typed.write_parquet(logs / "log.parquet")

    assert set(posbias("collect", logs / "log.parquet").statistics["doc"]) == set(raw)


@pytest.mark.parametrize("model", ["pbm", "ubm"])
@pytest.mark.parametrize("ending", [".parquet", ".csv"])
@pytest.mark.slow
def test_several_columns_form_one_session_and_one_query(
    ending: str, model: str, log: pl.DataFrame, logs: Path, posbias: Posbias, tmp_path: Path
) -> None:
    log.write_parquet(tmp_path / "log.parquet")
    language = pl.when(pl.col("query").str.ends_with("1")).then(pl.lit("de")).otherwise(pl.lit("en"))
    split = log.select(
        (pl.col("session") // 3).alias("visit"),
        (pl.col("session") % 3).alias("page"),
        pl.col("query").str.head(1).alias("words"),
        pl.col("query").str.tail(1).alias("number"),
        language.alias("language"),
        "doc",
        "position",
        "click",
    )
    WRITERS[ending](split, logs / f"log{ending}")
    keys = ["--session", "visit", "--session", "page", "--query", "words", "--query", "number", "--query", "language"]
    found = posbias("run", logs, *keys, "--model", model, "--layout", "session")
    whole = posbias("run", tmp_path / "log.parquet", "--model", model, "--layout", "session")

    pairs = found.attractiveness.with_columns(
        query=pl.concat_str(pl.col("query").struct.field("words"), pl.col("query").struct.field("number"))
    )
    names = ["query", "doc", "impressions", "clicks"]
    assert as_text(pairs).select(names).rows() == as_text(whole.attractiveness).select(names).rows()
    np.testing.assert_allclose(found.propensities["propensity"], whole.propensities["propensity"], rtol=TOLERANCE)
    values = ["position", "click", "weight"]
    np.testing.assert_allclose(
        found.training.select(values).sort(values).to_numpy(), whole.training.select(values).sort(values).to_numpy()
    )


def test_clicks_of_several_files_under_alias_names_join_too(
    log: pl.DataFrame, logs: Path, posbias: Posbias, expected: Output
) -> None:
    log.drop("click").rename({"session": "serp_id", "doc": "item_id"}).write_parquet(logs / "shown.parquet")
    clicked = log.filter(click=1).select(pl.col("session").cast(pl.Int32).alias("session_id"), doc_id="doc")
    clicked.head(50).write_parquet(logs / "clicked-1.parquet")
    clicked.tail(-50).write_parquet(logs / "clicked-2.parquet")

    assert_same(posbias("collect", logs / "shown.parquet", "--clicks", logs / "clicked-*.parquet"), expected)


def test_clicks_with_a_session_that_does_not_fit_the_impressions_type_have_no_impression(
    log: pl.DataFrame, logs: Path, posbias: Posbias, expected: Output
) -> None:
    log.drop("click").cast({"session": pl.Int32}).write_parquet(logs / "shown.parquet")
    clicked = log.filter(click=1).select("session", "doc")
    wide = pl.DataFrame({"session": [2**40], "doc": [100]}, schema=clicked.schema)
    pl.concat([clicked, wide]).write_parquet(logs / "clicked.parquet")

    found = posbias("collect", logs / "shown.parquet", "--clicks", logs / "clicked.parquet")
    assert_same(found, expected)
    assert found.manifest["rows"]["clicks"]["lost"] == {"clicks on a page that was not recorded": 1}


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".ndjson"])
def test_a_log_that_counts_from_0_is_refused_with_the_option_that_mends_it(
    ending: str, log: pl.DataFrame, logs: Path
) -> None:
    WRITERS[ending](log.with_columns(pl.col("position") - 1), logs / f"log{ending}")

    assert "--position-base 0" in invoke("collect", logs, "-o", logs / "out", code=2).stderr


@pytest.mark.parametrize("model", ["pbm", "ubm"])
@pytest.mark.parametrize("ending", [".parquet", ".csv", ".ndjson"])
@pytest.mark.slow_after(1)
def test_dropping_bad_rows_is_a_log_without_them(
    ending: str, model: str, log: pl.DataFrame, logs: Path, posbias: Posbias, tmp_path: Path
) -> None:
    good = log.cast({"position": pl.Int64, "click": pl.Int64})
    # UBM cannot use what is left of a page: the row that is missing may have been the click above.
    affected = pl.col("session").is_in([1, 2, 3] if model == "ubm" else [])
    good.filter(~affected).write_parquet(tmp_path / "log.parquet")
    bad = pl.DataFrame(
        {
            "session": [1, 1, 2, 3, 3, None],
            "query": ["00", None, "00", "00", "00", "00"],
            "doc": [900, 901, 902, 903, None, 905],
            "position": [0, 7, None, 9, 8, 8],
            "click": [0, 1, 0, 5, 0, 1],
        },
        schema=good.schema,
    )
    mixed = pl.concat([good, bad]).sample(fraction=1.0, shuffle=True, seed=3)
    WRITERS[ending](mixed, logs / f"log{ending}")
    found = posbias("collect", logs, "--on-bad-rows", "drop", "--model", model)

    assert_same(found, posbias("collect", tmp_path / "log.parquet", "--model", model))
    assert found.manifest["rows"] == {
        "read": log.height + 6,
        "used": log.filter(~affected).height,
        "rejected": {
            "the session is missing": 1,
            "the query is missing": 1,
            "the document is missing": 1,
            "the position is missing": 1,
            "the position is below the base": 1,
            "the click is neither 0 nor 1": 1,
            **({"another row of the page is faulty": log.filter(affected).height} if model == "ubm" else {}),
        },
    }


@pytest.mark.parametrize("engine", ["memory", "buckets"])
@pytest.mark.parametrize("model", ["pbm", "ubm"])
@pytest.mark.slow_after(2)
def test_dropping_impossible_pages_is_a_log_without_them(
    *, model: str, engine: str, log: pl.DataFrame, tmp_path: Path, posbias: Posbias, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_parquet(tmp_path / "log.parquet")
    pages = log.filter(session=1), log.filter(session=2), log.filter(session=3)
    several_queries = pages[0].with_columns(session=pl.lit(9_001), query=pl.Series(["00", "01", "02", "05"]))
    repeated_doc = pages[1].with_columns(session=pl.lit(9_002), doc=pl.lit(100))
    repeated_position = pages[2].with_columns(session=pl.lit(9_003), position=pl.Series([1, 2, 2, 3]))
    bad = [frame.cast(log.schema) for frame in (several_queries, repeated_doc, repeated_position)]
    pl.concat([log, *bad]).sample(fraction=1.0, shuffle=True, seed=3).write_parquet(tmp_path / "mixed.parquet")
    expected = posbias("collect", tmp_path / "log.parquet", "--model", model)
    if engine == "buckets":
        monkeypatch.setattr("posbias.io.engines.local._ROWS_THAT_STAY_IN_CACHE", 100)
    checked = ["--check-pages", "all"] if (model, engine) == ("pbm", "buckets") else []
    found = posbias("collect", tmp_path / "mixed.parquet", "--on-bad-rows", "drop", "--model", model, *checked)

    assert_same(found, expected)
    assert found.manifest["rows"]["rejected"] == {
        "the session holds several queries": 4,
        "the session shows a document twice": 4,
        "the session shows a position twice": 4,
    }


def test_quoted_fields_with_separators_quotes_and_line_ends_are_one_value(
    log: pl.DataFrame, logs: Path, posbias: Posbias
) -> None:
    odd = 'a,"b"\nc'
    log.with_columns(query=pl.concat_str(pl.lit(odd), "query")).write_csv(logs / "log.csv")

    assert set(posbias("collect", logs).statistics["query"]) == {odd + query for query in set(log["query"])}
