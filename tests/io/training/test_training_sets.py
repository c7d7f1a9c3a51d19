"""Rows, clicks and weights in the training files add up to what the log and the propensities imply."""

import shutil
from collections import defaultdict
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl
import pytest
from command_results import invoke, manifest_of, reseal
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from posbias.core.training.weights import is_in_validation
from posbias.io.training import laid_out

SETTINGS = settings(max_examples=5, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate))
THETA = {1: 1.0, 2: 0.5, 3: None, 4: 0.05}
WEIGHT = {1: 1.0, 2: 2.0, 4: 10.0}  # clipped at 0.1; position 3 has none
SHARE = 0.4
TINY_MEMORY = 100_000  # bytes: some buckets for the logs below

page = st.tuples(
    st.integers(0, 5),
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=4, unique_by=lambda shown: shown[0]),
)
pages = st.lists(page, min_size=12, max_size=30)


@dataclass(frozen=True)
class Impression:
    """One row of the log."""

    session: int
    query: str
    doc: int
    position: int
    click: bool

    @property
    def weight(self) -> float:
        """Of the click; 0 where there is none, or none that has a propensity."""
        return WEIGHT.get(self.position, 0.0) if self.click else 0.0


@dataclass(frozen=True)
class Written:
    """A log and the training files that were made of it."""

    log: list[Impression]
    rows: pl.DataFrame
    manifest: dict[str, Any]

    def total(self) -> float:
        """The weight of all clicks."""
        return sum(impression.weight for impression in self.log)

    def shown_with(self, clicked: Impression) -> list[Impression]:
        """The impressions of the same page."""
        return [other for other in self.log if other.session == clicked.session]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """Yield a directory with a fit whose propensities are `THETA`."""
    place = tmp_path_factory.mktemp("sums")
    rows = [(s, "q", (s + k) % 4, k, int((2 * s + k) % 3 == 0)) for s in range(60) for k in range(1, 5)]
    schema = ["session", "query", "doc", "position", "click"]
    pl.DataFrame(rows, schema=schema, orient="row").write_csv(place / "log.csv")
    invoke("fit", place / "log.csv", "-o", place / "fit", "--no-compare", code=(0, 1))
    table = pl.read_parquet(place / "fit" / "propensities.parquet")
    theta = pl.Series("propensity", [THETA[position] for position in table["position"]])
    nothing_else = pl.lit(None, pl.Float64).alias("smooth_propensity")
    changed = table.with_columns(theta, theta.alias("weight_propensity"), nothing_else)
    changed.write_parquet(place / "fit" / "propensities.parquet")
    reseal(place / "fit")
    yield place
    shutil.rmtree(place)


def write(folder: Path, pages: list[tuple[int, list[tuple[int, bool]]]], *options: str) -> Written:
    """Weigh a log in one bucket and in several, which must give the same rows."""
    log = [
        Impression(session, f"query {query}", doc, position, click)
        for session, (query, shown) in enumerate(pages)
        for position, (doc, click) in enumerate(shown, start=1)
    ]
    columns = ["session", "query", "doc", "position", "click"]
    pl.DataFrame([[getattr(row, name) for name in columns] for row in log], schema=columns, orient="row").write_parquet(
        folder / "pages.parquet"
    )
    words = ["weight", str(folder / "pages.parquet"), "--propensities", str(folder / "fit"), "--force", *options]
    if "judgments" not in options or any(
        option.startswith("rate=") for option in options
    ):  # the posterior rate has no weights to clip
        words += ["--min-propensity", "0.1"]
    invoke(*words, "-o", folder / "one", code=(0, 1))
    with patch("posbias.cli.work.execution.parse_memory", return_value=TINY_MEMORY):
        invoke(*words, "-o", folder / "several", code=(0, 1))
    one, several = (rows_of(folder / name) for name in ("one", "several"))
    assert one.sort(pl.all()).equals(several.sort(pl.all()))
    return Written(log, one, manifest_of(folder / "one"))


def rows_of(result: Path) -> pl.DataFrame:
    """All training rows; groups, whose numbers depend on the buckets, by what is in them."""
    rows = pl.concat(pl.read_parquet(part) for part in sorted((result / "training" / "rows").glob("part-*.parquet")))
    if "group" not in rows.columns:
        return rows
    numbers = rows["group"].unique(maintain_order=True)
    assert numbers.to_list() == list(range(len(numbers)))
    clicked = pl.col("doc").filter(label=1).first().over("group")
    return rows.with_columns(clicked.alias("clicked"), pl.col("doc").implode().over("group").alias("docs")).drop(
        "group"
    )


def has_click(pages: list[tuple[int, list[tuple[int, bool]]]]) -> bool:
    return any(click and position != 3 for _, shown in pages for position, (_, click) in enumerate(shown, start=1))


