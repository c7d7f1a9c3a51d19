"""Everything that touches a disk, an engine or a file format."""  # noqa: A005 - installed as posbias.io

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posbias.io.notebooks.fit import fit
    from posbias.io.notebooks.results import FitResult, open_result

__all__ = ["FitResult", "fit", "open_result"]


def __getattr__(name: str) -> object:
    """What notebooks import, when it is first asked for: whoever imports a room pays for that room alone."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from posbias.io.notebooks import fit, results  # noqa: PLC0415 - see above

    return {"FitResult": results.FitResult, "fit": fit.fit, "open_result": results.open_result}[name]
