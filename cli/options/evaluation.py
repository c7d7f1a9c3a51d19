"""The options of evaluating rankings by clicks."""

from dataclasses import dataclass
from typing import Annotated

from posbias.cli.options.option import option, read_name, read_ranking
from posbias.cli.options.shared import Csv, MinPropensity, Propensity
from posbias.core.choices import Candidates

_RANKINGS, _WEIGHTING, _OUTPUT = "Rankings", "Weighting", "Output"


@dataclass(frozen=True)
class EvaluationOptions:
    """Which rankings are evaluated, and how."""

    scores: Annotated[
        list[str] | None,
        option(
            "--scores",
            "A ranking as a table of query, doc and score; NAME=FILE says its name. Repeatable.",
            _RANKINGS,
            metavar="FILE",
            parser=read_ranking,
        ),
    ] = None
    rankings: Annotated[
        list[str] | None,
        option(
            "--rankings",
            "A ranking as a TREC run; NAME=FILE says its name. Repeatable.",
            _RANKINGS,
            metavar="RUN",
            parser=read_ranking,
        ),
    ] = None
    judgments: Annotated[
        str | None,
        option(
            "--judgments",
            "Judgments for NDCG: TREC qrels, or a table of query, doc and relevance.",
            _RANKINGS,
            metavar="FILE",
            parser=read_name,
        ),
    ] = None
    cutoff: Annotated[
        int, option("--cutoff", "DCG and NDCG look at so many ranks.", _RANKINGS, short="-k", min=1, metavar="K")
    ] = 10
    candidates: Annotated[
        Candidates,
        option("--candidates", "What a document is ranked among: those on its page, or all of its query.", _RANKINGS),
    ] = "page"
    baseline: Annotated[
        str | None,
        option(
            "--baseline",
            "The ranking that others are compared with: the first by default; logged is the log's own.",
            _RANKINGS,
            metavar="NAME",
        ),
    ] = None
    bound: Annotated[
        float | None,
        option(
            "--bound",
            "Also give lower bounds on DCG that hold for all rankings at once, for any number of pages, e.g. 0.95.",
            _RANKINGS,
            metavar="C",
        ),
    ] = None
    propensity: Propensity = "smooth"
    min_propensity: MinPropensity = 0.01
    csv: Csv = False
