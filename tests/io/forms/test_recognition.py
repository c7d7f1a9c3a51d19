"""The form of a log is recognised by its first lines and columns, with the options that read it."""

import json
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest
from command_results import Posbias

from posbias.io.forms.recognition import find_form
from posbias.io.log.sources import find_sources

RANKING = {"event": "ranking", "id": "r1", "timestamp": "1767607200000", "items": [{"id": "a"}, {"id": "b"}]}
RANKED = RANKING | {"fields": [{"name": "query", "value": "q"}]}
INTERACTION = {"event": "interaction", "ranking": "r1", "timestamp": "1767607200000", "type": "click", "item": "b"}
ITEM: dict[str, object] = {"event": "item", "id": "1", "timestamp": "1767607200000", "item": "a", "fields": []}
OF_ELASTIC = {"@timestamp": 1767607200000, "session": {"id": "s"}, "document": {"id": "b"}}
SEARCH = OF_ELASTIC | {
    "event": {"action": "search"},
    "search": {"query": "q", "results": {"items": [{"document": {"id": "a"}}, {"document": {"id": "b"}}]}},
}
SEARCH_CLICK = SEARCH | {"event": {"action": "search_click"}}
QUERY = {"query_id": "p1", "user_query": "q", "query_response_hit_ids": ["a", "b"]}
CLICK = {"query_id": "p1", "action_name": "click", "event_attributes": {"object": {"object_id": "b"}}}

SOURCES: dict[str, tuple[str, Sequence[object], str]] = {
    "metarank": ("log.jsonl", [ITEM, RANKED, INTERACTION], "metarank"),
    "elasticsearch": ("log.ndjson", [SEARCH, SEARCH_CLICK], "elasticsearch"),
    "elasticsearch, hits": ("log.ndjson", [{"_source": SEARCH}, {"_source": SEARCH_CLICK}], "elasticsearch"),
    "ubi": ("log.ndjson", [QUERY, CLICK], "ubi"),
    "ubi, bulk": ("log.ndjson", [{"index": {}}, QUERY, {"index": {}}, CLICK], "ubi"),
    "ubi, index and tab": ("log.ndjson", [f"q\t{json.dumps(QUERY)}", f"e\t{json.dumps(CLICK)}"], "ubi"),
    "relevance prediction": ("log.tsv", ["1\t0\tQ\tq\t0\ta\tb", "1\t3\tC\tb"], "yandex"),
    "personalized search": ("log.tsv", ["1\tM\t2\t3", "1\t0\tQ\t0\tq\t1\ta,1\tb,1", "1\t3\tC\t0\tb"], "yandex"),
}


def write(path: Path, lines: Sequence[object]) -> Path:
    """Write lines; objects as JSON."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


@pytest.mark.parametrize("case", SOURCES)
def test_a_source_is_recognised_with_the_option_that_reads_it(posbias: Posbias, tmp_path: Path, case: str) -> None:
    name, lines, form = SOURCES[case]
    path = write(tmp_path / name, lines)
    (finding,) = find_form(find_sources([str(path)]))
    assert finding.options == ("--input-format", form)
    assert finding.certain
    found = posbias("collect", path, *finding.options)
    assert found.manifest["statistics"]["clicks"] == 1
    assert found.manifest["statistics"]["impressions"] == 2


def test_a_source_with_odd_lines_is_a_guess(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", [RANKED, INTERACTION, INTERACTION, "{}"])
    (finding,) = find_form(find_sources([str(path)]))
    assert finding.options == ("--input-format", "metarank")
    assert not finding.certain
    assert "3 of the first 4 lines look like events of Metarank" in finding.text


@pytest.mark.parametrize("suffix", ["csv", "parquet", "ndjson"])
@pytest.mark.parametrize(
    ("shown", "clicked", "certain"),
    [("impression", "click", True), ("IMPRESSION", "Click", True), ("view", "tap", False)],
)
def test_a_table_of_events_is_recognised_with_the_options_that_read_it(
    posbias: Posbias, tmp_path: Path, suffix: str, shown: str, clicked: str, *, certain: bool
) -> None:
    rows = [
        (shown, "p1", "q", "a", 1),
        (shown, "p1", "q", "b", 2),
        (clicked, "p1", "q", "b", 2),
        ("scroll", "p1", "", "", 0),
    ]
    table = pl.DataFrame(rows, schema=["what", "session", "query", "doc", "position"], orient="row")
    path = tmp_path / f"events.{suffix}"
    {"csv": table.write_csv, "parquet": table.write_parquet, "ndjson": table.write_ndjson}[suffix](path)
    (finding,) = find_form(find_sources([str(path)]))
    assert finding.options == ("--impression-where", f"what={shown}", "--click-where", f"what={clicked}")
    assert finding.certain == certain
    assert f"'what' holds {shown} (2), {clicked} (1), scroll (1) in the sample" in finding.text
    assert posbias("collect", path, *finding.options).manifest["statistics"]["clicks"] == 1


def test_impressions_and_clicks_in_files_of_their_own_are_a_table_of_events(log: pl.DataFrame, tmp_path: Path) -> None:
    for kind in ("impression", "click"):
        log.drop("click").with_columns(event_type=pl.lit(kind)).write_parquet(tmp_path / f"{kind}.parquet")
    sources = find_sources([str(tmp_path / "impression.parquet"), str(tmp_path / "click.parquet")])
    (finding,) = find_form(sources)
    assert finding.options == ("--impression-where", "event_type=impression", "--click-where", "event_type=click")


def test_rows_and_pages_are_no_events(log: pl.DataFrame, tmp_path: Path) -> None:
    flat = log.with_columns(device=pl.lit("phone"), title=pl.format("click {}", "doc"))
    flat.write_parquet(tmp_path / "flat.parquet")
    flat.write_csv(tmp_path / "flat.csv")
    flat.write_ndjson(tmp_path / "flat.ndjson")
    log.group_by("session", "query").agg("doc", "click").write_ndjson(tmp_path / "nested.ndjson")
    for path in tmp_path.iterdir():
        assert find_form(find_sources([str(path)])) == []
