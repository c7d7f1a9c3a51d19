"""`posbias explore`: what to show next to learn most, from a fit."""

from typing import Annotated

from posbias.cli.options.exploration import ExplorationOptions
from posbias.cli.options.option import argument, read_place
from posbias.cli.options.output import OutputOptions
from posbias.io.places.locations import Location


def explore(
    fit: Annotated[Location, argument("FIT", "Directory written by `posbias fit` or `run`.", read_place)],
    exploration: ExplorationOptions,
    output: OutputOptions,
) -> int:
    """Say which positions to swap, and which documents to show, to learn most.

    Example: posbias explore fit --pages 20000 -o explored
    """
    from posbias.cli.work import exploring

    return exploring.explore(fit, exploration, output)
