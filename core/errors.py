"""Every error that a user can cause, in one tree.

PosbiasError
├── UsageError              an option, or a combination of options, that cannot work
├── LogFormatError          a file that cannot be read as the log it should be
├── SchemaError             columns that are missing, ambiguous or of the wrong type; rows that break the contract
│   └── RoleError           a role that no column of a log plays, or that several could
├── StatisticsError         statistics that cannot be used, or not be merged
├── IdentifiabilityError    a log that cannot say what was asked of it
├── ObjectStoreError        an object store that cannot be reached, or does not do what it is asked
├── MissingExtraError       a library that is installed only with an extra of posbias
├── OutputExistsError       a target that is already there
├── OutputError             a target that cannot be written
└── EngineError             an engine that cannot start, or that broke down

A message says what was found, where, and what to do. The command line prints it and exits with code 2.
"""


class PosbiasError(Exception):
    """The root of the tree: what the command line turns into one message and exit code 2."""


class UsageError(PosbiasError):
    """An option, or a combination of options, that cannot work."""


class LogFormatError(PosbiasError):
    """A file that cannot be read as the log it should be."""


class SchemaError(PosbiasError):
    """Columns that are missing, ambiguous or of the wrong type, or rows that break the contract."""


class RoleError(SchemaError):
    """A role that no column of a log plays, or that several could.

    Attributes:
        options: what to say instead: options with columns, or with COLUMN where there is no guess.
        several: the columns that could each play a role, by the option that names it.
    """

    def __init__(
        self, message: str, options: tuple[str, ...] = (), several: dict[str, tuple[str, ...]] | None = None
    ) -> None:
        super().__init__(message)
        self.options = options
        self.several = several or {}


class StatisticsError(PosbiasError):
    """Statistics that cannot be used, or that cannot be merged."""


class IdentifiabilityError(PosbiasError):
    """A log that cannot say what was asked of it."""


class ObjectStoreError(PosbiasError):
    """An object store that cannot be reached, or does not do what it is asked."""


class MissingExtraError(PosbiasError):
    """A library that is installed only with an extra of posbias."""


class OutputExistsError(PosbiasError):
    """A target that is already there."""


class OutputError(PosbiasError):
    """A target that cannot be written: no permission, no space, no such place."""


class EngineError(PosbiasError):
    """An engine that cannot start, or that broke down while it worked."""
