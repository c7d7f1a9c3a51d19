"""Where a result may stand: what is free, and what `--force` may replace, which is only results of posbias."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from posbias.core.errors import OutputError, OutputExistsError
from posbias.io.results.files import foreign_in, listed_in


@dataclass(frozen=True)
class Target:
    """Where a result will stand."""

    named: Path  # as the user calls it
    path: Path  # its full name, without symbolic links
    force: bool  # whether an older result there is replaced
    protected: tuple[Path, ...]  # what it must not hold

    def __str__(self) -> str:
        return f"{self.named} (a symbolic link to {self.path})" if self.named.is_symlink() else str(self.named)

    @cached_property
    def beside(self) -> Path:
        """The directory in which the result is made: the target's own, or the first above it that there is.

        Raises:
            OutputError: the target is the root of the file system, or nothing above it can be seen.
        """
        if self.path == self.path.parent:
            raise OutputError(f"{self}: is the root of the file system. Name a directory in it.")
        try:
            return next(folder for folder in self.path.parents if folder.exists())
        except OSError as error:
            raise OutputError(f"cannot write {self}: {error.strerror}.") from error

    def check(self) -> None:
        """See whether it is free, or may be replaced.

        Raises:
            OutputExistsError: it is there, and `force` is not given.
            OutputError: it must not be replaced.
        """
        if not _is_there(self):
            return
        if not self.path.is_dir():
            raise OutputExistsError(f"{self}: is a file; the output is a directory. Choose another name.")
        if not self.force:
            raise OutputExistsError(f"{self}: already exists. Choose another name, or replace it with --force.")
        for what, path in self._untouchable():
            if path.is_relative_to(self.path):
                verb = "is" if path == self.path else "holds"
                raise OutputError(f"{self}: {verb} {what}, which --force would delete. Choose another directory.")
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise OutputError(f"{self}: is read-only, so --force does not replace it.")
        self._check_is_result()

    def _untouchable(self) -> Iterator[tuple[str, Path]]:
        """What must not be replaced, in words, and where it is."""
        for what, find in (("the current directory", Path.cwd), ("your home directory", Path.home)):
            with suppress(OSError, RuntimeError):  # there may be neither
                yield what, find().resolve()
        for path in self.protected:
            with suppress(OSError, RuntimeError):  # a loop of links holds nothing
                yield str(path), path.resolve()

    def _check_is_result(self) -> None:
        try:
            holds_nothing = not any(self.path.iterdir())
        except OSError as error:
            raise OutputError(f"{self}: cannot be listed: {error.strerror}. --force does not replace it.") from error
        if holds_nothing:
            return
        listed = listed_in(self.path)
        if listed is None:
            raise OutputError(
                f"{self}: is not empty, and no manifest.json of posbias says what is in it. --force replaces only "
                "results of posbias. Choose another directory, or remove this one yourself."
            )
        foreign = foreign_in(self.path, listed)
        if foreign:
            more = f" and {len(foreign) - 1:,} more" if len(foreign) > 1 else ""
            raise OutputError(
                f"{self}: {foreign[0].relative_to(self.path)}{more} is not part of the result there, or has been "
                "changed since, and --force would delete it. Move it away, or choose another directory."
            )


def _is_there(target: Target) -> bool:
    try:
        return target.path.exists()
    except OSError as error:
        raise OutputError(f"cannot write {target}: {error.strerror}.") from error


def resolved(target: Path) -> Path:
    """The target by its full name. Of a symbolic link, what it points to is replaced, and the link stays."""
    try:
        resolved = target.resolve()
        resolved.exists()
        str(resolved).encode()
    except (OSError, RuntimeError, UnicodeEncodeError) as error:
        raise OutputError(f"{str(target)!a}: cannot be the name of a directory: {error}.") from error
    return resolved
