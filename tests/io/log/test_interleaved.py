"""Pages that two rankers drafted by turns: what is random on them, what is not, and what follows for propensities."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from checked_logs import checked, good_log
from command_results import Posbias, Refused, Run
from log_forms import Event, Files, Form, ubi_event, ubi_query, write
from polars.testing import assert_frame_equal
from small_logs import simulated

from posbias.core.arrays.count_table import Floats
from posbias.core.log.impressions import ReadingRules
from posbias.core.schema import Roles
from posbias.core.simulation.simulate import SimulationOptions
from posbias.io.forms.page_structure import find_drafts, find_teams_of_ubi
from posbias.io.log.click_log import LogRequest, open_log
from posbias.io.log.sources import find_sources
from posbias.io.log.sql import sql_of_swaps

DRAFTS = SimulationOptions(
    n_sessions=2500, n_queries=50, query_exponent=0.3, n_positions=6, interleave=(0.8, 0.8), ranker_strength=np.inf
)
TEAM = pl.col("team")
SHUFFLED = pl.col("doc").sort_by(pl.concat_str("session", "doc", separator=" ").hash(1)).over("session")
ODD, MARKED = pl.col("session") % 2 == 1, ("--method", "randomized", "--randomized-where")
Change = Callable[[pl.DataFrame], pl.DataFrame]


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Return pages of team drafts."""
    return simulated(DRAFTS).log


def written(folder: Path, log: pl.DataFrame, name: str = "log.parquet") -> Path:
    path = folder / name
    if path.suffix == ".csv":
        log.write_csv(path)
    else:
        log.write_parquet(path)
    return path


def listed(log: pl.DataFrame) -> pl.DataFrame:
    """One row a page, with lists."""
    return log.group_by("session", "query", maintain_order=True).agg("doc", "click", "team", "rank_a", "rank_b")


def errors_of(propensities: pl.DataFrame) -> Floats:
    """Errors of log propensities by position, in standard errors; truth is 1 / position."""
    beyond = propensities.filter(pl.col("position") > 1)
    error = beyond["propensity"].log() + beyond["position"].cast(pl.Float64).log()
    return (error / beyond["std_error"]).to_numpy()


# --- what is no randomisation ------------------------------------------------------------------------------------

