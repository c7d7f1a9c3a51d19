"""Training files: features, laid-out rows, the formats of trainers, and models on disk."""

from posbias.core.choices import FORMATS, Room
from posbias.core.errors import UsageError
from posbias.core.training.layout import Layout
from posbias.io.training.format import TrainingFormat

__all__ = ["TrainingFormat", "check_format", "format_names", "formats_that_take", "get_format", "trainers_that_carry"]

_FORMATS = Room[TrainingFormat](FORMATS, "--format")

format_names, get_format, formats_that_take = _FORMATS.names, _FORMATS.get, _FORMATS.that_take


def trainers_that_carry(layout: Layout) -> list[str]:
    """Return the names of the formats with features that can carry a layout."""
    return [name for name, form in _FORMATS.plugins.items() if form.needs_features and form.carries(layout)]


def check_format(name: str, layout: Layout, *, has_features: bool) -> None:
    """Check that a format can carry a layout.

    Raises:
        UsageError: the format does not exist, cannot carry the layout, or needs features and there are none.
    """
    form = get_format(name)
    form.check(layout)
    if form.needs_features and not has_features:
        raise UsageError(
            f"--format {name} writes what a model learns from, and there are no features: name a table of them with "
            "--features FILE. Ids, labels and weights alone are written by --format parquet or csv."
        )
