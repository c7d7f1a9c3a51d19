"""Memory that is freed is kept for a while, where the system's allocator can be told so."""

import ctypes
import os
from types import SimpleNamespace

import pytest

from posbias.cli.streams import keep_freed_memory

SETTING = "_RJEM_MALLOC_CONF"


def test_what_the_environment_says_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "dirty_decay_ms:0")
    told = list[tuple[int, int]]()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=lambda *both: told.append(both)))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    keep_freed_memory()
    assert os.environ[SETTING] == "dirty_decay_ms:0"
    assert [parameter for parameter, _ in told] == [-1, -3, -8]


def test_other_allocators_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    keep_freed_memory()
    assert os.environ[SETTING].startswith("dirty_decay_ms")
    monkeypatch.delenv(SETTING)
