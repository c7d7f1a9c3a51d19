"""`posbias weight`: training files, from logs and the propensities of a fit."""

from typing import Annotated

from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.option import argument
from posbias.cli.options.output import ResultOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.options.shared import PROPENSITIES
from posbias.cli.options.training import TrainingOptions


def weight(
    inputs: Annotated[
        list[str], argument("LOGS|STATISTICS...", "Logs; for pointwise and judgments, statistics will do.")
    ],
    propensities: Annotated[str, PROPENSITIES],
    columns: ColumnOptions,
    reading: ReadingOptions,
    training: TrainingOptions,
    output: ResultOptions,
) -> int:
    """Write training files whose weights correct for position bias.

    Example: posbias weight logs/*.parquet --propensities fit -o weighted
    """
    from posbias.cli.work import weighting

    return weighting.weight(inputs, propensities, columns, reading, training, output)
