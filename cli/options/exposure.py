"""The options of methods that learn from the features of every impression."""

from dataclasses import dataclass
from typing import Annotated

from posbias.cli.options.option import option
from posbias.core.estimators import methods_of_rows
from posbias.io.features.of_parts import Missing

_ESTIMATING = "Estimating"
_METHODS = " or ".join(methods_of_rows())


@dataclass(frozen=True)
class ExposureOptions:
    """How features are learnt from."""

    ranker_score: Annotated[
        str | None,
        option(
            "--ranker-score",
            "Column of the log or of --features with the score that the ranker ordered the page by.",
            _ESTIMATING,
            metavar="COLUMN",
        ),
    ] = None
    sample_pages: Annotated[
        int,
        option(
            "--sample-pages",
            "Learn relevance and position from N pages at most; all pages are then scored.",
            _ESTIMATING,
            min=2,
            metavar="N",
        ),
    ] = 20_000


@dataclass(frozen=True)
class FeatureOptions(ExposureOptions):
    """The same, and the features themselves."""

    features: Annotated[
        list[str] | None,
        option(
            "--features",
            f"With --method {_METHODS}: table of features by query and document, or by document. Repeatable.",
            _ESTIMATING,
        ),
    ] = None
    feature: Annotated[
        list[str] | None,
        option(
            "--feature",
            f"With --method {_METHODS}: log column to use as a feature. Repeatable.",
            _ESTIMATING,
            metavar="COLUMN",
        ),
    ] = None
    missing: Annotated[
        Missing,
        option("--missing", "Rows without features: stop, drop them, or leave the values empty.", _ESTIMATING),
    ] = "error"
