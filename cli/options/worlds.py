"""Options of `simulate`, read as the simulation takes them."""

import re
from dataclasses import fields
from typing import Any

from posbias.cli.options.groups import WorldOptions
from posbias.core.errors import UsageError
from posbias.core.models import get_click_model
from posbias.core.simulation.options import SimulationOptions, shared_parameters

_FLAGS = {f.name: f"--{f.name.replace('_', '-')}" for f in fields(SimulationOptions) if "_" in f.name} | {
    "n_sessions": "--sessions",
    "n_queries": "--queries",
    "n_positions": "--positions",
    "attractiveness_shape": "--attractiveness",
    "satisfaction_shape": "--satisfaction",
    "contexts": "--device",
    "readiness": "--readiness",
    "parameters": "--parameters",
}
"""The names of options in messages of the simulation."""


def simulation_options(world: WorldOptions) -> SimulationOptions:
    """The simulation that options describe.

    Raises:
        UsageError: an option cannot be read, or is out of range.
    """
    get_click_model(world.model)
    alike = {f.name: getattr(world, f.name) for f in fields(SimulationOptions) if hasattr(world, f.name)}
    # A configuration file may set parameters for other models, too.
    parameters = world.parameters or () if shared_parameters(world.model) else ()
    values: dict[str, Any] = alike | {
        "n_sessions": world.sessions,
        "n_queries": world.queries or 1000,
        "docs_per_query": world.docs_per_query or max(20, world.positions),
        "n_positions": world.positions,
        "theta": _numbers("--theta", world.theta) if world.theta else None,
        "ranker_strength": _number("--ranker-strength", world.ranker_strength),
        "attractiveness_shape": _shape("--attractiveness", world.attractiveness or "1:2"),
        "contexts": tuple(_number_or_numbers("--device", text) for text in world.device or ()),
        "readiness": _numbers("--readiness", world.readiness) if world.readiness else (1.0,),
        "depth": _number_or_numbers("--depth", world.depth) if world.depth else None,
        "swap_share": world.swap_share if world.swap else 0.0,
        "swaps": tuple(map(_swap, world.swap or ())),
        "satisfaction_shape": _shape("--satisfaction", world.satisfaction or "1:1"),
        "parameters": tuple(map(_parameter, parameters)),
    }
    try:
        return SimulationOptions(**values)
    except UsageError as error:
        pattern = "|".join(rf"(?<![\w-]){name}\b" for name in _FLAGS)
        raise UsageError(re.sub(pattern, lambda name: _FLAGS[name[0]], str(error))) from error


def _number(flag: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{flag} {text}: {text.strip()!r} is not a number.") from None


def _numbers(flag: str, text: str) -> tuple[float, ...]:
    return tuple(_number(flag, part) for part in text.split(","))


def _number_or_numbers(flag: str, text: str) -> float | tuple[float, ...]:
    return _numbers(flag, text) if "," in text else _number(flag, text)


def _shape(flag: str, text: str) -> tuple[float, float]:
    first, separator, second = text.partition(":")
    if not separator:
        raise UsageError(f"{flag} {text}: write A:B, such as 1:2.")
    return _number(flag, first), _number(flag, second)


def _parameter(text: str) -> tuple[str, tuple[float, ...]]:
    name, separator, values = text.partition("=")
    if not (separator and name.strip()):
        raise UsageError(f"--parameters {text}: write NAME=VALUE, such as continuation=.9.")
    return name.strip(), _numbers("--parameters", values)


def _swap(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", text)
    if match is None:
        raise UsageError(f"--swap {text}: write two positions, such as 1-5.")
    return int(match[1]), int(match[2])
