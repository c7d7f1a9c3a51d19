"""What is done in an object store beside what Polars does there: list, read a range, put, delete.

Polars reads the logs by itself. Credentials are found as Polars finds them: the environment, `~/.aws`, boto3 where it
is installed, the machine's role.
"""

import os
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from posbias.core.errors import MissingExtraError, ObjectStoreError
from posbias.io.places.locations import Location, ObjectUrl

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
"""What obstore says of an answer that an object store would not give; a store's own errors have a code."""
_CODE = re.compile(r"<Code>(\w+)</Code>")
_ROUTE = re.compile(r"https?://[^/\s]+")


@dataclass(frozen=True)
class StoredObject:
    """One object."""

    url: ObjectUrl  # where it is
    bytes: int  # its size
    modified: int  # when it was last changed, in nanoseconds
    version: str | None = None  # what differs once its content does, where the store says so


def find_object(url: ObjectUrl) -> StoredObject | None:
    """The object of exactly that name, if there is one.

    Raises:
        ObjectStoreError: the store cannot be asked.
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
        ObjectStoreError: the store cannot be asked, or there is no such bucket.
    """
    bucket = ObjectUrl(prefix.scheme, prefix.bucket, "")
    with _asking(prefix) as obstore:
        pages = obstore.list(_store(prefix.root), prefix=prefix.key or None)
        found = [_stored(bucket / entry["path"], entry) for page in pages for entry in page]
    return sorted(found, key=lambda entry: entry.url)


def read_range(url: ObjectUrl, start: int, length: int) -> bytes:
    """Some bytes of an object."""
    with _asking(url) as obstore:
        return bytes(obstore.get_range(_store(url.root), url.key, start=start, length=length))


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
    """What Polars must be told to read from there: nothing of a path, and of a URL what only `~/.aws` says."""
    return _aws_settings(os.environ) if isinstance(location, ObjectUrl) and location.scheme in _AWS else {}


def forget_stores() -> None:
    """Look up credentials anew when a store is next asked."""
    _store.cache_clear()


def _stored(url: ObjectUrl, entry: Any) -> StoredObject:  # noqa: ANN401 - a dictionary of obstore's
    modified = int(entry["last_modified"].timestamp() * _NANOSECONDS)
    return StoredObject(url, entry["size"], modified, entry.get("e_tag"))


def _obstore() -> Any:  # noqa: ANN401 - only here: a local run does without it
    try:
        return import_module("obstore")
    except ImportError as error:
        raise MissingExtraError(
            "object stores (s3://, gs://, ...) need the extra `cloud`: pip install 'posbias[cloud]'."
        ) from error


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
    """What the profile in `~/.aws` says and the environment does not: keys, region, endpoint."""
    profile = environment.get("AWS_PROFILE", "default")
    config, keys = (
        _at_home(environment.get(name, f"~/.aws/{file}"))
        for name, file in (("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials"))
    )
    said = _section(config, profile if profile == "default" else f"profile {profile}") | _section(keys, profile)
    found: dict[str, str] = {}
    if "AWS_ACCESS_KEY_ID" not in environment:
        found |= {name: said[name] for name in _STATIC_KEYS if name in said}
    if "region" in said and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & environment.keys():
        found["aws_region"] = said["region"]
    if "endpoint_url" in said and not {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"} & environment.keys():
        found["aws_endpoint_url"] = said["endpoint_url"]
    return found


def _at_home(name: str) -> Path | None:
    """The path with its ~ expanded; None for a user without a home."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return None


def _section(file: Path | None, name: str) -> dict[str, str]:
    from configparser import Error, RawConfigParser  # noqa: PLC0415 - a local run does without it

    parser = RawConfigParser(strict=False)
    if file is None:
        return {}
    try:
        parser.read(file, encoding="utf-8")
    except (Error, OSError, UnicodeDecodeError) as error:
        raise ObjectStoreError(f"{file}: cannot be read: {str(error).splitlines()[0]}") from error
    return dict(parser[name]) if parser.has_section(name) else {}


@contextmanager
def _asking(url: ObjectUrl) -> Generator[Any]:
    """Obstore, whose errors become one line that names the URL.

    Raises:
        ObjectStoreError: the store cannot be reached, or does not do what it is asked.
        MissingExtraError: obstore is not installed.
    """
    obstore = _obstore()
    try:
        yield obstore
    except (obstore.exceptions.BaseError, FileNotFoundError, ValueError) as error:
        raise ObjectStoreError(f"{url}: {_in_words(url, error)}") from error


def _in_words(url: ObjectUrl, error: Exception) -> str:
    said = str(error)
    route, code = _ROUTE.search(said), _CODE.search(said)
    if code is not None and code[1] == "NoSuchBucket":
        return f"there is no bucket {url.bucket!r}."
    if any(words in said for words in (*_NO_KEYS, *_METADATA_SERVICES)):  # the last who are asked for credentials
        return (
            "no credentials were found. For s3:// set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE for "
            "those in ~/.aws."
        )
    if "403 Forbidden" in said or "401 Unauthorized" in said:
        return f"access is denied{f' ({code[1]})' if code else ''}. Check the credentials and what they permit."
    if "error sending request" in said:
        return f"{route[0] if route else 'the store'} cannot be reached. Check the endpoint and the network."
    if isinstance(error, FileNotFoundError):
        return "there is no such object."
    is_store = code is not None or not any(words in said for words in _OF_NO_STORE)
    says = code[1] if code else said.strip().splitlines()[0].rstrip(".")
    not_one = "what answers is no object store. Check the endpoint, such as AWS_ENDPOINT_URL, and the proxy."
    return f"the store says: {says}." if is_store else not_one
