"""Requests to object stores that Polars does not make: list, read a range, put, delete.

Polars reads the logs by itself. Credentials are looked up as Polars does: the environment, `~/.aws`, boto3 where it
is installed, the machine's role.

Results and statistics in object stores: copied beside the temporary files, and then read like those on disk.

They are small, and read several times in a command. A copy lives as long as the command.
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
_OF_NO_STORE = (
    *(
        "Got invalid list response",
        "non-partial response",
        "Unable to extract metadata",
        "redirect without LOCATION",
        "invalid utf-8",
    ),
    *("404 Not Found", "405 Method Not Allowed", "501 Not Implemented"),
)
"""Words in obstore's errors about an answer that no object store gives; a store's own errors have a code."""
_CODE = re.compile(r"<Code>(\w+)</Code>")
_ROUTE = re.compile(r"https?://[^/\s]+")


@dataclass(frozen=True)
class StoredObject:
    """An object of a store."""

    url: ObjectUrl  # where it is
    bytes: int  # its size
    modified: int  # when it was last changed, in nanoseconds
    version: str | None = None  # what differs once its content does, where the store says so


def find_object(url: ObjectUrl) -> StoredObject | None:
    """The object of exactly that name, if there is one.

    Raises:
        ObjectStoreError: the store cannot be reached.
    """
    if not url.key:
        return None
    with _asking(url) as obstore:
        try:
            return _stored(url, obstore.head(_store(url.root), url.key))
        except FileNotFoundError:
            return None


def list_objects(prefix: ObjectUrl) -> list[StoredObject]:
    """All objects below a prefix, sorted by key.

    Raises:
        ObjectStoreError: the store cannot be reached, or there is no such bucket.
    """
    bucket = ObjectUrl(prefix.scheme, prefix.bucket, "")
    with _asking(prefix) as obstore:
        pages = obstore.list(_store(prefix.root), prefix=prefix.key or None)
        objects = [_stored(bucket / entry["path"], entry) for page in pages for entry in page]
    return sorted(objects, key=lambda entry: entry.url)


def read_ranges(url: ObjectUrl, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Several pieces of an object, by start and length, at once."""
    starts, lengths = [start for start, _ in ranges], [length for _, length in ranges]
    with _asking(url) as obstore:
        return [bytes(piece) for piece in obstore.get_ranges(_store(url.root), url.key, starts=starts, lengths=lengths)]


def read_object(url: ObjectUrl) -> bytes:
    """A small object, whole."""
    with _asking(url) as obstore:
        return bytes(obstore.get(_store(url.root), url.key).bytes())


def download(url: ObjectUrl, path: Path) -> None:
    """Write an object to a file, without holding it in memory."""
    with _asking(url) as obstore, path.open("wb") as file:
        for chunk in obstore.get(_store(url.root), url.key):
            file.write(chunk)


def upload(content: Path | bytes, url: ObjectUrl) -> None:
    """Put an object in one step: it is there whole, or not at all."""
    with _asking(url) as obstore:
        obstore.put(_store(url.root), url.key, content)


def delete(urls: Iterable[ObjectUrl]) -> None:
    """Remove objects of one bucket; what is not there is no error."""
    keys = {url.key: url for url in urls}
    if keys:
        first = next(iter(keys.values()))
        with _asking(first) as obstore:
            obstore.delete(_store(first.root), list(keys))


def storage_options(location: Location) -> dict[str, str]:
    """Options with which Polars reads from there: none for a path, for a URL the settings that only `~/.aws` has."""
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
    """A session that knows credentials (SSO, roles, ...), where neither the environment nor `~/.aws` holds keys."""
    if "AWS_ACCESS_KEY_ID" in os.environ or _STATIC_KEYS[0] in settings or find_spec("boto3") is None:
        return None
    broken: type[Exception] = import_module("botocore.exceptions").BotoCoreError
    try:
        session = import_module("boto3").Session()
        return session if session.get_credentials() is not None else None
    except broken as error:
        raise ObjectStoreError(f"the AWS settings of this machine cannot be used: {error}.") from error