@pytest.mark.slow
@SETTINGS
@given(pages)
def test_pointwise_has_two_rows_per_document_and_the_weight_of_its_clicks(
    folder: Path, pages: list[tuple[int, list[tuple[int, bool]]]]
) -> None:
    written = write(folder, pages)
    positive: dict[tuple[str, int], float] = defaultdict(float)
    shown: dict[tuple[str, int], int] = defaultdict(int)
    for row in written.log:
        positive[row.query, row.doc] += row.weight
        shown[row.query, row.doc] += row.position in WEIGHT

    assert written.rows.height == 2 * len(shown) == written.manifest["training_sets"]["training"]["rows"]
    found = {(query, doc, label): weight for query, doc, label, weight in written.rows.iter_rows()}
    assert found == {(*key, 1): pytest.approx(weight) for key, weight in positive.items()} | {
        (*key, 0): pytest.approx(max(n - positive[key], 0)) for key, n in shown.items()
    }
    assert written.rows.filter(label=1)["weight"].sum() == pytest.approx(written.total())
    assert written.manifest["weights"]["weight_after_clipping"] == pytest.approx(written.total())


@SETTINGS
@given(pages, st.sampled_from(["session", "query"]))
@pytest.mark.slow
def test_sessions_have_a_row_per_impression_but_for_clicks_without_a_propensity(
    folder: Path, pages: list[tuple[int, list[tuple[int, bool]]]], group: str
) -> None:
    written = write(folder, pages, "--layout", "session", "--layout-options", f"group={group}")
    left_out = sum(row.click and row.position not in WEIGHT for row in written.log)

    assert written.rows.height == len(written.log) - left_out
    assert written.rows["click"].sum() == sum(row.weight > 0 for row in written.log)
    assert written.rows.filter(click=1)["weight"].sum() == pytest.approx(written.total())
    assert set(written.rows.filter(click=0)["weight"]) <= {1.0}
    assert written.manifest["weights"]["clicks_without_propensity"] == left_out


@SETTINGS
@given(pages.filter(has_click), st.sampled_from(["session", "query"]))
@pytest.mark.slow
def test_clicked_groups_hold_every_weighted_click_once(
    folder: Path, pages: list[tuple[int, list[tuple[int, bool]]]], group: str
) -> None:
    written = write(folder, pages, "--layout", "clicked-group", "--layout-options", f"group={group}")
    clicked = written.rows.filter(label=1)

    assert clicked["weight"].sum() == pytest.approx(written.total())
    assert clicked["clicks"].sum() == sum(row.weight > 0 for row in written.log)
    assert written.rows["weight"].sum() == pytest.approx(
        sum(row.weight * len(written.shown_with(row)) for row in written.log)
    )
    assert clicked.height == written.manifest["training_sets"]["training"]["groups"]


@SETTINGS
@given(pages.filter(has_click), st.sampled_from(["session", "query"]))
@pytest.mark.slow
def test_preferences_weigh_as_much_as_the_clicks_by_the_other_documents_of_their_pages(
    folder: Path, pages: list[tuple[int, list[tuple[int, bool]]]], group: str
) -> None:
    written = write(folder, pages, "--layout", "pairs", "--layout-options", f"group={group}")

    expected = sum(row.weight * (len(written.shown_with(row)) - 1) for row in written.log)
    assert written.rows["weight"].sum() == pytest.approx(expected)
    n_pairs = sum(len(written.shown_with(row)) - 1 for row in written.log if row.weight)
    assert written.rows.height <= n_pairs
    if group == "session":
        assert written.rows.height == n_pairs


@SETTINGS
@given(pages, st.sampled_from(["coec", "ips"]))
@pytest.mark.slow
def test_judgments_hold_the_impressions_and_clicks_that_have_a_propensity(
    folder: Path, pages: list[tuple[int, list[tuple[int, bool]]]], rate: str
) -> None:
    written = write(folder, pages, "--layout", "judgments", "--layout-options", f"rate={rate}")

    assert written.rows["impressions"].sum() == sum(row.position in WEIGHT for row in written.log)
    assert written.rows["clicks"].sum() == sum(row.weight > 0 for row in written.log)
    if rate == "ips":
        assert (written.rows["label"] * written.rows["impressions"]).sum() == pytest.approx(written.total())


def split_pages() -> Iterator[tuple[int, list[tuple[int, bool]]]]:
    for session in range(60):
        yield session % 12, [(doc, (session + doc) % 3 == 0) for doc in range(4)]


BY_QUERY_ONLY = ("pointwise", "judgments")
OF_PAGES = ("session", "clicked-group", "pairs")


