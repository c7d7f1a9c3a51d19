"""Whether two files of a log hold the same rows, and whether each is still the file that was found."""

from collections.abc import Callable, Sequence

from posbias.core.credentials import masked
from posbias.core.errors import LogFormatError, UsageError
from posbias.io.log.sources import Source, each_source
from posbias.io.places.locations import ObjectUrl
from posbias.io.places.object_stores import find_object

_MAY_BE_EMPTY = 1 << 16  # bytes of headers and footers alone


def digests(sources: Sequence[Source], holds_rows: Callable[[Source], bool]) -> dict[str, str]:
    """Path by digest, of the files that hold rows.

    Args:
        sources: the files.
        holds_rows: tells files with rows from those without, which may well be equal.

    Raises:
        UsageError: two files hold the same rows.
    """

    def fingerprint(source: Source) -> str | None:
        return None if source.bytes < _MAY_BE_EMPTY and not holds_rows(source) else source.digest()

    found: dict[str, str] = {}
    for source, digest in zip(sources, each_source(fingerprint, sources), strict=True):
        if digest is None:
            continue
        if digest in found:
            raise UsageError(
                f"{source.path} and {found[digest]} hold the same data: their rows would be counted twice. "
                "Name one of them."
            )
        found[digest] = masked(str(source.path))
    return found


def check_unchanged(sources: Sequence[Source]) -> None:
    """See that files that were read are still those that were found.

    Raises:
        LogFormatError: one was changed, replaced or removed meanwhile.
    """
    for source, now in zip(sources, each_source(_version, sources), strict=True):
        if now != (source.file, source.bytes, _in_its_precision(source, source.modified)):
            what = "is gone" if now is None else "was changed or replaced"
            raise LogFormatError(
                f"{source.path}: {what} while it was read, so what was counted is unknown. Run again when "
                "nothing is writing to it."
            )


def _in_its_precision(source: Source, modified: int) -> int:
    """A time in nanoseconds, or in seconds where an object store says no more when it is asked for one object."""
    return modified if source.store is None else modified // 10**9


def _version(source: Source) -> tuple[tuple[int, int] | None, int, int] | None:
    """What tells one state of a file or object from another; None where it is gone."""
    origin = source.origin
    if isinstance(origin, ObjectUrl):
        found = find_object(origin)
        return None if found is None else (None, found.bytes, _in_its_precision(source, found.modified))
    try:
        status = origin.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (status.st_dev, status.st_ino), status.st_size, status.st_mtime_ns
