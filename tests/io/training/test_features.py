"""Features arrive at the rows as a plain left join would bring them, and what cannot be a feature is a clear error."""

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from posbias.core.errors import LogFormatError, OutputError, SchemaError
from posbias.core.schema import Roles
from posbias.io.places.temporary import KeptFrame
from posbias.io.training import feature_tables, laid_out
from posbias.io.training.feature_parts import (
    MissingFeatures,
    check_none_missing,
    features_of_pairs,
    missing_features,
    route,
    rows_with_features,
)
from posbias.io.training.feature_tables import FeatureTable, check_finite, feature_columns, open_features
from posbias.io.training.laid_out import Feature, LaidOut, frames_of_groups, rows_per_chunk, with_features

TYPES: dict[str, pl.DataType] = {"query": pl.String(), "doc": pl.Int64()}
MEMORY = 1 << 30
Open = Callable[..., FeatureTable]


def roles(query: Sequence[str] = ("query",), doc: Sequence[str] = ("doc",)) -> Roles:
    """Return the roles of a log with these keys."""
    return Roles(session=(), query=tuple(query), doc=tuple(doc), position="position", click="click")


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """Return a function that writes a table of features and opens it."""

    def write(
        table: pl.DataFrame | str, log: Roles | None = None, types: dict[str, pl.DataType] = TYPES
    ) -> FeatureTable:
        path = tmp_path / ("features.csv" if isinstance(table, str) else "features.parquet")
        if isinstance(table, str):
            path.write_text(table)
        else:
            table.write_parquet(path)
        return open_features([str(path)], log or roles(), types)

    return write


def rows_of(frame: pl.LazyFrame) -> list[dict[str, object]]:
    """Return the rows, sorted by document."""
    return frame.sort("doc").collect().to_dicts()


LOG_ROWS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5)), min_size=1, max_size=30)
FEATURE_KEYS = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 7)), max_size=30, unique=True)


