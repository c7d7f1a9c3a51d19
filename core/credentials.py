"""Passwords and keys in texts: they are taken out of all that is printed or written."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

MASK = "***"

_LONGEST = 4096
_STORES = ("s3", "s3a", "gs")  # whose buckets have no @ in their names, as containers of abfs:// do
_USERINFO = re.compile(rf"(?<=:)(/{{1,3}})([^\s/@:?#]*)(:(?:(?!://)\S){{0,{_LONGEST}}})?@")
_SCHEME = re.compile(r"[a-z][a-z0-9+.\-]*\Z", re.IGNORECASE)
_LONGEST_SCHEME = 20
_PORT = re.compile(r":\d{1,5}[/?#]")
_SECRET = r"(?:signature|credential|secret|password|passwd|token|api[-_]?key|access[-_]?key|account[-_]?key)"  # noqa: S105
_PARAMETER = re.compile(
    rf"([?#&;](?:[\w.\-]{{0,40}}{_SECRET}[\w.\-]{{0,40}}|sig|pwd|key|auth)=)[^\s&;'\"<>]+", re.IGNORECASE
)
_SETTING = re.compile(
    r"(\b\w{0,40}(?:secret[-_]?access[-_]?key|session[-_]?token|account[-_]?key|shared[-_]?access[-_]?signature"
    r"|password)['\"]?\s{0,3}=\s{0,3}['\"]?)[^\s&;,'\"<>]+",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"(\bauthorization['\"]?\s{0,3}[:=]\s{0,3}['\"]?(?:basic|bearer)\s{1,3})[^\s'\"<>]+", re.IGNORECASE
)
_TOKEN_OF_AWS = re.compile(r"(<Token[^<>]{0,20}>)[^<>]+")


def masked(text: str) -> str:
    """A text in which `***` stands for passwords and keys.

    These are what stands before the @ of a URL, parameters of a URL that sign it (`X-Amz-Signature`, `sig`, `token`,
    ...), and settings such as `aws_secret_access_key=`.
    """
    if "@" in text:
        text = _USERINFO.sub(_masked_userinfo, text)
    for pattern in (_PARAMETER, _SETTING, _HEADER, _TOKEN_OF_AWS):
        text = pattern.sub(rf"\1{MASK}", text)
    return text


def holds_key(url: str) -> bool:
    """Whether a parameter of a URL, in its query or its fragment, is a password or a key."""
    return _PARAMETER.search(url) is not None


def masked_values(content: object) -> Any:  # noqa: ANN401 - what was given
    """Plain values (of JSON) with all their texts masked; keys stay."""
    if isinstance(content, str):
        return masked(content)
    if isinstance(content, Mapping):
        return {key: masked_values(value) for key, value in cast("Mapping[Any, object]", content).items()}
    if isinstance(content, list | tuple):
        return [masked_values(value) for value in cast("Sequence[object]", content)]
    return content


def without_userinfo(url: str) -> str:
    """The URL of an object store without what stands before its @, which says nothing of where the object is."""
    found = _USERINFO.match(url, url.find(":") + 1)
    if found is None or _of_place(found):
        return url
    return url[: found.end(1)] + url[found.end(1) :].partition("@")[2]


def _masked_userinfo(found: re.Match[str]) -> str:
    return found[0] if _of_place(found) else f"{found[1]}{MASK}@"


def _of_place(found: re.Match[str]) -> bool:
    """Whether it only looks like user and password: a port, a container of Azure's, or no URL at all."""
    before = found.string[max(found.start() - 1 - _LONGEST_SCHEME, 0) : found.start() - 1]
    scheme = _SCHEME.search(before)
    kind, after = scheme[0].lower() if scheme else "", found[3]
    if kind.endswith(_STORES):
        return False
    if after is None:
        return found[1] == "/" or not found[2] or kind.endswith(("abfs", "abfss", "wasb", "wasbs"))
    return _PORT.match(after) is not None
