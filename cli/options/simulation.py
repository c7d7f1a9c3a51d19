"""The options of simulating."""

from typing import Literal

from posbias.cli.options.option import option, options, read_name
from posbias.cli.options.shared import MODEL


@options("World")
class WorldOptions:
    """What there is to click, and how position matters."""

    model: str = MODEL | {"default": "pbm"}
    sessions: int = option("Number of results pages.", "N", default=50_000, min=1, max=10**9)
    positions: int = option("Positions per page.", "N", default=10, min=1)
    queries: int | None = option("Number of queries; 1000 by default.", "N", min=1)
    docs_per_query: int | None = option("Candidate documents per query; 20 by default.", "N", min=1)
    query_exponent: float = option("Zipf exponent of query frequencies; 0: all equally frequent.", "S", default=0.7)
    eta: float = option("Examination is position^-eta; 0: no position bias.", "X", default=1.0, min=0)
    theta: str | None = option("Or examination cell by cell, e.g. 1,.7,.5 for 3 positions.", "T,T,...")
    attractiveness: str | None = option("Beta distribution of attractiveness; 1:2 by default.", "A:B")
    attractiveness_scale: float = option("Scale all attractiveness by this factor, up to 1.", "X", default=1.0)
    satisfaction: str | None = option("Beta distribution of satisfaction (dbn, sdbn); 1:1 by default.", "A:B")
    parameters: list[str] | None = option(
        "What all documents share, one value or one by position, e.g. continuation=.9. Once per name.", "NAME=P[,P,...]"
    )
    seed: int = option("Random seed.", "N", default=0, min=0)


@options("Labels")
class LabelOptions:
    """Real queries, documents and graded labels in place of drawn ones."""

    labels: str | None = option("Judged documents: query, doc, label (a grade) and features.", "FILE", parser=read_name)
    click_noise: float | None = option("P(click | examined) at grade 0; 0.1 by default.", "P")
    ranker: Literal["label", "weak"] | None = option(
        "Where its scores come from: the labels, or a ranker trained on a few of them."
    )
    ranker_queries: int | None = option("Queries to train the weak ranker on; 20 by default.", "N", min=1)


@options("Ranker")
class RankerOptions:
    """How documents come to their positions."""

    ranker_strength: str = option(
        "How closely pages follow the scores. 0: random order; inf: always the same order.", "X|inf", default="1"
    )
    score_weight: float = option(
        "Share of a score that is quality; the rest is noise, drawn once per document.", "W", default=1.0
    )
    days: int = option("Days to spread the sessions over; 0: no timestamp.", "N", default=7, min=0)
    feedback_strength: float = option("How strongly each update re-ranks by the clicks so far.", "X", default=0.0)
    updates_per_day: int = option(
        "How often a day a ranker with --feedback-strength takes note of the clicks.", "N", default=1, min=1
    )


@options("Users")
class UserOptions:
    """How sessions differ."""

    segments: int = option("Number of user segments, known to the ranker.", "N", default=1, min=1)
    segment_difference: float = option("Share of documents whose attractiveness differs by segment.", "P", default=0.5)
    device: list[str] | None = option("A device's own eta, or theta cell by cell. Once per device.", "ETA|T,T,...")
    depth: str | None = option("P(one more position is shown), or weights of page lengths 1, 2, ...", "P|W,W,...")
    readiness: str | None = option("Factors on P(click), one drawn per session, e.g. .3,1.7.", "X,X,...")
    theta_shock: float = option("Standard deviation of log theta, shared by a query's sessions.", "SD", default=0.0)


@options("Experiments")
class ExperimentOptions:
    """What is shown at random, and marked in the log."""

    randomized_share: float = option("Share of sessions in random order; column `policy`.", "P", default=0.0)
    swap: list[str] | None = option("Swap two positions half of the time; column `experiment`.", "1-5")
    swap_share: float = option("Share of sessions in swap experiments, if any.", "P", default=0.1)