@settings(deadline=None, derandomize=True, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    log=LOG_ROWS,
    keys=FEATURE_KEYS,
    split=st.integers(1, 5),
    size=st.integers(1, 12),
    doc_only=st.booleans(),
    fits_in_memory=st.booleans(),
)
@pytest.mark.slow
def test_features_arrive_as_a_left_join_brings_them_for_any_parts_and_chunks(
    log: list[tuple[str, int]],
    keys: list[tuple[str, int]],
    split: int,
    size: int,
    doc_only: bool,  # noqa: FBT001
    fits_in_memory: bool,  # noqa: FBT001
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("features")
    features = pl.DataFrame(keys, schema={"query": pl.String, "doc": pl.Int64}, orient="row").with_columns(
        price=pl.int_range(pl.len()) / 2, colour=pl.int_range(pl.len()).cast(pl.String) + " blue"
    )
    if doc_only:
        features = features.unique("doc", keep="first", maintain_order=True).drop("query")
    features.write_parquet(folder / "features.parquet")
    table = open_features([str(folder / "features.parquet")], roles(), TYPES)
    rows = pl.DataFrame(log, schema={"query": pl.String, "doc": pl.Int64}, orient="row").sort("query")
    rows = rows.select(
        pl.col("query").rank("dense").cast(pl.Int64).alias("group"), "query", "doc", label=pl.int_range(pl.len())
    )
    parts = [rows.filter(pl.col("group") % split == part) for part in range(split)]
    expected = pl.concat(parts).join(features, on=list(table.keys), how="left", maintain_order="left")
    assume(expected["price"].count())
    routed = route(table, [part.lazy() for part in parts], folder / "routed", MEMORY)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(laid_out, "_MOST_ROWS", size)
        patched.setattr(laid_out, "_FEWEST_ROWS", size)
        found = [
            chunk
            for part, of_part in zip(parts, routed, strict=True)
            for chunk in LaidOut(KeptFrame(part), None, 0, 0, tables=(of_part,)).chunks(MEMORY if fits_in_memory else 1)
        ]
    assert_frame_equal(pl.concat(found), expected)
    kept = [rows_with_features(part.lazy(), of_part) for part, of_part in zip(parts, routed, strict=True)]
    assert_frame_equal(pl.concat(kept).collect(), expected.drop_nulls().select(rows.columns))
    missing = sum(map(missing_features, zip((part.lazy() for part in parts), routed, strict=True)), MissingFeatures())
    assert missing.rows == expected["price"].null_count()


def test_little_memory_means_more_files_and_the_same_features(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posbias.io.training.feature_parts._ROWS_OF_BATCH", 10)
    table = opened(pl.DataFrame({"doc": range(100), "x": range(100)}))
    rows = pl.DataFrame({"query": ["a"] * 60, "doc": range(60)})
    routed = route(table, [rows[:40].lazy(), rows[20:].lazy()], tmp_path / "routed", 1)
    assert len(list((tmp_path / "routed").iterdir())) > 2
    for part, features in zip([rows[:40], rows[20:]], routed, strict=True):
        assert with_features(part, features)["x"].to_list() == part["doc"].to_list()
        assert features.select(pl.len()).collect().item() == 40


def test_features_of_other_ids_than_the_logs_are_an_error(opened: Open, tmp_path: Path) -> None:
    log = pl.LazyFrame({"query": ["a"], "doc": [1]})
    with pytest.raises(SchemaError, match=r"for no row of the log. The log holds e\.g\. doc 1, the table e\.g\. doc 2"):
        route(opened("doc,x\n2,5\n"), [log.head(0), log], tmp_path / "others", MEMORY)
    with pytest.raises(SchemaError, match=r"no row whose key could be one of the log, e\.g\. doc 1"):
        route(opened("doc,x\np2,5\n"), [log], tmp_path / "names", MEMORY)
    table = opened("doc,x\n2,5\n")
    assert route(table, [], tmp_path / "nothing", MEMORY) == []
    assert route(table, [log.head(0)], tmp_path / "empty", MEMORY)[0].collect().is_empty()


@settings(deadline=None, derandomize=True, max_examples=20)
@given(lengths=st.lists(st.integers(1, 9), max_size=8), size=st.integers(1, 12))
def test_chunks_hold_whole_groups_and_no_more_rows_than_asked_but_for_a_larger_group(
    lengths: list[int], size: int
) -> None:
    group = [number for number, length in enumerate(lengths) for _ in range(length)]
    rows = pl.DataFrame({"group": group, "row": range(len(group))}, schema={"group": pl.Int64, "row": pl.Int64})
    found = list(frames_of_groups(KeptFrame(rows), size))
    assert_frame_equal(pl.concat([rows.clear(), *found]), rows)
    groups = [set(chunk["group"]) for chunk in found]
    assert sum(map(len, groups)) == len(lengths)
    assert all(chunk.height <= size or chunk["group"].n_unique() == 1 for chunk in found)


def test_a_chunk_shrinks_with_the_number_of_features_and_grows_with_the_memory() -> None:
    assert rows_per_chunk(0, 2 << 30) == 1 << 20
    assert rows_per_chunk(40, 2 << 30) > rows_per_chunk(400, 2 << 30)
    assert rows_per_chunk(40, 2 << 30) < rows_per_chunk(40, 4 << 30)


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "tsv", "ndjson", "arrow", "parquet"])
def test_every_format_of_a_log_can_hold_features(suffix: str, tmp_path: Path) -> None:
    table = pl.DataFrame({"query": ["a", "b"], "doc": [1, 2], "price": [0.5, None], "colour": ["red", "blue"]})
    path = tmp_path / f"features.{suffix}"
    if suffix.startswith(("csv", "tsv")):
        text = table.write_csv(separator="\t" if suffix == "tsv" else ",")
        path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    else:
        {"ndjson": table.write_ndjson, "arrow": table.write_ipc, "parquet": table.write_parquet}[suffix](path)
    found = open_features([str(path)], roles(), TYPES)
    assert found.features == (Feature("price"), Feature("colour", ("blue", "red")))
    assert_frame_equal(found.rows.collect(), table)


def test_ids_match_across_types_but_text_is_taken_to_the_letter(opened: Open) -> None:
    text: dict[str, pl.DataType] = {"query": pl.String(), "doc": pl.String()}
    numbers = pl.DataFrame({"doc": [7, 8], "price": [1.0, 2.0]})
    assert rows_of(opened(numbers, types=text).rows) == [{"doc": "7", "price": 1.0}, {"doc": "8", "price": 2.0}]
    assert rows_of(opened("doc,price\n007,1\n7,2\n", types=text).rows)[0] == {"doc": "007", "price": 1.0}
    assert rows_of(opened("doc,price\n7,1\nx,2\n,3\n").rows) == [{"doc": 7, "price": 1.0}]
    narrow: dict[str, pl.DataType] = {"query": pl.String(), "doc": pl.Int8()}
    wide = pl.DataFrame({"doc": [7, 300, None], "price": [1.0, 2.0, 3.0]})
    assert rows_of(opened(wide, types=narrow).rows) == [{"doc": 7, "price": 1.0}]
    coded = pl.DataFrame({"doc": ["7"], "price": [1.0]}).with_columns(pl.col("doc").cast(pl.Categorical))
    assert rows_of(opened(coded).rows) == [{"doc": 7, "price": 1.0}]
    with pytest.raises(SchemaError, match="'doc' holds Float64, the ids of the log are Int64"):
        opened(pl.DataFrame({"doc": [7.0], "price": [1.0]}))


