"""The options of simulating."""

from dataclasses import dataclass
from typing import Annotated, Literal

from posbias.cli.options.option import option, read_name
from posbias.cli.options.shared import MODEL_HELP

_WORLD, _LABELS, _RANKER, _USERS, _EXPERIMENTS = "World", "Labels", "Ranker", "Users", "Experiments"


@dataclass(frozen=True)
class WorldOptions:
    """What there is to click, and how position matters."""

    model: Annotated[
        str,
        option(
            "--model",
            MODEL_HELP,
            _WORLD,
            metavar="NAME",
        ),
    ] = "pbm"
    sessions: Annotated[
        int, option("--sessions", "Number of results pages.", _WORLD, min=1, max=10**9, metavar="N")
    ] = 50_000
    positions: Annotated[int, option("--positions", "Positions per page.", _WORLD, min=1, metavar="N")] = 10
    queries: Annotated[
        int | None, option("--queries", "Number of queries; 1000 by default.", _WORLD, min=1, metavar="N")
    ] = None
    docs_per_query: Annotated[
        int | None,
        option("--docs-per-query", "Candidate documents per query; 20 by default.", _WORLD, min=1, metavar="N"),
    ] = None
    query_exponent: Annotated[
        float,
        option("--query-exponent", "Zipf exponent of query frequencies; 0: all equally frequent.", _WORLD, metavar="S"),
    ] = 0.7
    eta: Annotated[
        float, option("--eta", "Examination is position^-eta; 0: no position bias.", _WORLD, min=0, metavar="X")
    ] = 1.0
    theta: Annotated[
        str | None,
        option("--theta", "Or examination cell by cell, e.g. 1,.7,.5 for 3 positions.", _WORLD, metavar="T,T,..."),
    ] = None
    attractiveness: Annotated[
        str | None,
        option("--attractiveness", "Beta distribution of attractiveness; 1:2 by default.", _WORLD, metavar="A:B"),
    ] = None
    attractiveness_scale: Annotated[
        float,
        option("--attractiveness-scale", "Scale all attractiveness by this factor, up to 1.", _WORLD, metavar="X"),
    ] = 1.0
    satisfaction: Annotated[
        str | None,
        option(
            "--satisfaction", "Beta distribution of satisfaction (dbn, sdbn); 1:1 by default.", _WORLD, metavar="A:B"
        ),
    ] = None
    parameters: Annotated[
        list[str] | None,
        option(
            "--parameters",
            "What all documents share, one value or one by position, e.g. continuation=.9. Once per name.",
            _WORLD,
            metavar="NAME=P[,P,...]",
        ),
    ] = None
    seed: Annotated[int, option("--seed", "Random seed.", _WORLD, min=0, metavar="N")] = 0


@dataclass(frozen=True)
class LabelOptions:
    """Real queries, documents and graded labels in place of drawn ones."""

    labels: Annotated[
        str | None,
        option(
            "--labels",
            "Judged documents: query, doc, label (a grade) and features.",
            _LABELS,
            metavar="FILE",
            parser=read_name,
        ),
    ] = None
    click_noise: Annotated[
        float | None,
        option("--click-noise", "P(click | examined) at grade 0; 0.1 by default.", _LABELS, metavar="P"),
    ] = None
    ranker: Annotated[
        Literal["label", "weak"] | None,
        option("--ranker", "Where its scores come from: the labels, or a ranker trained on a few of them.", _LABELS),
    ] = None
    ranker_queries: Annotated[
        int | None,
        option("--ranker-queries", "Queries to train the weak ranker on; 20 by default.", _LABELS, min=1, metavar="N"),
    ] = None


@dataclass(frozen=True)
class RankerOptions:
    """How documents come to their positions."""

    ranker_strength: Annotated[
        str,
        option(
            "--ranker-strength",
            "How closely pages follow the scores. 0: random order; inf: always the same order.",
            _RANKER,
            metavar="X|inf",
        ),
    ] = "1"
    score_weight: Annotated[
        float,
        option(
            "--score-weight",
            "Share of a score that is quality; the rest is noise, drawn once per document.",
            _RANKER,
            metavar="W",
        ),
    ] = 1.0
    days: Annotated[
        int, option("--days", "Days to spread the sessions over; 0: no timestamp.", _RANKER, min=0, metavar="N")
    ] = 7
    feedback_strength: Annotated[
        float,
        option("--feedback-strength", "How strongly each update re-ranks by the clicks so far.", _RANKER, metavar="X"),
    ] = 0.0
    updates_per_day: Annotated[
        int,
        option(
            "--updates-per-day",
            "How often a day a ranker with --feedback-strength takes note of the clicks.",
            _RANKER,
            min=1,
            metavar="N",
        ),
    ] = 1


@dataclass(frozen=True)
class UserOptions:
    """How sessions differ."""

    segments: Annotated[
        int, option("--segments", "Number of user segments, known to the ranker.", _USERS, min=1, metavar="N")
    ] = 1
    segment_difference: Annotated[
        float,
        option(
            "--segment-difference", "Share of documents whose attractiveness differs by segment.", _USERS, metavar="P"
        ),
    ] = 0.5
    device: Annotated[
        list[str] | None,
        option(
            "--device", "A device's own eta, or theta cell by cell. Once per device.", _USERS, metavar="ETA|T,T,..."
        ),
    ] = None
    depth: Annotated[
        str | None,
        option(
            "--depth",
            "P(one more position is shown), or weights of page lengths 1, 2, ...",
            _USERS,
            metavar="P|W,W,...",
        ),
    ] = None
    readiness: Annotated[
        str | None,
        option("--readiness", "Factors on P(click), one drawn per session, e.g. .3,1.7.", _USERS, metavar="X,X,..."),
    ] = None
    theta_shock: Annotated[
        float,
        option("--theta-shock", "Standard deviation of log theta, shared by a query's sessions.", _USERS, metavar="SD"),
    ] = 0.0


@dataclass(frozen=True)
class ExperimentOptions:
    """What is shown at random, and marked in the log."""

    randomized_share: Annotated[
        float,
        option("--randomized-share", "Share of sessions in random order; column `policy`.", _EXPERIMENTS, metavar="P"),
    ] = 0.0
    swap: Annotated[
        list[str] | None,
        option("--swap", "Swap two positions half of the time; column `experiment`.", _EXPERIMENTS, metavar="1-5"),
    ] = None
    swap_share: Annotated[
        float, option("--swap-share", "Share of sessions in swap experiments, if any.", _EXPERIMENTS, metavar="P")
    ] = 0.1
