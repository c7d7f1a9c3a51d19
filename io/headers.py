"""The names in the first line of text files: no two columns may pass for one."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from posbias.core.errors import SchemaError
from posbias.io.scan import header_of, reading, schema_of
from posbias.io.sources import Source

_RENAMED = "_duplicated_"  # by Polars


def check_headers(sources: Sequence[Source], columns: Iterable[str]) -> None:
    """See that each file has one column of each of these names, and none that differs from it by blanks only.

    Raises:
        SchemaError: a name stands twice, so that nobody knows which column is meant.
    """
    wanted = {name.strip() for name in columns if name.strip()}
    for source in sources:
        for alike in _alike(source).values():
            if len(alike) > 1 and alike[0].strip() in wanted:
                raise SchemaError(
                    f"{source.path}: {len(alike)} columns are called alike: {', '.join(map(repr, alike))}. Rename all "
                    "but one of them."
                )


def _alike(source: Source) -> dict[str, list[str]]:
    """The names of the columns by what is left of them without blanks."""
    with reading([source]):
        names = list(schema_of(source))
        if any(_RENAMED in name for name in names):
            names = header_of(source) or names
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        alike[name.strip()].append(name)
    return alike
