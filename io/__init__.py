"""Everything that touches a disk, an engine or a file format."""  # noqa: A005 - installed as posbias.io

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posbias.io.notebooks.fitted_frame import FitResult, fit, open_result

__all__ = ["FitResult", "fit", "open_result"]


def __getattr__(name: str) -> object:
    """What notebooks import, when it is first needed: whoever imports a room pays for that room alone."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from posbias.io.notebooks import fitted_frame  # noqa: PLC0415 - see above

    return {"FitResult": fitted_frame.FitResult, "fit": fitted_frame.fit, "open_result": fitted_frame.open_result}[name]
