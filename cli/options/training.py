"""The options of training files: layout, format, features, weights and labels, and what is set apart."""

from dataclasses import dataclass
from typing import Annotated

from posbias.cli.options.option import option
from posbias.cli.options.shared import Feature, Features, MinPropensity, MissingFeatures, Propensity, Validation
from posbias.core.training.layouts import Grouping, layouts_in_words
from posbias.core.training.weights import Negatives, Rate
from posbias.io.engines.engine import OnBadRows
from posbias.io.formats import format_names

_WEIGHTING = "Weighting"


@dataclass(frozen=True)
class TrainingOptions:
    """How clicks become training weights."""

    layout: Annotated[
        str,
        option(
            "--layout",
            f"Training rows by {layouts_in_words()}.",
            _WEIGHTING,
            metavar="NAME",
        ),
    ] = "pointwise"
    format: Annotated[
        str,
        option("--format", f"Format of the training files: {', '.join(format_names())}.", _WEIGHTING, metavar="NAME"),
    ] = "parquet"
    group: Annotated[
        Grouping | None,
        option("--group", "What is ranked together: all pages of a query, or each page on its own.", _WEIGHTING),
    ] = None
    features: Features = None
    feature: Feature = None
    missing: MissingFeatures = "error"
    validation: Validation = 0.0
    validation_by: Annotated[
        Grouping, option("--validation-by", "What to hold out: whole queries or sessions.", _WEIGHTING)
    ] = "query"
    propensity: Propensity = "smooth"
    min_propensity: MinPropensity = 0.01
    self_normalize: Annotated[bool, option("--self-normalize", "Scale click weights to a mean of 1.", _WEIGHTING)] = (
        False
    )
    replicates: Annotated[
        int,
        option(
            "--replicates",
            "N further columns of weights, which vary with the errors of the propensities.",
            _WEIGHTING,
            min=0,
            max=1000,
            metavar="N",
        ),
    ] = 0
    negatives: Annotated[
        Negatives,
        option(
            "--negatives",
            "Negative weights of pointwise: clamp (n - W+, at least 0) or posterior (expected labels).",
            _WEIGHTING,
        ),
    ] = "clamp"
    rate: Annotated[
        Rate,
        option(
            "--rate",
            "Label of judgments: posterior attractiveness, clicks over expected clicks (coec), weighted clicks (ips).",
            _WEIGHTING,
        ),
    ] = "posterior"
    grades: Annotated[
        int, option("--grades", "Number of grades of judgments, from 0.", _WEIGHTING, min=2, max=31, metavar="N")
    ] = 5
    search_index: Annotated[
        str | None,
        option(
            "--search-index",
            "For --format elasticsearch: the index that holds the documents.",
            _WEIGHTING,
            metavar="NAME",
        ),
    ] = None
    unidentified: Annotated[
        OnBadRows,
        option(
            "--unidentified",
            "Clicks in cells without a propensity: drop them with a warning, or stop.",
            _WEIGHTING,
        ),
    ] = "drop"
