"""Measures of a ranking by clicks, each one file: what a document that was clicked counts at a rank."""

from posbias.core.choices import MEASURES
from posbias.core.evaluation.measures.measure import Measure
from posbias.core.registry import Room

_ROOM = Room[Measure](MEASURES, "--measure")


def measures() -> tuple[Measure, ...]:
    """All measures, in the order of help."""
    return tuple(_ROOM.plugins.values())
