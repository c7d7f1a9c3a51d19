"""Every place that removes, renames or overwrites is on the list in writing_calls.txt, with the reason why it may."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REMOVE = {"rmtree", "unlink", "rmdir", "removedirs", "remove_tree", "execv", "execve", "execvp", "kill", "killpg"}
WRITE = {
    *("write_text", "write_bytes", "write_parquet", "write_csv", "write_ipc", "write_ndjson", "ParquetWriter"),
    *(
        "sink_parquet",
        "sink_csv",
        "sink_ipc",
        "sink_ndjson",
        "new_file",
        "touch",
        "truncate",
        "ftruncate",
        "chmod",
        "chown",
    ),
    *("copy2", "copytree", "copyfile", "copyfileobj", "copy_file_range"),
    *("link", "symlink", "symlink_to", "hardlink_to", "renames", "renameat2"),
}
ROW = re.compile(r"^\| `(?P<file>[^`]+)` `(?P<function>\w+)` \| (?P<calls>[^|]+) \| (?P<why>[^|]+) \|$")


def calls_of(function: ast.FunctionDef) -> Iterator[str]:
    """The calls in a function that remove, rename or write, by name."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if _rounds_times(name, node):
                continue
            if name in REMOVE | WRITE or _renames(name, node) or _opens_to_write(name, node) or _in_store(name, node):
                yield name


def _rounds_times(name: str, call: ast.Call) -> bool:
    return name == "truncate" and ast.unparse(call.func).endswith(".dt.truncate")


def _renames(name: str, call: ast.Call) -> bool:
    """Path.rename(target), Path.replace(target), os.rename(one, other), but not methods of text, frames and arrays."""
    of_os = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "os"
    first = call.args[0] if call.args else None
    if name == "rename":
        return of_os or (len(call.args) == 1 and not isinstance(first, ast.Dict | ast.DictComp))
    if name in {"copy", "move"}:
        return ast.unparse(call.func).startswith("shutil.")
    if name in {"replace", "remove"}:
        of_path = isinstance(call.func, ast.Attribute) and len(call.args) == 1 and not call.keywords
        return of_os or (name == "replace" and of_path)
    return False


def _opens_to_write(name: str, call: ast.Call) -> bool:
    if name != "open":
        return False
    modes = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    flags = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC")
    return any(re.fullmatch(r"[rwaxbt+]+", mode) and set(mode) & set("wax+") for mode in modes) or any(
        flag in ast.unparse(call) for flag in flags
    )


def _in_store(name: str, call: ast.Call) -> bool:
    return name in {"put", "delete"} and ast.unparse(call.func).startswith("obstore.")


def places_in(repository: Path) -> dict[tuple[str, str], set[str]]:
    """Calls by file and function."""
    found: dict[tuple[str, str], set[str]] = {}
    for path in sorted(path for folder in ("cli", "core", "io") for path in (repository / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and (calls := set(calls_of(node))):
                found.setdefault((path.relative_to(repository).as_posix(), node.name), set()).update(calls)
    return found


@pytest.mark.slow
def test_every_place_that_removes_renames_or_overwrites_is_listed_with_its_reason(repository: Path) -> None:
    table = Path(__file__).with_name("writing_calls.txt")
    rows = [ROW.match(line) for line in table.read_text(encoding="utf-8").splitlines()]
    listed = {(row["file"], row["function"]): set(row["calls"].split(", ")) for row in rows if row is not None}
    assert all(row is None or row["why"].strip() for row in rows)
    assert places_in(repository) == listed


def test_the_calls_that_matter_are_found() -> None:
    code = """
def harm(path, text, frame):
    shutil.rmtree(path); path.unlink(); os.remove(path); path.rename(text); os.replace(path, text); path.replace(text)
    path.open("wb"); open(path, "a"); os.open(path, os.O_CREAT); obstore.delete(path, []); os.rename(path, text)
def harmless(path, text, frame):
    text.replace("a", "b"); frame.rename({"a": "b"}); replace(frame, path=path); path.open("rb"); names.remove(text)
    open(path); os.open(path, os.O_RDONLY)
"""
    harm, harmless = (node for node in ast.parse(code).body if isinstance(node, ast.FunctionDef))
    assert sorted(calls_of(harm)) == sorted(
        ["rmtree", "unlink", "remove", "rename", "rename", "replace", "replace", "open", "open", "open", "delete"]
    )
    assert list(calls_of(harmless)) == []
