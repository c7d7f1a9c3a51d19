"""The options of training files: layout, format, features, weights and labels, and what is set apart."""

from posbias.cli.options.complete import one_of
from posbias.cli.options.option import option, options
from posbias.cli.options.shared import FEATURE, FEATURES, MIN_PROPENSITY, MISSING, PROPENSITY, VALIDATION
from posbias.core.choices import FORMATS, LAYOUTS, Grouping, Missing, Negatives, OnBadRows, Rate, Source


@options("Weighting")
class TrainingOptions:
    """How clicks become training weights."""

    layout: str = option("Training rows by {layouts}.", "NAME", default="pointwise", complete=one_of(LAYOUTS))
    format: str = option(
        "Format of the training files: {formats}.", "NAME", default="parquet", complete=one_of(FORMATS)
    )
    group: Grouping | None = option("What is ranked together: all pages of a query, or each page on its own.")
    features: list[str] | None = FEATURES
    feature: list[str] | None = FEATURE
    missing: Missing = MISSING
    validation: float = VALIDATION
    validation_by: Grouping = option("What to hold out: whole queries or sessions.", default="query")
    propensity: Source = PROPENSITY
    min_propensity: float = MIN_PROPENSITY
    self_normalize: bool = option("Scale click weights to a mean of 1.")
    replicates: int = option(
        "N further columns of weights, which vary with the errors of the propensities.", "N", default=0, min=0, max=1000
    )
    negatives: Negatives = option(
        "Negative weights of pointwise: clamp (n - W+, at least 0) or posterior (expected labels).", default="clamp"
    )
    rate: Rate = option(
        "Label of judgments: posterior attractiveness, clicks over expected clicks (coec), weighted clicks (ips).",
        default="posterior",
    )
    grades: int = option("Number of grades of judgments, from 0.", "N", default=5, min=2, max=31)
    search_index: str | None = option("For --format elasticsearch: the index that holds the documents.", "NAME")
    unidentified: OnBadRows = option(
        "Clicks in cells without a propensity: drop them with a warning, or stop.", default="drop"
    )
