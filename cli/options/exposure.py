"""The options of methods that learn from the features of every impression."""

from posbias.cli.options.option import option, options
from posbias.cli.options.shared import FEATURE, FEATURES, MISSING
from posbias.core.choices import Missing


@options("Learning from features (--method {methods_of_rows})")
class ExposureOptions:
    """How features are learnt from."""

    ranker_score: str | None = option(
        "Column of the log or of --features with the score that the ranker ordered the page by.", "COLUMN"
    )
    sample_pages: int = option(
        "Learn relevance and position from N pages at most; all pages are then scored.", "N", default=20_000, min=2
    )


@options("Features")
class FeatureOptions(ExposureOptions):
    """The same, and the features themselves."""

    features: list[str] | None = FEATURES
    feature: list[str] | None = FEATURE
    missing: Missing = MISSING
