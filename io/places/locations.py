"""Where a thing is: a path on disk, or the URL of an object (or of all objects below a prefix) in an object store."""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from posbias.core.credentials import without_userinfo

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
"""What Polars reads, and what can be listed and written as well."""

# pathlib folds the two slashes of a URL into one, so that an option that is a Path shows one.
_URL = re.compile(rf"({'|'.join(SCHEMES)}):/{{1,2}}([^/]+)/*(.*)", re.DOTALL)


@dataclass(frozen=True, order=True)
class ObjectUrl:
    """An object, or everything below a prefix; object stores have no directories.

    Attributes:
        scheme: which kind of store, e.g. `s3`.
        bucket: the bucket or container.
        key: the name within the bucket, without a slash at its ends; empty for the whole bucket.
    """

    scheme: str
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{self.root}/{self.key}"

    def __truediv__(self, name: str) -> "ObjectUrl":
        return ObjectUrl(self.scheme, self.bucket, f"{self.key}/{name}" if self.key else name)

    @property
    def root(self) -> str:
        """The bucket alone, as a URL."""
        return f"{self.scheme}://{self.bucket}"

    @property
    def path(self) -> PurePosixPath:
        """The key, to look at its parts as at those of a path."""
        return PurePosixPath(self.key)

    @property
    def suffix(self) -> str:
        """The ending of the name."""
        return self.path.suffix

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.path.name

    def resolve(self) -> "ObjectUrl":
        """Itself: in an object store a thing has one name."""
        return self

    def is_relative_to(self, other: "ObjectUrl") -> bool:
        """Whether it is `other`, or below it."""
        return self.root == other.root and self.path.is_relative_to(other.path)


Location: TypeAlias = Path | ObjectUrl


def location(name: str | Path) -> Location:
    """What a name stands for. Keys in a URL (`s3://KEY:SECRET@bucket`) are none that a store asks for: they go."""
    match = _URL.fullmatch(without_userinfo(str(name)))
    return ObjectUrl(match[1], match[2], match[3].strip("/")) if match else Path(name)
