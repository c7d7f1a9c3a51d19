"""Requests to object stores, and local copies of results and statistics.

Polars reads the logs; here objects are listed, read in ranges, put and deleted. Credentials are looked up as in Polars:
in the environment, in `~/.aws`, by boto3 if it is installed, from the role of the machine.

Results and statistics are small, and read several times by a command: they are copied beside the temporary files, and
read like results on disk. A copy exists until the command ends.
"""

import errno
import fnmatch
import glob
import os
import re
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from posbias.core.errors import MissingExtraError, ObjectStoreError, OutputError, PosbiasError
from posbias.io.places.locations import Location, ObjectUrl
from posbias.io.places.ownership import owned_directory, system_temporary
from posbias.io.places.temporary import temporary_files

_AWS = ("s3", "s3a")
_CONNECT = timedelta(seconds=5)
_RETRIES = {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}
_NANOSECONDS = 10**9
_STATIC_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_NO_KEYS = ("Missing AccessKeyId", "Missing SecretAccessKey")
_METADATA_SERVICES = ("169.254.169.254", "169.254.170.2", "/latest/api/token", "metadata.google.internal")
_NO_STORE = (
    *(
        "Got invalid list response",
        "non-partial response",
        "Unable to extract metadata",
        "redirect without LOCATION",
        "invalid utf-8",
    ),
    *("404 Not Found", "405 Method Not Allowed", "501 Not Implemented"),
)
"""Words in obstore's errors about answers that no object store gives; errors of a store have a code."""
_CODE = re.compile(r"<Code>(\w+)</Code>")
_ROUTE = re.compile(r"https?://[^/\s]+")


@dataclass(frozen=True)
class StoredObject:
    """An object of a store."""

    url: ObjectUrl
    bytes: int  # size
    modified: int  # nanoseconds since 1970
    version: str | None = None  # entity tag, which changes with the content, if the store has one


def find_object(url: ObjectUrl) -> StoredObject | None:
    """Return the object with exactly that key; None if there is none.

    Raises:
        ObjectStoreError: the store cannot be reached.
    """
    if not url.key:
        return None
    with _requests(url) as obstore:
        try:
            return _stored(url, obstore.head(_store(url.root), url.key))
        except FileNotFoundError:
            return None


def list_objects(prefix: ObjectUrl) -> list[StoredObject]:
    """List all objects below a prefix, sorted by key.

    Raises:
        ObjectStoreError: the store cannot be reached, or the bucket does not exist.
    """
    bucket = ObjectUrl(prefix.scheme, prefix.bucket, "")
    with _requests(prefix) as obstore:
        pages = obstore.list(_store(prefix.root), prefix=prefix.key or None)
        objects = [_stored(bucket / entry["path"], entry) for page in pages for entry in page]
    return sorted(objects, key=lambda entry: entry.url)


