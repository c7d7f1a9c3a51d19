"""A file of options, written whole or not at all, and never over another one that nobody asked to replace."""

import os
import secrets
from pathlib import Path

from posbias.core.errors import OutputError, OutputExistsError
from posbias.io.places.plain_files import state_of
from posbias.io.results.renames import rename_new, sync_directory


def check_free(target: Path, *, force: bool) -> None:
    """See that the file may be written.

    Raises:
        OutputExistsError: it is there, and is not to be replaced.
        OutputError: it is to be replaced, and is no plain file.
    """
    if not os.path.lexists(target):
        return
    if not force:
        raise OutputExistsError(f"{target}: already exists. Use --force to replace it.")
    try:
        state_of(target)
    except OSError as error:
        raise OutputError(f"{target}: is not replaced: {error.strerror}.") from error


def write_settings(target: Path, text: str, *, force: bool) -> None:
    """Write the file.

    Raises:
        OutputExistsError: it is there, and is not to be replaced.
        OutputError: it cannot be written.
    """
    unfinished = target.with_name(f".{target.name}-{secrets.token_hex(8)}")
    try:
        try:
            _write(unfinished, text)
            check_free(target, force=force)
            if force:
                unfinished.replace(target)
            else:
                rename_new(unfinished, target)
        finally:
            unfinished.unlink(missing_ok=True)
        sync_directory(target.absolute().parent)
    except UnicodeEncodeError as error:
        raise OutputError(f"{target}: cannot be written: a name is not UTF-8, and TOML is. Rename the file.") from error
    except FileExistsError as error:
        raise OutputExistsError(f"{target}: already exists. Use --force to replace it.") from error
    except OSError as error:
        raise OutputError(f"{target}: cannot be written: {error.strerror}.") from error


def _write(path: Path, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with os.fdopen(handle, "wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
