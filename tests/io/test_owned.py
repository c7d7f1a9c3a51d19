"""Temporary directories belong to a running process, whatever other runs do beside it."""

import os
from pathlib import Path

import pytest

from posbias.io.owned import owned_by_this_process, owned_directory


def test_a_directory_that_another_run_removes_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, removed = os.open, list[Path]()

    def too_late(path: Path, flags: int, *, dir_fd: int | None = None) -> int:
        if not removed:
            path.rmdir()
            removed.append(path)
        return opened(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr("posbias.io.owned.os.open", too_late)
    with owned_directory(tmp_path, "posbias-") as folder:
        assert folder.is_dir()
        assert folder not in removed
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_known_as_ours_from_before_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[bool] = []
    make = Path.mkdir

    def watched(path: Path) -> None:
        known.append(path in owned_by_this_process())
        make(path)

    monkeypatch.setattr(Path, "mkdir", watched)
    with owned_directory(tmp_path, "mine-") as path:
        assert owned_by_this_process().count(path) == 1
    assert known == [True]
    assert path not in owned_by_this_process()
