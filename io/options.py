"""Options that jobs take whole, as they are given on a command line. Light, so that help starts at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from posbias.core.choices import Candidates, CategoriesAs, Credit, Order, ServingEngine, Source
from posbias.io.ranking_names import split_name


@dataclass(frozen=True)
class RankingOptions:
    """Tables of query, doc and score, and TREC runs, each `FILE` or `NAME=FILE`."""

    scores: list[str] | None = None
    rankings: list[str] | None = None
    order: Order = "score"

    @property
    def files(self) -> list[str]:
        """The files of the rankings."""
        return [split_name(named)[1] for named in (*(self.scores or ()), *(self.rankings or ()))]


@dataclass(frozen=True)
class PredictionOptions(RankingOptions):
    """Rankings to predict."""

    trained_until: str | None = None  # the last day of which the rankings have learned
    by: str | None = None  # the column of classes of queries
    csv: bool = False


@dataclass(frozen=True)
class EvaluationOptions(RankingOptions):
    """Which rankings are evaluated, and how."""

    judgments: str | None = None
    cutoff: int = 10
    candidates: Candidates = "page"
    baseline: str | None = None  # the name of the ranking that others are compared with
    bound: float | None = None  # the confidence of lower bounds
    propensity: Source = "smooth"
    min_propensity: float = 0.01
    csv: bool = False


@dataclass(frozen=True)
class InterleavingOptions:
    """How clicks on interleaved pages are credited to two rankers."""

    rank_a: str | None = None
    rank_b: str | None = None
    user: str | None = None
    outcome: str | None = None
    credit: Credit = "plain"
    expected_pages: int | None = None
    date: str | None = None
    into: Path | None = None
    replace_day: bool = False
    csv: bool = False


@dataclass(frozen=True)
class ModelsOptions:
    """Which click models are judged, and by which sessions."""

    models: str | None = None
    split: Literal["session", "time"] = "session"  # which sessions of one log are held out: some, or the latest
    test_share: float = 0.25  # of them
    test: list[str] | None = None
    samples: int = 200  # bootstrap samples of sessions
    seed: int = 0


@dataclass(frozen=True)
class ServingOptions:
    """The search engine that is to load a ranker."""

    engine: ServingEngine
    engine_version: str | None = None
    categories: CategoriesAs = "sets"
    missing_default: float | None = None
    name: str = "posbias"  # of the model in the engine
    features: list[str] | None = None  # tables of documents, to score, or to compare with what an engine logged
    smoke: Path | None = None  # an engine's response
