"""A Poisson regression with a fixed effect per pair, by pyfixest; run by the interpreter of its own environment.

    PYFIXEST_PYTHON tests/benchmarks/recovery_fepois_peer.py COUNTS OUTPUT

COUNTS has one row per pair and cell: `pair`, `query`, `cell`, `impressions`, `clicks`. Written are log theta relative
to cell 0, and its standard error by query. Both are CSV, which needs no further package.
"""

import sys
from importlib import import_module
from typing import Any

import numpy as np

TOLERANCE = 1e-12


def main() -> None:
    """Read, fit, write."""
    counts, output = sys.argv[1:]
    pyfixest, pandas = (import_module(name) for name in ("pyfixest", "pandas"))
    table: Any = pandas.read_csv(counts)
    table["log_impressions"] = np.log(table["impressions"])
    fit: Any = pyfixest.fepois(
        "clicks ~ i(cell, ref=0) | pair",
        data=table,
        vcov={"CRV1": "query"},
        offset="log_impressions",
        iwls_tol=TOLERANCE,
        iwls_maxiter=100,
        fixef_tol=TOLERANCE,
        fixef_maxiter=1_000_000,
    )
    cell = [int(name.split("::")[-1]) for name in fit.coef().index]
    found = {"cell": cell, "log_theta": fit.coef().to_numpy(), "std_error": fit.se().to_numpy()}
    pandas.DataFrame(found).to_csv(output, index=False)


if __name__ == "__main__":
    main()
