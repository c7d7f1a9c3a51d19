"""Theta as a curve over positions, and over contexts: free, of a given shape, or shrunk.

They start from the free estimate and its covariance; none reads the counts of a log anew. A shape is one file here: a
class below `CurveShape`. It is found because it lies here.
"""

from posbias.core.errors import UsageError
from posbias.core.registry import Room
from posbias.core.shapes.shape import CurveShape

__all__ = ["FREE", "CurveShape", "get_shape", "shape_names", "shapes_in_words"]

FREE = "free"
"""The name of no shape."""

_SHAPES = Room(__name__, __path__, (CurveShape,), "--shape")


def shape_names() -> list[str]:
    """The names that `--shape` takes, in the order in which help shows them."""
    return [FREE, *_SHAPES.names]


def get_shape(name: str) -> CurveShape:
    """The shape of that name, other than `free`.

    Raises:
        UsageError: there is none.
    """
    if name not in _SHAPES.names:
        raise UsageError(f"--shape {name}: unknown name; choose from {', '.join(shape_names())}.")
    return _SHAPES.get(name)


def shapes_in_words() -> str:
    """The shapes with what they say, e.g. `free, monotone (never rising)`."""
    return ", ".join([FREE, *(f"{name} ({shape.in_words})" for name, shape in _SHAPES.plugins.items())])
