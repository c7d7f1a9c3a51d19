"""How many threads a command works with."""

import os

_SETTINGS = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS")  # the latter is LightGBM's


def use_threads(number: int | None) -> None:
    """Let what is loaded from now on work with so many threads; None: with all, or as the environment says.

    Polars reads its setting once, when it is loaded.
    """
    if number is not None:
        os.environ.update(dict.fromkeys(_SETTINGS, str(number)))
