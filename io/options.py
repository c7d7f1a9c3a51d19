"""Groups of command-line options that jobs take whole. Imports are light, for a fast --help."""

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
    """Rankings to predict clicks of."""

    trained_until: str | None = None  # last day of training data of the rankings
    by: str | None = None  # column of classes of queries
    csv: bool = False


@dataclass(frozen=True)
class EvaluationOptions(RankingOptions):
    """Rankings to evaluate, and measures."""

    judgments: str | None = None
    cutoff: int = 10
    candidates: Candidates = "page"
    baseline: str | None = None  # name of the ranking to compare with
    bound: float | None = None  # confidence of lower bounds
    propensity: Source = "smooth"
    min_propensity: float = 0.01
    csv: bool = False


@dataclass(frozen=True)
class InterleavingOptions:
    """Columns and credit rule of an interleaving experiment."""

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
    """Click models to evaluate, and the split of sessions."""

    models: str | None = None
    split: Literal["session", "time"] = "session"  # hold out random sessions, or the latest
    test_share: float = 0.25  # held-out share of sessions
    test: list[str] | None = None
    samples: int = 200  # bootstrap samples of sessions
    seed: int = 0


@dataclass(frozen=True)
class ServingOptions:
    """Search engine that loads an exported ranker."""

    engine: ServingEngine
    engine_version: str | None = None
    categories: CategoriesAs = "sets"
    missing_default: float | None = None
    name: str = "posbias"  # of the model in the engine
    features: list[str] | None = None  # tables of documents, to score or to compare with logged features
    smoke: Path | None = None  # response of the engine
