"""Pages that two rankers drafted by turns: what is random on them, what is not, and what follows for propensities."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command_results import Posbias, Refused
from small_logs import simulated

from posbias.core.arrays.count_table import Floats
from posbias.core.log.impressions import ReadingRules
from posbias.core.schema import Roles
from posbias.core.simulation.simulate import SimulationOptions
from posbias.io.forms.page_structure import find_drafts
from posbias.io.log.click_log import LogRequest, open_log
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
        "position bias would look 4 to 7 % too steep",
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


@pytest.mark.parametrize("name", TAKEN)
def test_what_was_placed_at_random_is_taken_beside_drafts(
    posbias: Posbias, log: pl.DataFrame, tmp_path: Path, name: str
) -> None:
    change, mark = TAKEN[name]

    done = posbias("fit", written(tmp_path, change(log)), *MARKED, mark, "--no-compare")

    assert done.propensities["propensity"][1] is not None


# --- recipes ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("file", ["log.parquet", "log.csv"])
def test_the_swaps_that_the_message_marks_recover_the_first_propensities(
    posbias: Posbias, refused: Refused, log: pl.DataFrame, tmp_path: Path, file: str
) -> None:
    path = written(tmp_path, log, file)
    said = " ".join(refused("fit", path, *MARKED, "team=A").split())
    words = shlex.split(said.partition("order differently: ")[2].partition(". Or leave")[0])

    done = posbias("fit", path, "--method", "randomized", *words, "--max-position", 2)

    assert np.abs(errors_of(done.propensities)).max() < 3
    assert done.propensities["std_error"].to_numpy().max() < 0.1


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