EVERYWHERE = pl.lit("yes").alias("mixed")
REFUSED: dict[str, tuple[Change, str, str, str]] = {
    "a ranker's picks": (lambda log: log, "log.parquet", "team=A", "'team' says which of two rankers picked"),
    "of text": (lambda log: log, "log.csv", "team=B", "'team' says which of two rankers picked"),
    "at two positions": (lambda log: log, "log.parquet", "team=A@1,2", "'team' says which of two rankers picked"),
    "in lists": (listed, "log.parquet", "team=A", "'team' says which of two rankers picked"),
    "by another name": (
        lambda log: log.rename({"team": "rankingFunction"}),
        "log.parquet",
        "rankingFunction=B",
        "'rankingFunction' says which of two rankers picked",
    ),
    "without pages": (lambda log: log.drop("session"), "log.parquet", "team=A", "'team' says which of two rankers"),
    "all rows": (
        lambda log: log.with_columns(EVERYWHERE),
        "log.parquet",
        "mixed=yes",
        "takes all documents that two rankers drafted (column 'team') to be placed at random",
    ),
    "all rows at two positions": (
        lambda log: log.with_columns(EVERYWHERE),
        "log.parquet",
        "mixed=yes@1,2",
        "position bias looks too steep",
    ),
    "whole pages of swaps": (
        lambda log: log.with_columns(mixed=pl.col("rank_a") == pl.col("rank_b")),
        "log.parquet",
        "mixed=false",
        "takes all documents that two rankers drafted",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_two_rankers_drafted_is_no_randomisation(
    refused: Refused, log: pl.DataFrame, tmp_path: Path, name: str
) -> None:
    change, file, mark, message = REFUSED[name]

    said = " ".join(refused("fit", written(tmp_path, change(log), file), *MARKED, mark).split())

    assert f"--randomized-where {mark}: " in said
    assert message in said


ROUND = ("session", (pl.col("position") + 1) // 2)
SWAPPED = (pl.col("rank_a").diff() * pl.col("rank_b").diff() < 0).any().over(*ROUND)
SHUFFLED_THIRD = pl.col("session") % 3 == 0
TAKEN: dict[str, tuple[Change, str]] = {
    "random pages beside drafts": (
        lambda log: log.with_columns(
            policy=pl.when(SHUFFLED_THIRD).then(pl.lit("random")).otherwise(pl.lit("drafted")),
            team=pl.when(~SHUFFLED_THIRD).then(TEAM),
            doc=pl.when(SHUFFLED_THIRD).then(SHUFFLED).otherwise(pl.col("doc")),
        ),
        "policy=random",
    ),
    "pages whose first round is always a swap": (
        lambda log: log.filter(SWAPPED.filter(pl.col("position") < 3).all().over("session")).with_columns(
            swap=SWAPPED & (pl.col("position") < 3)
        ),
        "swap=true@1,2",
    ),
    "pages of a team": (
        lambda log: log.with_columns(
            team=pl.when(ODD).then(pl.lit("random")).otherwise(pl.lit("ranked")), doc=SHUFFLED
        ),
        "team=random",
    ),
}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", TAKEN)
def test_what_was_placed_at_random_is_taken_beside_drafts(
    posbias: Posbias, log: pl.DataFrame, tmp_path: Path, name: str
) -> None:
    change, mark = TAKEN[name]

    done = posbias("fit", written(tmp_path, change(log)), *MARKED, mark, "--no-compare")

    assert done.propensities["propensity"][1] is not None


# --- recipes ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("file", "base"), [("log.parquet", 1), ("log.csv", 1), ("log.parquet", 0)])
def test_the_swaps_that_the_message_marks_recover_the_first_propensities(
    posbias: Posbias, refused: Refused, log: pl.DataFrame, tmp_path: Path, file: str, base: int
) -> None:
    path = written(tmp_path, log.with_columns(pl.col("position") - 1 + base), file)
    read = (path, "--position-base", base)
    said = " ".join(refused("fit", *read, *MARKED, "team=A").split())
    words = shlex.split(said.partition("order differently: ")[2].partition(". Or leave")[0])

    done = posbias("fit", *read, "--method", "randomized", *words)

    assert np.abs(errors_of(done.propensities)).max() < 3
    assert done.propensities["std_error"].to_numpy().max() < 0.1


@pytest.mark.slow
def test_a_swap_is_a_round_that_the_rankers_order_differently(posbias: Posbias, tmp_path: Path) -> None:
    rounds = pl.DataFrame(  # rank_a and rank_b of two documents; the last page ends within its second round
        {
            "session": [1, 1, 2, 2, 3, 3, 4, 4, 4],
            "query": ["q"] * 9,
            "doc": [*"ab", *"ba", *"ab", *"abc"],
            "position": [1, 2, 1, 2, 1, 2, 1, 2, 3],
            "click": [1, 0, 1, 1, 0, 1, 1, 0, 0],
            "rank_a": [1, 2, 2, 1, 1, 2, 1, None, 3],
            "rank_b": [2, 1, 1, 2, 1, 3, None, 1, 4],
        }
    )
    path = written(tmp_path, rounds)
    query = sql_of_swaps(["session"], "position", ["rank_a", "rank_b"])
    counted = posbias("collect", path, "--sql", query, "--stratify", "swap")

    assert counted.statistics.filter("swap").select("doc", "position", "impressions").rows() == [
        ("a", 1, 2),
        ("a", 2, 1),
        ("b", 1, 1),
        ("b", 2, 2),
    ]


@pytest.mark.slow
def test_lists_that_follow_unseen_users_bias_propensities_until_they_are_strata(
    posbias: Posbias, tmp_path: Path
) -> None:
    of_users = replace(DRAFTS, n_sessions=12_000, segments=2, segment_difference=1.0)
    path = written(tmp_path, simulated(of_users).log.drop("segment"))

    plain = posbias("fit", path, "--no-compare").propensities
    done = posbias("fit", path, "--no-compare", "--stratify", "rank_a", "--stratify", "rank_b").propensities

    assert errors_of(plain)[1:].max() < -3
    assert np.abs(errors_of(done)).max() < 3


# --- what such a column is ------------------------------------------------------------------------------------


def names_of(folder: Path, log: pl.DataFrame) -> list[str]:
    """The columns that are taken for those of teams."""
    opened = open_log(LogRequest((str(written(folder, log)),), Roles(), ReadingRules()))
    return [name for name, _ in find_drafts(opened)]


NAMED: dict[str, tuple[Change, list[str]]] = {
    "team": (lambda log: log, ["team"]),
    "in lists": (listed, ["team"]),
    "of Solr": (lambda log: log.rename({"team": "[interleaving]"}), ["[interleaving]"]),
    "true and false": (lambda log: log.with_columns(team=TEAM == "B"), ["team"]),
    "a common first one": (lambda log: log.with_columns(team=pl.when(pl.col("position") > 1).then(TEAM)), ["team"]),
    "of another name": (lambda log: log.rename({"team": "sponsored"}), []),
    "an A/B test": (lambda log: log.with_columns(team=TEAM.first().over("session")), []),
    "of documents": (lambda log: log.with_columns(team=TEAM.first().over("query", "doc")), []),
    "of places": (lambda log: log.with_columns(team=pl.col("position") > 2), []),
    "of places by turns": (lambda log: log.with_columns(team=pl.col("position") % 2), []),
    "three": (lambda log: log.with_columns(team=pl.col("doc") % 3), []),
    "nothing": (lambda log: log.with_columns(team=pl.lit(None, pl.String)), []),
    "lists": (lambda log: log.with_columns(team=pl.concat_list("doc", "doc")), []),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_column_of_teams_is_told_from_others_by_its_name_and_by_what_pages_hold(
    log: pl.DataFrame, tmp_path: Path, name: str
) -> None:
    change, found = NAMED[name]

    assert names_of(tmp_path, change(log)) == found


# --- forms -------------------------------------------------------------------------------------------------------

COLUMNS, OF_EVENTS = "--team team --rank-a rank_a --rank-b rank_b", "event_attributes.object"
OF_DOC = ("team", "rank_a", "rank_b")


def by_page(log: pl.DataFrame, doc: Callable[[Event], Event], page: Callable[[list[Event]], Event]) -> list[Event]:
    """A line of JSON a page: its session and query, and what is made of its documents and of the clicked ones."""
    lines = list[Event]()
    for rows in log.partition_by("session", maintain_order=True):
        of_page = rows.to_dicts()
        made = page([doc(row) for row in of_page])
        clicked = [row["doc"] for row in of_page if row["click"]]
        lines.append({"session": of_page[0]["session"], "query": of_page[0]["query"], "clicked": clicked, **made})
    return lines


def solr(log: pl.DataFrame) -> Files:
    """Solr's answers with fl=id,[interleaving], and the ids that were clicked."""
    found = by_page(
        log, lambda row: {"id": row["doc"], "[interleaving]": row["team"]}, lambda docs: {"response": {"docs": docs}}
    )
    return {"log.ndjson": found}


def hits(log: pl.DataFrame) -> Files:
    """OpenSearch's hits, as its Chorus serves them with the search configuration that picked each."""
    found = by_page(
        log, lambda row: {"_id": row["doc"], "search_config": row["team"]}, lambda docs: {"hits": {"hits": docs}}
    )
    return {"log.ndjson": found}


def ubi_events(log: pl.DataFrame) -> Files:
    """UBI, whose events have what is known of documents in their attributes."""
    lines = list[Event]()
    for rows in log.partition_by("session", maintain_order=True):
        page = rows.to_dicts()
        name, kinds = f"p{page[0]['session']}", ("impression", "click")
        lines.append(ubi_query(name, str(page[0]["query"]), [f"d{row['doc']}" for row in page]))
        for row in page:
            of_doc = {"search_config": row["team"], "rank_a": row["rank_a"], "rank_b": row["rank_b"]}
            for action in kinds[: 1 + row["click"]]:
                event = ubi_event(name, action, f"d{row['doc']}")
                event["event_attributes"]["object"] |= of_doc
                lines.append(event)
    return {"log.ndjson": lines}


def events(log: pl.DataFrame) -> Files:
    shown = log.drop("click").with_columns(event=pl.lit("view"))
    clicks = log.filter(pl.col("click") == 1).select("session", "doc", event=pl.lit("tap"))
    return {"log": pl.concat([clicks, shown], how="diagonal")}


def paged(log: pl.DataFrame) -> Files:
    """Two pages of three results, where positions begin anew on each."""
    place = pl.col("position") - 1
    return {"log": log.with_columns(page=place // 3 + 1, slot=place % 3 + 1).drop("position")}


def as_text(log: pl.DataFrame) -> Files:
    lists = pl.col("doc", "click", *OF_DOC)
    return {"log.csv": listed(log).with_columns(lists.cast(pl.List(pl.String)).list.join("|")).write_csv()}


STRUCTS = pl.struct("doc", *OF_DOC).alias("docs")
AS_FLAT: dict[str, tuple[Callable[[pl.DataFrame], Files], str]] = {
    "lists": (lambda log: {"log": listed(log)}, COLUMNS),
    "structs in a list": (
        lambda log: {"log": log.group_by("session", "query", maintain_order=True).agg(STRUCTS, "click")},
        "--doc docs.doc --team docs.team --rank-a docs.rank_a --rank-b docs.rank_b",
    ),
    "lines of JSON": (lambda log: {"log.ndjson": log.write_ndjson()}, COLUMNS),
    "pages of results": (paged, f"--page page --page-size 3 --position slot {COLUMNS}"),
    "text": (lambda log: {"log.csv": log.write_csv()}, COLUMNS),
    "UBI": (
        ubi_events,
        f"--input-format ubi --team {OF_EVENTS}.search_config --rank-a {OF_EVENTS}.rank_a --rank-b {OF_EVENTS}.rank_b",
    ),
    "events": (events, f"--impression-where event=view --click-where event=tap {COLUMNS}"),
    "clicks apart": (
        lambda log: {"log": log.drop("click"), "clicks": log.filter(pl.col("click") == 1).select("session", "doc")},
        f"{COLUMNS} --clicks CLICKS",
    ),
    "a query": (
        lambda log: {"log": log.rename({"team": "t"})},
        f"--sql 'FROM log SELECT * EXCLUDE (t), t AS team' {COLUMNS}",
    ),
    "lists as text": (as_text, f"--list-separator | {COLUMNS}"),
    "Solr": (solr, "--doc response.docs.id --clicked clicked --team response.docs.[interleaving]"),
    "hits": (hits, "--doc hits.hits._id --clicked clicked --team hits.hits.search_config"),
}


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("name", AS_FLAT)
def test_the_verdict_of_every_form_is_that_of_flat_rows(
    posbias: Posbias, log: pl.DataFrame, tmp_path: Path, name: str
) -> None:
    (change, options), few = AS_FLAT[name], log.filter(pl.col("session") < 400)
    ranks = COLUMNS if "--rank-a" in options else "--team team"
    folder = tmp_path / "form"
    folder.mkdir()

    found = posbias("interleave", *Form(lambda _: {}, options).words(write(folder, change(few))))

    flat = posbias("interleave", written(tmp_path, few), *shlex.split(ranks))
    assert_frame_equal(*(pl.read_parquet(done.folder / "verdict.parquet") for done in (found, flat)))


UNREADABLE: dict[str, tuple[Change, str, str]] = {
    "another name": (lambda log: log.rename({"team": "tema"}), "--team team", "there is no column 'team' (--team,"),
    "a rank of another name": (
        lambda log: log.rename({"rank_b": "rank_2"}),
        COLUMNS,
        "there is no column 'rank_b' (--team, --rank-a, --rank-b,",
    ),
    "a third value": (
        lambda log: log.with_columns(
            team=pl.when(pl.col("rank_a") == pl.col("rank_b")).then(pl.lit("C")).otherwise(TEAM)
        ),
        "--team team",
        "column 'team' (--team): holds 3 values (A, B, C)",
    ),
    "one value": (lambda log: log.with_columns(team=pl.lit("A")), "--team team", "(--team): holds 1 value (A)"),
    "one value, or empty text": (
        lambda log: log.with_columns(team=pl.when(TEAM == "A").then(TEAM).otherwise(pl.lit(""))),
        "--team team",
        "(--team): holds 1 value (A)",
    ),
    "rankers of clicks alone": (
        lambda log: log.with_columns(team=pl.when(pl.col("click") == 1).then(TEAM)),
        "--team team",
        "only documents that were clicked have a value",
    ),
    "no pages": (lambda log: log.drop("session"), "--team team", "no column looks like the session"),
    "lists that differ in length": (
        lambda log: listed(log).with_columns(pl.col("team").list.head(2)),
        "--team team",
        "the lists of the page differ in length",
    ),
    "structs": (lambda log: log.with_columns(team=pl.struct("team")), "--team team", "it must hold plain values"),
    "sums": (
        lambda log: log.group_by("query", "doc", "position").agg(
            pl.col("click").sum(), shown=pl.len(), team=TEAM.first()
        ),
        "--team team --impressions shown",
        "needs whole pages",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_one_error(refused: Refused, log: pl.DataFrame, tmp_path: Path, name: str) -> None:
    change, options, message = UNREADABLE[name]

    said = refused("interleave", written(tmp_path, change(log.head(600))), *shlex.split(options))

    assert message in " ".join(said.split())


# --- check --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text", "lists", "structs in a list", "UBI"])
def test_check_prints_the_command_that_compares_the_rankers(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, name: str
) -> None:
    (path,) = write(tmp_path, AS_FLAT[name][0](log))
    told = ("--doc", "docs.doc", "--click", "click") if name == "structs in a list" else ("--max-position", "4")

    found = checked(run_in_process, path.name, *told)

    finding = next(one for one in found["recognised"]["findings"] if "rankers" in one["said"])
    said, strata = finding["said"], ["--stratify", "rank_a", "--stratify", "rank_b"]
    assert finding["options"] == (strata if name in {"text", "lists"} else [])
    words = shlex.split(said.partition("`posbias ")[2].partition("`")[0].replace("-o DIR", "-o out"))
    run_in_process(*words)
    assert pl.read_parquet(tmp_path / "out" / "verdict.parquet")["pages"].item(0) == log["session"].n_unique()


@pytest.mark.slow
def test_check_says_nothing_of_rankers_elsewhere(run_in_process: Run, tmp_path: Path) -> None:
    frame = good_log().with_columns(team=pl.col("doc").hash() % 2, ranker=pl.col("session") % 2)
    written(tmp_path, frame)

    assert "rankers" not in run_in_process("check", "log.parquet").stdout


@pytest.mark.parametrize(
    ("attributes", "found"),
    [
        ([{"team": "A"}, {"team": "B"}], "event_attributes.object.team"),
        ([{"[interleaving]": 1, "team": [1]}, {"[interleaving]": 2}], "event_attributes.object.[interleaving]"),
        ([{"team": "A"}, {"team": "A"}], None),
        ([{"team": "A"}, {"team": ""}], None),
        ([{"team": "A"}, {"team": "B"}, {"team": "C"}], None),
        ([{"colour": "A"}, {"colour": "B"}], None),
        (["A", None], None),
    ],
)
def test_an_attribute_of_ubi_is_of_teams_if_a_page_has_two(
    tmp_path: Path, attributes: list[Any], found: str | None
) -> None:
    events = [{"query_id": "p", "action_name": "click", "event_attributes": {"object": each}} for each in attributes]
    (path,) = write(tmp_path, {"log.ndjson": ["", "{", *events, ubi_query("p")]})

    assert find_teams_of_ubi(find_sources([str(path)])) == found
