"""Tests of training files train with one thread."""

from collections.abc import Generator
from importlib import import_module
from typing import Any

import pytest

threadpoolctl: Any = import_module("threadpoolctl")  # without types


@pytest.fixture(autouse=True)
def one_thread() -> Generator[None]:
    """Trainers share the processors with the other tests: with a thread each they would only wait for each other."""
    with threadpoolctl.threadpool_limits(1):
        yield
