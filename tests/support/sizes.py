"""Print the size of the house: `python tests/support/sizes.py [DIR]`.

A line of code has a token that is no comment and no docstring.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

FOLDERS = ("cli", "core", "io")
EMPTY = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines_of_code(text: str) -> set[int]:
    """Return the numbers of the lines of code."""
    docstrings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for token in tokens if token.type not in EMPTY for line in range(token.start[0], token.end[0] + 1)}
    return lines - docstrings


def sizes(repository: Path) -> dict[str, float]:
    """Return the figures of a checkout, by name."""
    lines = imports = bodies = functions = classes = 0
    files = [path for folder in FOLDERS for path in sorted((repository / folder).rglob("*.py"))]
    by_folder: dict[str, int] = dict.fromkeys(FOLDERS, 0)
    for path in files:
        text = path.read_text(encoding="utf-8")
        of_code, nodes = lines_of_code(text), [*ast.walk(ast.parse(text))]
        lines += len(of_code)
        by_folder[path.relative_to(repository).parts[0]] += len(of_code)
        classes += sum(isinstance(node, ast.ClassDef) for node in nodes)
        for node in nodes:
            span = range(node.lineno, (node.end_lineno or node.lineno) + 1) if isinstance(node, ast.stmt) else range(0)
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports += len(of_code.intersection(span))
            elif isinstance(node, ast.FunctionDef):
                functions += 1
                bodies += len(of_code.intersection(range(node.body[0].lineno, span.stop)))
    of_tests = (path for path in (repository / "tests").rglob("*.py") if "links" not in path.parts)
    tests = sum(len(lines_of_code(path.read_text(encoding="utf-8"))) for path in of_tests)
    beside = {
        f"lines of {name}": sum(
            path.read_text(encoding="utf-8").count("\n")
            for folder in FOLDERS
            for path in (repository / folder).rglob(f"*.{name}")
        )
        for name in ("toml", "sql", "html", "json")
    }
    return {
        "lines of code": lines,
        **{f"  in {folder}": number for folder, number in by_folder.items()},
        **beside,
        "files": len(files),
        "classes": classes,
        "functions": functions,
        "mean body of a function": bodies / functions,
        "lines of imports": imports,
        "lines of code of tests": tests,
    }


if __name__ == "__main__":
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2]
    for name, value in sizes(root).items():
        print(f"{name:26} {value:9,.{1 if isinstance(value, float) else 0}f}")  # noqa: T201
