"""posbias in Python: each command is a function, its options are keyword arguments, its result is an object.

    >>> import posbias
    >>> fit = posbias.fit("logs/*.parquet", max_position=10)
    >>> fit.propensities

`help(posbias.fit)` lists the options. Everything else in the package may change with any version.
"""

import sys

TYPE_CHECKING = False  # true for type checkers; importing `typing` would take longer than this module

if TYPE_CHECKING:
    from posbias.core.errors import PosbiasError
    from posbias.results import (
        Check,
        Result,
        check,
        collect,
        compare,
        evaluate,
        explore,
        export,
        fit,
        interleave,
        open_result,
        predict,
        report,
        run,
        score,
        simulate,
        train,
        weight,
    )

    __version__: str

__all__ = [
    "Check",
    "PosbiasError",
    "Result",
    "__version__",
    "check",
    "collect",
    "compare",
    "evaluate",
    "explore",
    "export",
    "fit",
    "interleave",
    "open_result",
    "predict",
    "report",
    "run",
    "score",
    "simulate",
    "train",
    "weight",
]


def __getattr__(name: str) -> object:
    """Import a public name on its first use: the command line and imports of submodules need none of them."""
    if name not in __all__:
        raise AttributeError(f"module 'posbias' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    if name == "__version__":
        from importlib.metadata import version

        value: object = version("posbias")
    elif name == "PosbiasError":
        from posbias.core import errors

        value = errors.PosbiasError
    else:
        from posbias import results

        value = getattr(results, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
