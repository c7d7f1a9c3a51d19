"""XGBoost: LibSVM text, and weights in a file of their own that the script reads.

XGBoost's own reader of text is deprecated since 3.1, warns, and misses the last bit of every fourth float; rankers
take one weight per group, which that text cannot hold. So the script reads both by other means, exactly.
"""

from collections.abc import Sequence
from typing import BinaryIO

import polars as pl
import polars.selectors as cs

from posbias.core.errors import SchemaError, UsageError
from posbias.core.training.layouts import GROUP, Layout
from posbias.core.training.layouts.judgments import GRADE
from posbias.core.training.layouts.layout import Weighted
from posbias.io.formats.format import (
    TextFormat,
    check_no_preferences,
    feature_names,
    libsvm_lines,
    write_lines,
    write_whole_lines,
)
from posbias.io.layouts.training_set import TrainingSet

_LARGEST_SINGLE = 3.4028234663852886e38
_WEIGHTS: dict[Weighted | None, str] = {"row": "rows.weight", "group": "groups.weight"}


class XGBoostFormat(TextFormat):
    """`train.svm`, and `rows.weight` or `groups.weight`."""

    name = "xgboost"

    def check(self, layout: Layout) -> None:
        """Its rankers have a place for weights of groups only."""
        if layout.ranked and layout.weighted == "row":
            raise UsageError(
                f"--format {self.name} cannot carry --layout {layout.name}: XGBoost's rankers take one weight per "
                "group, none per row. Write --layout clicked-group, which has one per group, or pointwise; --format "
                f"lightgbm and catboost carry {layout.name}."
            )
        check_no_preferences(self, layout, "XGBoost")

    def files(self, training_set: TrainingSet) -> list[str]:
        """The files that pieces make."""
        weights = _WEIGHTS.get(training_set.layout.weighted)
        return ["train.svm", weights] if weights else ["train.svm"]

    def write_chunk(self, training_set: TrainingSet, chunk: pl.DataFrame, pieces: Sequence[BinaryIO]) -> None:
        """Append some rows, and the weight of each, or the one of each group."""
        _check_finite(training_set, chunk)
        layout = training_set.layout
        start = [chunk[GRADE if layout.graded and layout.ranked else layout.label]]
        if layout.ranked:
            start.append(chunk.select(pl.concat_str(pl.lit("qid:"), GROUP)).to_series())
        write_whole_lines(libsvm_lines(training_set, chunk, *start, first=0), pieces[0])
        for piece in pieces[1:]:
            weighted = chunk.filter(pl.col(GROUP).is_first_distinct()) if layout.weighted == "group" else chunk
            write_lines(weighted.select("weight"), piece)


def _check_finite(training_set: TrainingSet, chunk: pl.DataFrame) -> None:
    """See that the features are numbers that XGBoost takes: it computes in single precision.

    Raises:
        SchemaError: one is not.
    """
    floats = chunk.select(feature_names(training_set)).select(cs.float().fill_nan(None))
    for name in floats.columns:
        value = floats.select(pl.col(name).abs().max()).item()
        if value is not None and value > _LARGEST_SINGLE:
            raise SchemaError(
                f"feature {name!r} reaches {value} in size, and XGBoost takes nothing above {_LARGEST_SINGLE:.4g}. "
                "Leave such values empty, or write --format lightgbm."
            )
