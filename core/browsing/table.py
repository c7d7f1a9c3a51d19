"""The parameters of a fitted click model as a table."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from posbias.core.browsing.batch import Floats
from posbias.core.browsing.em import FittedModel
from posbias.core.browsing.parameters import Parameter
from posbias.core.schema import POSITION, PREVIOUS_CLICK

VALUE, STD_ERROR = "value", "std_error"

_SCHEMA = {
    "parameter": pl.String,
    POSITION: pl.Int32,
    PREVIOUS_CLICK: pl.Int32,
    VALUE: pl.Float64,
    STD_ERROR: pl.Float64,
    "prior_mean": pl.Float64,
    "prior_strength": pl.Float64,
}


def parameter_table(
    parameters: tuple[Parameter, ...], fitted: FittedModel, std_errors: Mapping[str, Floats] | None = None
) -> pl.DataFrame:
    """What all units share; of parameters by unit, the mean and the strength of their prior.

    Columns: `parameter`, `position`, `previous_click`, `value`, `std_error`, `prior_mean`, `prior_strength`; null where
    there is none. What no impression decides has no value: EM would leave it where it began.
    """
    rows: list[dict[str, object]] = []
    for parameter in parameters:
        name = parameter.name
        if parameter.shape == "unit":
            prior = fitted.priors[name]
            rows.append({"parameter": name, "prior_mean": prior.mean, "prior_strength": prior.strength})
            continue
        values = fitted.parameters[name]
        if name in fitted.decided:
            values = np.where(fitted.decided[name] > 0, values, np.nan)
        errors = (std_errors or {}).get(name, np.full(values.shape, np.nan))
        for index in np.ndindex(values.shape):
            position, above = (*index, None, None)[:2]
            if position != 0 and (position is None or above is None or above < position):
                cell = {POSITION: position, PREVIOUS_CLICK: above}
                rows.append({"parameter": name, **cell, VALUE: float(values[index]), STD_ERROR: float(errors[index])})
    table = pl.DataFrame(rows, schema=_SCHEMA)
    return table.with_columns(pl.col(VALUE, STD_ERROR).fill_nan(None))