@pytest.mark.parametrize("coded", [pl.Categorical(), pl.Enum(["b", "a", "c"])])
def test_encoded_ids_of_the_log_meet_text_and_other_encodings(coded: pl.DataType, opened: Open, tmp_path: Path) -> None:
    rows = pl.DataFrame({"query": ["x", "y", "z"], "doc": ["a", "b", "c"]}).with_columns(pl.col("doc").cast(coded))
    types: dict[str, pl.DataType] = {"query": pl.String(), "doc": coded}
    for number, theirs in enumerate([pl.String(), pl.Categorical(), pl.Enum(["c", "other", "b"])]):
        table = pl.DataFrame({"doc": ["other", "c", "b"], "x": [1, 2, 3]}).with_columns(pl.col("doc").cast(theirs))
        routed = route(opened(table, types=types), [rows.lazy()], tmp_path / str(number), MEMORY)
        assert with_features(rows, routed[0])["x"].to_list() == [None, 3, 2]


def test_keys_have_the_names_of_the_log_or_well_known_ones(opened: Open) -> None:
    named = opened(pl.DataFrame({"item": [1], "doc_id": [5], "x": [1.0]}), roles(doc=["item"]))
    assert [feature.name for feature in named.features] == ["doc_id", "x"]
    known = opened(pl.DataFrame({"Product_ID": [1], "QID": ["a"], "pos": [1], "rank": [1]}), roles(doc=["item"]))
    assert known.keys == ("query", "doc")
    assert [feature.name for feature in known.features] == ["pos", "rank"]


def test_keys_of_several_columns_match_those_of_the_log(opened: Open, tmp_path: Path) -> None:
    log = roles(query=["market", "text"], doc=["market", "item"])
    types: dict[str, pl.DataType] = {
        "query": pl.Struct({"market": pl.String, "text": pl.String}),
        "doc": pl.Struct({"market": pl.String, "item": pl.Int32}),
    }
    rows = pl.DataFrame({"market": ["de", "de"], "text": ["a", "b"], "item": [1, 2]}).select(
        pl.struct("market", "text").alias("query"), pl.struct("market", pl.col("item").cast(pl.Int32)).alias("doc")
    )
    assert rows.schema == pl.Schema(types)
    of_docs = opened("item,market,x\n1,de,5\n2,fr,6\n", log, types)
    assert of_docs.keys == ("doc",)
    routed = route(of_docs, [rows.lazy()], tmp_path / "docs", MEMORY)
    assert with_features(rows, routed[0])["x"].to_list() == [5.0, None]
    of_pairs = opened("market,text,item,x\nde,b,2,7\n", log, types)
    assert of_pairs.keys == ("query", "doc")
    routed = route(of_pairs, [rows[:1].lazy(), rows[1:].lazy()], tmp_path / "pairs", MEMORY)
    assert with_features(rows, routed[1])["x"].to_list() == [None, 7.0]
    assert missing_features((rows.lazy(), routed[1])).keys == 1
    with pytest.raises(SchemaError, match="has no column 'item': in the log, market, item name the doc together"):
        opened("market,x\nde,5\n", log, types)


def test_numbers_keep_their_types_and_truth_becomes_a_number(opened: Open) -> None:
    table = pl.DataFrame(
        {
            "doc": [1, 2],
            "f": [0.5, None],
            "i": [1, 2],
            "b": [True, None],
            "d": [1, 2],
            "n": [None, None],
            "h": [0.5, 1],
        },
        schema={
            "doc": pl.Int64,
            "f": pl.Float32,
            "i": pl.UInt8,
            "b": pl.Boolean,
            "d": pl.Decimal(9, 2),
            "n": pl.Null,
            "h": pl.Float16,
        },
    )
    found = opened(table)
    assert found.features == tuple(map(Feature, "fibdnh"))
    assert found.rows.collect_schema().dtypes() == [
        pl.Int64,
        pl.Float32,
        pl.UInt8,
        pl.Int8,
        pl.Float64,
        pl.Float64,
        pl.Float32,
    ]