def _aws_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings of the profile in `~/.aws` that the environment lacks: keys, region, endpoint."""
    profile = environment.get("AWS_PROFILE", "default")
    config = environment.get("AWS_CONFIG_FILE", "~/.aws/config")
    keys = environment.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    held = _section(config, profile if profile == "default" else f"profile {profile}") | _section(keys, profile)
    settings: dict[str, str] = {}
    if "AWS_ACCESS_KEY_ID" not in environment:
        settings |= {name: held[name] for name in _STATIC_KEYS if name in held}
    if "region" in held and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & environment.keys():
        settings["aws_region"] = held["region"]
    if "endpoint_url" in held and not {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"} & environment.keys():
        settings["aws_endpoint_url"] = held["endpoint_url"]
    return settings


def _section(name: str, section: str) -> dict[str, str]:
    """A section of a file of `~/.aws`; empty where there is none, or the user has no home."""
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
def _asking(url: ObjectUrl) -> Generator[Any]:
    """Obstore, whose errors become one line that names the URL.

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
    text = str(error)
    route, code = _ROUTE.search(text), _CODE.search(text)
    if code is not None and code[1] == "NoSuchBucket":
        return f"there is no bucket {url.bucket!r}."
    if any(words in text for words in (*_NO_KEYS, *_METADATA_SERVICES)):  # the last resort for credentials
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
    is_store = code is not None or not any(words in text for words in _OF_NO_STORE)
    says = code[1] if code else text.strip().splitlines()[0].rstrip(".")
    not_one = "what answers is no object store. Check the endpoint, such as AWS_ENDPOINT_URL, and the proxy."
    return f"the store says: {says}." if is_store else not_one


def named_objects(url: ObjectUrl) -> dict[ObjectUrl, list[StoredObject]]:
    """The objects that a URL names, in a stable order: an object with itself, or prefixes with all that is below them.

    A pattern is read as one of file names: `*` stops at a slash, `**` does not, and neither takes hidden names.

    Raises:
        ObjectStoreError: the store cannot be reached.
    """
    single = find_object(url)
    if single is not None:
        return {url: [single]}
    if not glob.has_magic(url.key):
        below = list_objects(url)
        return {url: below} if below else {}
    named: dict[ObjectUrl, list[StoredObject]] = {}
    parts = url.path.parts
    before = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    for entry in list_objects(ObjectUrl(url.scheme, url.bucket, "/".join(parts[:before]))):
        own = entry.url.path.parts  # the object, or else the shortest prefix of it that fits
        candidates = (own, *(own[:length] for length in range(1, len(own))))
        if (match := next((candidate for candidate in candidates if _fits(candidate, parts)), None)) is not None:
            named.setdefault(ObjectUrl(url.scheme, url.bucket, "/".join(match)), []).append(entry)
    return named


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        shown = parts[:1] and not parts[0].startswith(".")
        return _fits(parts, pattern[1:]) or bool(shown and _fits(parts[1:], pattern))
    if not parts or (parts[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])


_NO_FILE = (errno.ENAMETOOLONG, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
"""Errors of a disk at names that only an object store can hold: one of 300 bytes, `a` beside `a/b`."""


_parent: list[Path] = []  # where the command has its temporary files, if it says so
_directory = ExitStack()  # that holds the copies, once there is a first one

_COPIES = "copies"
copies: dict[Hashable, Any] = {}
"""What the command has made of its inputs, by what it was made of: it may read them several times."""


@contextmanager
def copies_below(temporary: Path | None) -> Generator[None]:
    """In this block, copies of what stands in object stores lie below a directory for temporary files.

    Each is made once, and again if what it was made of has changed when it is next needed.
    """
    _parent[:] = [] if temporary is None else [temporary]
    try:
        yield
    finally:
        _directory.close()
        _parent.clear()
        copies.clear()
        forget_stores()


def folder_for_copies() -> Path:
    """A new directory for copies of what cannot be read where it is; it lives as long as the command."""
    if _COPIES not in copies:
        place = _parent[0] if _parent else system_temporary()
        copies[_COPIES] = _directory.enter_context(owned_directory(place.absolute()))
    folder: Path = copies[_COPIES]
    return Path(mkdtemp(dir=folder))


@contextmanager
def on_disk(place: Location, names: Collection[str] | None = None) -> Generator[Path]:
    """A directory as it is, or a copy of it, for as long as the command runs. Errors name what it is a copy of.

    Args:
        place: a directory, or a prefix of an object store.
        names: the files that are needed, or the directories with all in them; None for all.

    Raises:
        ObjectStoreError: the store cannot be reached.
        OutputError: there is no space for the copy.
    """
    if isinstance(place, Path):
        yield place
        return
    objects = _listed(place, names)
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
                    if error.errno not in _NO_FILE:
                        raise
                    what = f"cannot be copied to a file: {error.strerror}. Remove it."
                    raise OutputError(f"{entry.url}: {what}") from error
        copies[place] = names, objects, folder
    try:
        yield folder
    except PosbiasError as error:
        raise error.reworded(lambda line: line.replace(str(folder), str(place))) from error


def is_current(place: Location) -> bool:
    """Whether what was copied is still what stands there; what stands on disk was not copied.

    Raises:
        ObjectStoreError: the store cannot be reached.
    """
    if isinstance(place, Path) or place not in copies:
        return True
    names, listed, _ = copies[place]
    return listed == _listed(place, names)


def _listed(url: ObjectUrl, names: Collection[str] | None) -> list[StoredObject]:
    objects = list_objects(url)
    return [
        one for one in objects if names is None or str(one.url.path.relative_to(url.path)).partition("/")[0] in names
    ]
