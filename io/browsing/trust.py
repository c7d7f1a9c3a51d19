"""Trust bias as it is given: a table of alpha and beta by position.

    P(C_r = 1) = alpha_k gamma_qd + beta_k,    alpha_k = theta_k (eps+_k - eps-_k),    beta_k = theta_k eps-_k

Source: Agarwal et al. 2019 (WWW); Vardasbi, Oosterhuis & de Rijke 2020 (CIKM).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from posbias.core.browsing.batch import Floats
from posbias.core.errors import SchemaError
from posbias.core.models.tpbm import CLICK_IF_NOT, CLICK_IF_RELEVANT
from posbias.core.schema import POSITION
from posbias.io.log.quoting import resolve_quotes
from posbias.io.log.scan import reading, scan_sources
from posbias.io.log.sources import find_sources

_AFFINE = ("alpha", "beta")
_PARTS = ("theta", "epsilon_plus", "epsilon_minus")
_DEEPEST = 100_000


def read_trust(file: str) -> dict[str, Floats]:
    """The parameters of the trust-bias model, shape (K + 1,) each, nan where the table lacks a position.

    Args:
        file: a table with `position` and either `alpha` and `beta`, or `theta`, `epsilon_plus` and `epsilon_minus`.

    Raises:
        LogFormatError: it is missing, or cannot be read.
        SchemaError: columns are missing, a position stands twice, or a value is none.
    """
    sources = resolve_quotes(find_sources([file], "Name a table of position, alpha and beta."))[0]
    with reading(sources):
        table = scan_sources(sources).collect()
    names = next((names for names in (_AFFINE, _PARTS) if {POSITION, *names} <= set(table.columns)), None)
    if names is None:
        raise SchemaError(
            f"--trust {file}: it must have the columns {POSITION}, {' and '.join(_AFFINE)}; or {POSITION}, "
            f"{', '.join(_PARTS[:2])} and {_PARTS[2]}. The columns are: {', '.join(table.columns)}."
        )
    position, values = _numbers(table, names, file)
    alpha, beta = values if names == _AFFINE else (values[0] * (values[1] - values[2]), values[0] * values[2])
    _check(file, position, alpha, beta, values if names == _PARTS else [])
    clicked = {CLICK_IF_RELEVANT.name: alpha + beta, CLICK_IF_NOT.name: beta}
    return {name: _by_position(position, of_positions) for name, of_positions in clicked.items()}


def _numbers(table: pl.DataFrame, names: Sequence[str], file: str) -> tuple[Floats, list[Floats]]:
    """Position and the other columns, as numbers."""
    columns: list[Floats] = []
    for name in (POSITION, *names):
        values = table[name].cast(pl.Float64, strict=False)
        broken = values.is_null() | ~values.is_finite().fill_null(value=False)
        if broken.any():
            row = int(broken.arg_true()[0])
            said = table[name][row]
            raise SchemaError(f"--trust {file}: row {row + 1}: {name} is {said!r}; it must be a number.")
        columns.append(values.to_numpy())
    position = columns[0]
    if not len(position):
        raise SchemaError(f"--trust {file}: holds no row.")
    wrong = np.flatnonzero((position < 1) | (position != np.floor(position)) | (position > _DEEPEST))
    if len(wrong):
        where = f"--trust {file}: row {wrong[0] + 1}"
        raise SchemaError(f"{where}: position {position[wrong[0]]:g} must be a whole number from 1 to {_DEEPEST:,}.")
    if len(np.unique(position)) < len(position):
        raise SchemaError(f"--trust {file}: a position stands twice. Write one row for each.")
    return position, columns[1:]


def _check(file: str, position: Floats, alpha: Floats, beta: Floats, shares: Sequence[Floats]) -> None:
    """See that all are probabilities, and that a click says something of its document.

    Raises:
        SchemaError: one is none.
    """
    wrong = (alpha <= 0) | (beta < 0) | (alpha + beta > 1)
    for values in shares:
        wrong |= (values < 0) | (values > 1)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise SchemaError(
            f"--trust {file}: position {position[row]:g}: alpha is {alpha[row]:g} and beta {beta[row]:g}. alpha must "
            "be above 0, beta at least 0, and alpha + beta, the click rate of a relevant document, at most 1."
        )


def _by_position(position: Floats, values: Floats) -> Floats:
    by_position = np.full(int(position.max()) + 1, np.nan)
    by_position[position.astype(np.int64)] = values
    return by_position


def check_positions(trust: Mapping[str, Floats], shown: Sequence[int], file: str) -> None:
    """See that trust is given for all positions of a log.

    Args:
        trust: as from `read_trust`.
        shown: the positions.
        file: where trust comes from.

    Raises:
        SchemaError: it is not.
    """
    known = trust[CLICK_IF_NOT.name]
    missing = [k for k in sorted(shown) if k >= len(known) or np.isnan(known[k])]
    if missing:
        raise SchemaError(
            f"--trust {file}: says nothing of position {missing[0]}, which the log shows. Add a row for it, or leave "
            "such results out with --max-position."
        )