def test_text_and_its_encodings_are_categories_in_order(opened: Open) -> None:
    table = pl.DataFrame({"doc": [1, 2, 3], "t": ["b", "a", None], "c": ["z", "y", "z"], "digits": ["1", "2", "3"]})
    found = opened(table.with_columns(pl.col("c").cast(pl.Enum(["z", "y", "x"]))))
    assert found.features == (Feature("t", ("a", "b")), Feature("c", ("y", "z")), Feature("digits", ("1", "2", "3")))
    assert found.rows.collect()["c"].to_list() == ["z", "y", "z"]


def test_a_column_of_csv_is_a_number_if_every_value_is_one(opened: Open) -> None:
    found = opened('doc,a,b,c,d\n1,5, 1e3,x,\n2,,nan,7,\n3,-.5,"",NA,\n')
    assert found.features == (Feature("a"), Feature("b"), Feature("c", ("7", "NA", "x")), Feature("d"))
    read = found.rows.sort("doc").fill_nan(None).collect()
    assert read["a"].to_list() == [5.0, None, -0.5]
    assert read["b"].to_list() == [1000.0, None, None]


def test_folders_that_name_a_value_are_columns_too(tmp_path: Path) -> None:
    for shop in ("1", "2"):
        (tmp_path / f"shop={shop}").mkdir()
        pl.DataFrame({"doc": [int(shop)], "x": [1.0]}).write_parquet(tmp_path / f"shop={shop}" / "f.parquet")
    found = open_features([str(tmp_path)], roles(), TYPES)
    assert found.features == (Feature("x"), Feature("shop"))
    assert found.rows.collect()["shop"].sort().to_list() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"item": [1], "x": [1]}, "no column says which document a row is about. Name it as the log does: doc"),
        (
            {"doc_id": [1], "url": ["u"], "x": [1]},
            "doc_id, url could be the doc. Name the columns as the log does: doc",
        ),
        ({"query": ["a"], "doc": [1]}, "holds no feature, only the columns query, doc"),
        ({"doc": [1], "weight": [1]}, "the feature 'weight' has a name that is reserved in training files"),
        ({"doc": [1], "posbias_x": [1]}, "the feature 'posbias_x' has a name"),
        ({"doc": [1], "v": [[1.0, 2.0]]}, r"'v' holds List\(Float64\), .* Write each of its values into a column"),
        ({"doc": [1], "v": [{"a": 1}]}, "'v' holds Struct"),
        ({"doc": [1], "v": [b"a"]}, "'v' holds Binary, which trainers do not accept. Leave the column out"),
        ({"doc": [1], "v": pl.Series([0]).cast(pl.Date)}, "'v' holds Date, .* Write it as a number"),
        ("doc,x\n1,5\n2,NA\n", "the feature 'x' holds numbers and 'NA'. If that stands for a missing value"),
    ],
)
def test_what_cannot_be_a_table_of_features_says_why(
    table: dict[str, list[object]] | str, message: str, opened: Open
) -> None:
    with pytest.raises(SchemaError, match=message):
        opened(table if isinstance(table, str) else pl.DataFrame(table))


def test_a_feature_of_too_many_texts_is_taken_for_an_id(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_tables, "MOST_CATEGORIES", 2)
    assert opened("doc,x\n1,a\n2,b\n").features == (Feature("x", ("a", "b")),)
    with pytest.raises(SchemaError, match="'x' holds more than 2 different texts: it looks like an id"):
        opened("doc,x\n1,a\n2,b\n3,c\n")
    with pytest.raises(SchemaError, match="'x' holds numbers and 'null'"):
        opened("doc,x\n1,5\n2,null\n3,7\n")


