"""What travels together travels as one thing: no signature of the numerics takes it apart."""

import ast
from pathlib import Path

import pytest

APART = [{"table", "linkage", "fit"}, {"unit", "cluster", "table"}, {"linkage", "errors"}]
"""Arguments that stand for strata with their members, for a fit with its linkage, and for a fit with both."""


def parameters(path: Path) -> dict[str, set[str]]:
    """The words of each function's parameters, e.g. `cluster_of_member` -> cluster."""
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    return {
        node.name: {argument.arg.split("_of_")[0] for argument in (*node.args.args, *node.args.kwonlyargs)}
        for node in functions
    }


@pytest.mark.parametrize("room", ["theta", "standard_errors", "shapes", "estimators", "fit"])
def test_counts_linkage_members_and_errors_are_handed_on_as_one(room: str, repository: Path) -> None:
    signatures = [
        (f"{path.name}: {name}", words)
        for path in sorted((repository / "core" / room).glob("*.py"))
        for name, words in parameters(path).items()
    ]
    assert signatures
    assert [name for name, words in signatures if any(apart <= words for apart in APART)] == []


def test_one_class_holds_the_ends_of_intervals(repository: Path) -> None:
    holding = [
        node.name
        for path in sorted((repository / "core").rglob("*.py"))
        if "high: " in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and {"low", "ci_low"} & _fields(node) and {"high", "ci_high"} & _fields(node)
    ]
    assert holding == ["Intervals"]


def _fields(node: ast.ClassDef) -> set[str]:
    annotated = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
    return {target.id for target in annotated if isinstance(target, ast.Name)}
