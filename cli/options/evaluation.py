"""The options of evaluating rankings by clicks."""

from posbias.cli.options.option import option, options, read_name, read_ranking
from posbias.cli.options.shared import CSV, MIN_PROPENSITY, PROPENSITY
from posbias.core.choices import Candidates, Source


@options("Rankings")
class EvaluationOptions:
    """Which rankings are evaluated, and how."""

    scores: list[str] | None = option(
        "A ranking as a table of query, doc and score; NAME=FILE says its name. Repeatable.",
        "FILE",
        parser=read_ranking,
    )
    rankings: list[str] | None = option(
        "A ranking as a TREC run; NAME=FILE says its name. Repeatable.", "RUN", parser=read_ranking
    )
    judgments: str | None = option(
        "Judgments for NDCG: TREC qrels, or a table of query, doc and relevance.", "FILE", parser=read_name
    )
    cutoff: int = option("DCG and NDCG look at so many ranks.", "K", default=10, short="-k", min=1)
    candidates: Candidates = option(
        "What a document is ranked among: those on its page, or all of its query.", default="page"
    )
    baseline: str | None = option(
        "The ranking that others are compared with: the first by default; logged is the log's own.", "NAME"
    )
    bound: float | None = option(
        "Also give lower bounds on DCG that hold for all rankings at once, for any number of pages, e.g. 0.95.", "C"
    )
    propensity: Source = PROPENSITY
    min_propensity: float = MIN_PROPENSITY
    csv: bool = CSV