def test_files_of_one_table_have_the_same_columns(tmp_path: Path) -> None:
    one, other = tmp_path / "1.parquet", tmp_path / "2.parquet"
    pl.DataFrame({"doc": [1], "x": [1]}).write_parquet(one)
    pl.DataFrame({"doc": [2], "x": [2.5]}).write_parquet(other)
    assert open_features([str(one), str(other)], roles(), TYPES).rows.collect()["x"].to_list() == [1.0, 2.5]
    pl.DataFrame({"doc": [2], "x": ["2"]}).write_parquet(other)
    with pytest.raises(SchemaError, match=r"'x' holds Int64 in .*1.parquet and String in .*2.parquet"):
        open_features([str(one), str(other)], roles(), TYPES)
    pl.DataFrame({"doc": [2], "x": [2], "y": [2]}).write_parquet(other)
    with pytest.raises(SchemaError, match=r"1.parquet: has no column 'y', which .*2.parquet has"):
        open_features([str(one), str(other)], roles(), TYPES)
    with pytest.raises(SchemaError, match="there is another feature 'x'"):
        open_features([str(one)], roles(), TYPES, taken=["x"])
    with pytest.raises(LogFormatError, match="no such file"):
        open_features([str(tmp_path / "none.parquet")], roles(), TYPES)


def test_a_key_that_stands_twice_is_shown(opened: Open, tmp_path: Path) -> None:
    table = opened(pl.DataFrame({"doc": [1, 2, 2, 3, 3], "x": range(5)}))
    log = pl.LazyFrame({"query": ["a", "b"], "doc": [2, 2]})
    with pytest.raises(SchemaError, match=r"1 keys appear more than once, e\.g\. doc 2 in 2 rows"):
        route(table, [log.head(1), log.tail(1)], tmp_path / "routed", MEMORY)


def test_an_infinite_value_is_shown(opened: Open, tmp_path: Path) -> None:
    table = opened(pl.DataFrame({"doc": [1, 2, 3], "y": [0.0] * 3, "x": [float("inf"), float("-inf"), float("nan")]}))
    log = pl.LazyFrame({"query": ["a", "a", "a"], "doc": [1, 2, 3]})
    assert route(table, [log.tail(1)], tmp_path / "finite", MEMORY)[0].collect().height == 1
    with pytest.raises(SchemaError, match="the feature 'x' is inf for doc 1 and 1 more: trainers need finite numbers"):
        route(table, [log], tmp_path / "infinite", MEMORY)
    check_finite(log, ["doc"], ["query"], "log")


def test_a_full_disk_is_found_before_anything_is_written(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = opened(pl.DataFrame({"doc": [1], "x": [1]}))

    def full(_: Path) -> SimpleNamespace:
        return SimpleNamespace(free=0)

    monkeypatch.setattr("posbias.io.places.ownership.shutil.disk_usage", full)
    with pytest.raises(OutputError, match="--temp-dir"):
        route(table, [pl.LazyFrame({"query": ["a"], "doc": [1]})], tmp_path / "routed", MEMORY)
    assert not (tmp_path / "routed").exists()


def test_what_is_missing_is_counted_and_shown(opened: Open, tmp_path: Path) -> None:
    table = opened(pl.DataFrame({"query": ["a"], "doc": [1], "x": [1]}))
    rows = pl.LazyFrame({"query": ["a", "b", "b", "b"], "doc": [1, 1, 1, 2]})
    features = route(table, [rows], tmp_path / "routed", MEMORY)[0]
    missing = missing_features((rows, features))
    assert missing == MissingFeatures(2, 3, ("query 'b', doc 1", "query 'b', doc 2"))
    check_none_missing(MissingFeatures(), "f")
    with pytest.raises(SchemaError, match=r"no features for 2 keys .*3 training rows.*query 'b', doc 1; .*drop"):
        check_none_missing(missing, "features.parquet")


def test_features_of_the_log_are_the_largest_of_a_pair_in_any_order(tmp_path: Path) -> None:
    shown = pl.DataFrame(
        {
            "query": ["a"] * 4 + ["b"],
            "doc": [1, 1, 1, 2, 1],
            "price": ["9", "10", None, None, "3"],
            "score": [0.5, float("nan"), 0.5, 1.0, 2.0],
            "colour": ["red", "blue", "red", "red", None],
        }
    )
    features, read = feature_columns(
        [shown[:3].lazy(), shown[3:].lazy()], ["price", "score", "colour"], {"price"}, "log.csv"
    )
    assert features == (Feature("price"), Feature("score"), Feature("colour", ("blue", "red")))
    for number, frame in enumerate([shown, shown.reverse()]):
        pairs, varying = features_of_pairs(frame.lazy(), read, tmp_path / f"{number}.parquet")
        assert pairs.sort("query", "doc").collect().rows() == [
            ("a", 1, 10.0, 0.5, "red"),
            ("a", 2, None, 1.0, "red"),
            ("b", 1, 3.0, 2.0, None),
        ]
        assert varying == {"price": 1, "score": 0, "colour": 1}
