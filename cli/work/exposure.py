"""From options and features to an estimate that is made from the rows of a log."""

from collections.abc import Sequence

from posbias.cli.options.exposure import ExposureOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.core.choices import Missing
from posbias.core.errors import UsageError
from posbias.core.estimators import MethodOfRows, get_method
from posbias.core.schema import RESERVED
from posbias.io.features.of_parts import RowsRequest, WantedFeatures
from posbias.io.features.table import is_in_a_table


def requested_rows(
    method: str,
    features: tuple[Sequence[str] | None, Sequence[str] | None, Missing],
    exposure: ExposureOptions,
    reading: ReadingOptions,
) -> RowsRequest | None:
    """What a method of rows is asked; None for other methods.

    Args:
        method: its name.
        features: tables, columns of the log, and what becomes of rows without.
        exposure: the options of such methods.
        reading: how the log is read.

    Raises:
        LogFormatError: a table of features is missing.
        MissingExtraError: LightGBM is not installed.
        UsageError: there is no feature, or rows cannot be read so.
    """
    if not isinstance(get_method(method), MethodOfRows):
        return None
    tables, columns, missing = tuple(features[0] or ()), tuple(features[1] or ()), features[2]
    named = [("--feature", name) for name in columns] + [("--ranker-score", exposure.ranker_score)]
    for flag, name in named:
        if name in RESERVED:
            raise UsageError(f"{flag} {name}: this name is reserved. Rename the column to use it as a feature.")
    if not tables and not columns:
        raise UsageError(
            f"--method {method}: says nothing without features. Name a table of them (--features FILE) or columns of "
            "the log (--feature COLUMN)."
        )
    if reading.engine != "polars":
        raise UsageError(f"--method {method}: runs on this machine only. Use --engine polars.")
    from posbias.core.learners.boosting import import_lightgbm  # noqa: PLC0415 - no other method grows trees

    import_lightgbm()
    score = exposure.ranker_score
    if score is not None and score not in columns and not is_in_a_table(score, tables):
        columns = (*columns, score)
    return RowsRequest(method, WantedFeatures(tables, columns, missing), score, exposure.sample_pages)
