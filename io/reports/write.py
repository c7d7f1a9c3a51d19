"""A report is one file: written whole or not at all, and never over a file that posbias did not make."""

import os
from pathlib import Path

from posbias.core.errors import OutputError, OutputExistsError, UsageError
from posbias.io.places.plain_files import open_plain, state_of
from posbias.io.reports.stamps import is_stamped, stamped
from posbias.io.results.commits import committing
from posbias.io.results.files import listed_in
from posbias.io.results.renames import exchange, rename_new, sync_directory
from posbias.io.temporary.directories import owned_directory

LARGEST = 1 << 28
"""Bytes of the largest file that can be a report; a larger one is not looked into."""


def check_target(target: Path, *, force: bool) -> None:
    """See that a report may be written there.

    Raises:
        OutputExistsError: something is there, and is not to be replaced.
        OutputError: what is there was not written by posbias, or was changed since; or there is no such directory.
        UsageError: it would lie in a result, which can then no longer be replaced.
    """
    folder = target.absolute().parent
    try:
        str(target).encode()
        is_folder = folder.is_dir()
    except (UnicodeEncodeError, ValueError, OSError) as error:
        raise OutputError(f"{str(target)!a}: cannot be the name of a file: {error}.") from error
    if not is_folder:
        raise OutputError(f"{target}: cannot be written: there is no directory {folder}. Make it first.")
    if listed_in(folder) is not None:
        raise UsageError(
            f"{target}: lies in a result of posbias, which holds nothing but its own files. Name a file elsewhere, "
            f"such as {folder.parent / f'{folder.name}{target.suffix}'}."
        )
    if not os.path.lexists(target):
        return
    if not force:
        raise OutputExistsError(f"{target}: already exists. Choose another name, or replace it with --force.")
    _check_ours(target)


def _check_ours(target: Path) -> None:
    """See that a file is a report, as it was written.

    Raises:
        OutputError: it is not.
    """
    try:
        size = state_of(target).bytes
        with open_plain(target) as file:
            ours = size <= LARGEST and is_stamped(file.read(size + 1))
    except OSError as error:
        raise OutputError(f"{target}: is not replaced: {error.strerror}.") from error
    if not ours:
        raise OutputError(
            f"{target}: is no report of posbias, or has been changed since. --force replaces only reports as they were "
            "written. Choose another name, or remove it yourself."
        )


def write_report(target: Path, content: bytes, *, force: bool) -> None:
    """Write a report.

    Raises:
        OutputExistsError: something is there, and is not to be replaced.
        OutputError: it cannot be written, or what is there was not written by posbias.
    """
    check_target(target, force=force)
    with owned_directory(target.absolute().parent, hidden=True) as work:
        made = work / "report"
        try:
            _write(made, stamped(content))
            with committing():
                _move(made, target, force=force)
            sync_directory(target.absolute().parent)
        except FileExistsError as error:
            raise OutputExistsError(f"{target}: already exists: it appeared during this run and was kept.") from error
        except OSError as error:
            raise OutputError(f"{target}: cannot be written: {error.strerror}. Nothing was written.") from error


def _move(made: Path, target: Path, *, force: bool) -> None:
    """Put the report into place; what comes out of there is looked at once more, and goes back if it is not ours."""
    if not (force and os.path.lexists(target)):
        rename_new(made, target)
        return
    _check_ours(target)
    if not exchange(made, target):
        made.replace(target)
        return
    try:
        _check_ours(made)
    except OutputError:
        exchange(made, target)
        raise


def _write(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
