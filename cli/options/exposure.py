"""The options of methods that learn from the features of every impression."""

from dataclasses import dataclass
from typing import Annotated

from posbias.cli.options.option import option
from posbias.cli.options.shared import Feature, Features, MissingFeatures

_LEARNING = "Learning from features (--method {methods_of_rows})"


@dataclass(frozen=True)
class ExposureOptions:
    """How features are learnt from."""

    ranker_score: Annotated[
        str | None,
        option(
            "--ranker-score",
            "Column of the log or of --features with the score that the ranker ordered the page by.",
            _LEARNING,
            metavar="COLUMN",
        ),
    ] = None
    sample_pages: Annotated[
        int,
        option(
            "--sample-pages",
            "Learn relevance and position from N pages at most; all pages are then scored.",
            _LEARNING,
            min=2,
            metavar="N",
        ),
    ] = 20_000


@dataclass(frozen=True)
class FeatureOptions(ExposureOptions):
    """The same, and the features themselves."""

    features: Features = None
    feature: Feature = None
    missing: MissingFeatures = "error"