@pytest.mark.parametrize(
    ("layout", "by"),
    [(layout, "query") for layout in (*BY_QUERY_ONLY, *OF_PAGES)] + [(layout, "session") for layout in OF_PAGES],
)
@pytest.mark.slow
def test_training_and_validation_are_the_whole_without_overlap(folder: Path, layout: str, by: str) -> None:
    options = ("--layout", layout, "--validation", str(SHARE), "--layout-options", f"validation_by={by}")
    written = write(folder, list(split_pages()), *options, "--layout-options", f"group={by}")
    apart = pl.concat(
        pl.read_parquet(part) for part in sorted((folder / "one" / "validation" / "rows").glob("part-*.parquet"))
    )
    whole = write(
        folder, list(split_pages()), *options[:2], *(("--layout-options", f"group={by}") if layout != "session" else ())
    ).rows

    both = written.rows.height + apart.height
    assert 0 < apart.height < both
    if layout != "clicked-group":
        assert both == whole.height
    if by == "query" or "session" in apart.columns:
        assert is_in_validation(apart[by], SHARE).all()
        assert not is_in_validation(written.rows[by], SHARE).any()


def preferences_by_row_number(result: Path, split: str) -> list[tuple[str, int, int, float]]:
    """Query, winner, loser and weight of each line of CatBoost's pairs, looked up by the numbers of their rows."""
    laid_out = sorted((result / split / "rows").glob("part-*.parquet"))
    rows = pl.concat(pl.read_parquet(part) for part in laid_out)
    lines = pl.read_csv(result / split / "train.pairs", separator="\t", has_header=False)
    winners, losers = rows[lines[:, 0]], rows[lines[:, 1]]
    assert (winners["group"] == losers["group"]).all()
    data = pl.read_csv(result / split / "train.tsv", separator="\t", has_header=False)
    assert data[:, 0].to_list() == rows["group"].to_list()
    assert data[:, 1].to_list() == (rows["doc"] * 10.0).to_list()
    found = pl.DataFrame([winners["query"], winners["doc"], losers["doc"].alias("loser"), lines[:, 2].round(9)])
    return found.sort(pl.all()).rows()


@pytest.mark.slow
def test_pairs_point_at_their_rows_over_buckets_when_rows_without_features_are_dropped(folder: Path) -> None:
    held = [(f"query {query}", doc, doc * 10.0) for query in range(12) for doc in range(4) if (query + doc) % 5]
    pl.DataFrame(held, schema=["query", "doc", "x"], orient="row").write_parquet(folder / "features.parquet")
    options = ("--layout", "pairs", "--validation", str(SHARE))
    kept = {key[:2] for key in held}
    write(folder, list(split_pages()), *options)
    expected = {
        split: sorted(
            (row["query"], row["winner"], row["loser"], round(row["weight"], 9))
            for part in (folder / "one" / split / "rows").glob("part-*.parquet")
            for row in pl.read_parquet(part).iter_rows(named=True)
            if (row["query"], row["winner"]) in kept and (row["query"], row["loser"]) in kept
        )
        for split in ("training", "validation")
    }
    words = ["weight", str(folder / "pages.parquet"), "--propensities", str(folder / "fit"), "--min-propensity", "0.1"]
    words += [*options, "--format", "catboost", "--features", str(folder / "features.parquet"), "--missing", "drop"]
    with patch("posbias.cli.work.execution.parse_memory", return_value=TINY_MEMORY):
        invoke(*words, "-o", folder / "pairs", code=(0, 1))
    for split, pairs in expected.items():
        assert preferences_by_row_number(folder / "pairs", split) == pairs
    assert len(list((folder / "pairs" / "training" / "rows").glob("part-*.parquet"))) > 1
    warnings = manifest_of(folder / "pairs")["warnings"]
    assert f"{48 - len(held)} of 48 rows have no features and are left out (--missing drop)." in warnings


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("layout", ["pointwise", "session", "clicked-group"])
@pytest.mark.parametrize("features", [(), ("--features", "features.csv")], ids=["ids", "features"])
def test_rows_lie_on_disk_only_until_their_features_are_known(
    folder: Path, layout: str, features: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = pl.format("query {}", pl.col("session") % 40).alias("query")
    pl.read_csv(folder / "log.csv").with_columns(queries).write_parquet(folder / "many.parquet")
    pl.DataFrame({"doc": range(4), "price": range(4)}).write_csv(folder / "features.csv")
    monkeypatch.chdir(folder)
    words = ["many.parquet", "--propensities", "fit", "--layout", layout, *features, "--force", "-o", "rows"]
    several = patch("posbias.cli.work.execution.parse_memory", return_value=TINY_MEMORY)
    with several, patch.object(laid_out, "keep", wraps=laid_out.keep) as keep:
        invoke("weight", *words, code=(0, 1))

    assert keep.call_count > 1
    assert {isinstance(call.args[1], Path) for call in keep.call_args_list} == {bool(features)}