def read_ranges(url: ObjectUrl, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Read several pieces of an object, each given by (start, length), at once."""
    starts, lengths = [start for start, _ in ranges], [length for _, length in ranges]
    with _requests(url) as obstore:
        return [bytes(piece) for piece in obstore.get_ranges(_store(url.root), url.key, starts=starts, lengths=lengths)]


def read_object(url: ObjectUrl) -> bytes:
    """Read a small object into memory."""
    with _requests(url) as obstore:
        return bytes(obstore.get(_store(url.root), url.key).bytes())


def download(url: ObjectUrl, path: Path) -> None:
    """Write an object to a file, chunk by chunk."""
    with _requests(url) as obstore, path.open("wb") as file:
        for chunk in obstore.get(_store(url.root), url.key):
            file.write(chunk)


def upload(content: Path | bytes, url: ObjectUrl) -> None:
    """Put an object atomically."""
    with _requests(url) as obstore:
        obstore.put(_store(url.root), url.key, content)


def delete(urls: Iterable[ObjectUrl]) -> None:
    """Delete objects of one bucket; missing ones are no error."""
    keys = {url.key: url for url in urls}
    if keys:
        first = next(iter(keys.values()))
        with _requests(first) as obstore:
            obstore.delete(_store(first.root), list(keys))


def storage_options(location: Location) -> dict[str, str]:
    """Return options for Polars: settings that only `~/.aws` has, for S3; otherwise none."""
    return _aws_settings(os.environ) if isinstance(location, ObjectUrl) and location.scheme in _AWS else {}


def forget_stores() -> None:
    """Look up credentials anew at the next request."""
    _store.cache_clear()


def _stored(url: ObjectUrl, entry: Any) -> StoredObject:  # noqa: ANN401 - a dictionary of obstore's
    modified = int(entry["last_modified"].timestamp() * _NANOSECONDS)
    return StoredObject(url, entry["size"], modified, entry.get("e_tag"))


def _obstore() -> Any:  # noqa: ANN401 - only here: a local run does without it
    try:
        return import_module("obstore")
    except ImportError as error:
        raise MissingExtraError.of("reading and writing object stores (s3://, gs://, ...)", "obstore") from error


@cache
def _store(root: str) -> Any:  # noqa: ANN401 - one of obstore's classes
    settings: dict[str, Any] = {}
    client: dict[str, Any] = {"connect_timeout": _CONNECT}
    if root.partition(":")[0] in _AWS:
        settings = {"config": _aws_settings(os.environ)}
        client["allow_http"] = True  # as Polars does: the endpoint says which it is
        session = _boto3_session(settings["config"])
        if session is not None:
            provider: Callable[..., object] = import_module("obstore.auth.boto3").Boto3CredentialProvider
            settings["credential_provider"] = provider(session)
    _obstore()
    return import_module("obstore.store").from_url(root, client_options=client, retry_config=_RETRIES, **settings)


def _boto3_session(settings: Mapping[str, str]) -> Any:  # noqa: ANN401 - boto3 has no types
    """Return a session with credentials (SSO, roles, ...), if neither the environment nor `~/.aws` has keys."""
    if "AWS_ACCESS_KEY_ID" in os.environ or _STATIC_KEYS[0] in settings or find_spec("boto3") is None:
        return None
    broken: type[Exception] = import_module("botocore.exceptions").BotoCoreError
    try:
        session = import_module("boto3").Session()
        return session if session.get_credentials() is not None else None
    except broken as error:
        raise ObjectStoreError(f"the AWS settings of this machine cannot be used: {error}.") from error


def _aws_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the profile in `~/.aws` that the environment lacks: keys, region, endpoint."""
    name = environment.get("AWS_PROFILE", "default")
    config = environment.get("AWS_CONFIG_FILE", "~/.aws/config")
    keys = environment.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    profile = _section(config, name if name == "default" else f"profile {name}") | _section(keys, name)
    settings: dict[str, str] = {}
    if "AWS_ACCESS_KEY_ID" not in environment:
        settings |= {key: profile[key] for key in _STATIC_KEYS if key in profile}
    if "region" in profile and environment.keys().isdisjoint(("AWS_REGION", "AWS_DEFAULT_REGION")):
        settings["aws_region"] = profile["region"]
    endpoints = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT")
    if "endpoint_url" in profile and environment.keys().isdisjoint(endpoints):
        settings["aws_endpoint_url"] = profile["endpoint_url"]
    return settings


def _section(name: str, section: str) -> dict[str, str]:
    """Read a section of a file of `~/.aws`; empty if it does not exist, or the user has no home."""
    from configparser import Error, RawConfigParser  # noqa: PLC0415 - a local run does without it

    parser = RawConfigParser(strict=False)
    try:
        parser.read(Path(name).expanduser(), encoding="utf-8")
    except RuntimeError:
        return {}
    except (Error, OSError, UnicodeDecodeError) as error:
        raise ObjectStoreError(f"{Path(name).expanduser()}: cannot be read: {str(error).splitlines()[0]}") from error
    return dict(parser[section]) if parser.has_section(section) else {}


@contextmanager
def _requests(url: ObjectUrl) -> Generator[Any]:
    """Provide obstore for the block, and translate its errors to one line that names the URL.

    Raises:
        ObjectStoreError: the store cannot be reached, or refuses a request.
        MissingExtraError: obstore is not installed.
    """
    obstore = _obstore()
    try:
        yield obstore
    except (obstore.exceptions.BaseError, FileNotFoundError, ValueError) as error:
        raise ObjectStoreError(f"{url}: {_in_words(url, error)}") from error


def _in_words(url: ObjectUrl, error: Exception) -> str:
    """Explain an error of obstore."""
    text = str(error)
    route, code = _ROUTE.search(text), _CODE.search(text)
    if code is not None and code[1] == "NoSuchBucket":
        return f"there is no bucket {url.bucket!r}."
    if any(words in text for words in (*_NO_KEYS, *_METADATA_SERVICES)):  # the last source of credentials
        return (
            "there are no credentials. For s3:// set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE for "
            "those in ~/.aws."
        )
    if "403 Forbidden" in text or "401 Unauthorized" in text:
        return f"access is denied{f' ({code[1]})' if code else ''}. Check the credentials and what they permit."
    if "error sending request" in text:
        return f"{route[0] if route else 'the store'} cannot be reached. Check the endpoint and the network."
    if isinstance(error, FileNotFoundError):
        return "there is no such object."
    if code is None and any(words in text for words in _NO_STORE):
        return "what answers is no object store. Check the endpoint, such as AWS_ENDPOINT_URL, and the proxy."
    return f"the store says: {code[1] if code else text.strip().splitlines()[0].rstrip('.')}."


def named_objects(url: ObjectUrl) -> dict[ObjectUrl, list[StoredObject]]:
    """Return the object of a URL, or the prefixes that it matches, each with all objects below it, sorted by key.

    Wildcards are those of file names: `*` stops at a slash, `**` does not, and neither matches hidden names.

    Raises:
        ObjectStoreError: the store cannot be reached.
    """
    single = find_object(url)
    if single is not None:
        return {url: [single]}
    if not glob.has_magic(url.key):
        below = list_objects(url)
        return {url: below} if below else {}
    objects: dict[ObjectUrl, list[StoredObject]] = {}
    parts = url.path.parts
    fixed = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    for entry in list_objects(ObjectUrl(url.scheme, url.bucket, "/".join(parts[:fixed]))):
        own = entry.url.path.parts
        candidates = (own, *(own[:length] for length in range(1, len(own))))  # the object, then its prefixes
        if (match := next((candidate for candidate in candidates if _matches(candidate, parts)), None)) is not None:
            objects.setdefault(ObjectUrl(url.scheme, url.bucket, "/".join(match)), []).append(entry)
    return objects


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Match the parts of a key with those of a pattern."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        is_visible = bool(parts) and not parts[0].startswith(".")
        return _matches(parts, pattern[1:]) or (is_visible and _matches(parts[1:], pattern))
    if not parts or (parts[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


_NO_FILE_NAME = (errno.ENAMETOOLONG, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
"""Errors about keys that are no file names, such as one of 300 bytes, or `a` beside `a/b`."""


_parent: list[Path] = []  # the command's directory for temporary files, if an option names one
_directory = ExitStack()  # of the copies

_COPIES = "copies"
copies: dict[Hashable, Any] = {}
"""Copies and conversions of the inputs of a command, which may read them several times, by their origin."""


@contextmanager
def copies_below(temporary: Path | None) -> Generator[None]:
    """Make copies below a directory for temporary files during the block, and remove them at its end."""
    _parent[:] = [] if temporary is None else [temporary]
    try:
        yield
    finally:
        _directory.close()
        _parent.clear()
        copies.clear()
        forget_stores()


def folder_for_copies() -> Path:
    """Make a directory for copies and conversions of inputs, which exists until the command ends."""
    if _COPIES not in copies:
        place = _parent[0] if _parent else system_temporary()
        copies[_COPIES] = _directory.enter_context(owned_directory(place.absolute()))
    folder: Path = copies[_COPIES]
    return Path(mkdtemp(dir=folder))


@contextmanager
def on_disk(place: Location, names: Collection[str] | None = None) -> Generator[Path]:
    """Provide a directory, or a copy of a prefix, which is made again if its objects have changed.

    Errors of posbias in the block name the original.

    Args:
        place: a directory, or a prefix of an object store.
        names: the needed files and subdirectories; None for all.

    Raises:
        ObjectStoreError: the store cannot be reached.
        OutputError: the disk is full, or a key cannot be a file name.
    """
    if isinstance(place, Path):
        yield place
        return
    objects = _list_needed(place, names)
    _, listed, folder = copies.get(place, (None, None, None))
    if listed != objects:
        folder = folder_for_copies()
        with temporary_files(folder):
            for entry in objects:
                path = folder / entry.url.path.relative_to(place.path)
                if not path.resolve().is_relative_to(folder.resolve()):
                    raise OutputError(f"{entry.url}: cannot be copied: its name leads out of the directory.")
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    download(entry.url, path)
                except OSError as error:
                    if error.errno not in _NO_FILE_NAME:
                        raise
                    what = f"cannot be copied to a file: {error.strerror}. Remove it."
                    raise OutputError(f"{entry.url}: {what}") from error
        copies[place] = names, objects, folder
    try:
        yield folder
    except PosbiasError as error:
        raise error.reworded(lambda line: line.replace(str(folder), str(place))) from error


def is_current(place: Location) -> bool:
    """Return True unless objects have changed since they were copied; always for a directory on disk.

    Raises:
        ObjectStoreError: the store cannot be reached.
    """
    if isinstance(place, Path) or place not in copies:
        return True
    names, listed, _ = copies[place]
    return listed == _list_needed(place, names)


def _list_needed(url: ObjectUrl, names: Collection[str] | None) -> list[StoredObject]:
    """List the objects below a prefix, of which the needed files and subdirectories have the names."""
    objects = list_objects(url)
    if names is None:
        return objects
    return [entry for entry in objects if str(entry.url.path.relative_to(url.path)).partition("/")[0] in names]
