"""Theta as a curve over positions, and over contexts: free, of a given shape, or shrunk.

They start from the free estimate and its covariance; none reads the counts of a log anew. A shape is a class
below `CurveShape`. A line in `choices` names it.
"""

from posbias.core.choices import FREE, SHAPES, Room, unknown_name
from posbias.core.shapes.shape import CurveShape

__all__ = ["FREE", "CurveShape", "get_shape", "shape_names"]

_SHAPES = Room[CurveShape](SHAPES, "--shape")


def shape_names() -> list[str]:
    """The names that `--shape` takes, in the order in which help shows them."""
    return [FREE, *_SHAPES.names()]


def get_shape(name: str) -> CurveShape:
    """The shape of that name, other than `free`.

    Raises:
        UsageError: there is none.
    """
    if name not in SHAPES:
        raise unknown_name("--shape", name, shape_names())
    return _SHAPES.get(name)
