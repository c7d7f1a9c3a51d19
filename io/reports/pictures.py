"""One chart of a report as a picture, for mail and slides."""

import json
from collections.abc import Sequence
from typing import Any

import vl_convert

from posbias.core.errors import UsageError
from posbias.core.escapes import escaped
from posbias.io.reports.drawing import picture_config
from posbias.io.reports.elements import Figure
from posbias.io.reports.sections.contents import Part

_WIDTH = 720  # pixels
_SCALE = 2.0  # of PNG, for screens of high resolution


def figure_named(parts: Sequence[Part], name: str) -> Figure:
    """The first chart of a kind.

    Raises:
        UsageError: the report has none.
    """
    figures = [
        block for part in parts for section in part.sections for block in section.blocks if isinstance(block, Figure)
    ]
    found = next((figure for figure in figures if figure.name == name), None)
    if found is None:
        known = ", ".join(dict.fromkeys(figure.name for figure in figures)) or "none"
        raise UsageError(f"--chart {name}: these results have no such chart. Charts of them: {known}.")
    return found


def svg_of(figure: Figure, title: str) -> bytes:
    """A chart as SVG."""
    return vl_convert.vegalite_to_svg(_picture(figure, title)).encode()


def png_of(figure: Figure, title: str) -> bytes:
    """A chart as PNG."""
    return vl_convert.vegalite_to_png(_picture(figure, title), scale=_SCALE)


def _picture(figure: Figure, title: str) -> str:
    spec: dict[str, Any] = {
        **figure.spec,
        "config": picture_config(),
        "description": escaped(figure.description),
        "padding": 16,
        "title": {"text": figure.title, "subtitle": title},
        "width": _WIDTH,
    }
    return json.dumps(spec, allow_nan=False)
