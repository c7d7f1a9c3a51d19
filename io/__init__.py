"""Everything that touches a disk, an engine or a file format."""  # noqa: A005 - installed as posbias.io

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posbias.io.notebooks.fit import fit
    from posbias.io.notebooks.results import FitResult, open_result

__all__ = ["FitResult", "fit", "open_result"]

_HOMES = {"FitResult": "results", "fit": "fit", "open_result": "results"}


def __getattr__(name: str) -> object:
    """What notebooks import, from its home when it is first asked for: whoever imports a room pays for that alone."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.notebooks.{_HOMES[name]}"), name)
