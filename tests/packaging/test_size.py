"""The size of the house, which may shrink and not grow. `python tests/packaging/test_size.py` prints it."""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
AIMS = {
    "lines of code": 28_000,
    "lines": 45_000,
    "files": 180,
    "folders": 32,
    "classes": 380,
    "functions": 2_600,
    "files with a name that another has": 20,
    "lines of code of tests": 24_000,
    "lines of Markdown": 3_000,
    "modules of ours that `run` loads": 120,
    "words of a private dialect": 0,
}
LIMITS = AIMS | {
    "lines of code": 41_669,
    "lines": 62_970,
    "files": 224,
    "classes": 569,
    "functions": 3_689,
    "lines of code of tests": 37_084,
    "modules of ours that `run` loads": 142,
    "words of a private dialect": 11,
    "lines of Markdown": 3_235,
}
"""No figure goes above these: an aim, or, where it is not reached, what was; lower one when you come below it."""

_DIALECT = re.compile(r"said|asked|told|found|likewise", re.IGNORECASE)
_OTHER_WORDS = re.compile(r"notfounderror|masked", re.IGNORECASE)
_EMPTY = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def sizes(repository: Path) -> dict[str, int]:
    """The figures of a checkout, by name."""
    house = [path for folder in ("core", "io", "cli") for path in sorted((repository / folder).rglob("*.py"))]
    tests = sorted((repository / "tests").rglob("*.py"))
    text = {path: path.read_text(encoding="utf-8") for path in [*house, *tests]}
    nodes = [node for path in house for node in ast.walk(ast.parse(text[path]))]
    names = Counter(path.name for path in house if path.name != "__init__.py")
    documents = [path for path in repository.rglob("*.md") if not {".venv", ".pytest_cache", "build"} & set(path.parts)]
    return {
        "lines of code": sum(_lines_of_code(text[path]) for path in house),
        "lines": sum(text[path].count("\n") for path in house),
        "files": len(house),
        "folders": len({path.parent for path in house}),
        "classes": sum(isinstance(node, ast.ClassDef) for node in nodes),
        "functions": sum(isinstance(node, ast.FunctionDef) for node in nodes),
        "files with a name that another has": sum(count for count in names.values() if count > 1),
        "lines of code of tests": sum(_lines_of_code(text[path]) for path in tests),
        "lines of Markdown": sum(path.read_text(encoding="utf-8").count("\n") for path in documents),
        "words of a private dialect": sum(len(_DIALECT.findall(_OTHER_WORDS.sub("", text[path]))) for path in house),
    }


def _lines_of_code(text: str) -> int:
    """Lines with something else than comments and docstrings."""
    strings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for token in tokens if token.type not in _EMPTY for line in range(token.start[0], token.end[0] + 1)}
    return len(lines - strings)


def test_the_house_does_not_grow(repository: Path) -> None:
    assert {name: value for name, value in sizes(repository).items() if value > LIMITS[name]} == {}


def test_the_main_job_loads_few_modules(sample_logs: Path, tmp_path: Path) -> None:
    assert (
        _modules_loaded(sample_logs / "web_search.parquet", tmp_path / "out")
        <= LIMITS["modules of ours that `run` loads"]
    )


def _modules_loaded(log: Path, out: Path) -> int:
    """How many of our modules `posbias run` loads."""
    script = (
        "import sys; from posbias.cli.__main__ import main\n"
        f"sys.argv = ['posbias', 'run', {str(log)!r}, '-o', {str(out)!r}, '--quiet']\n"
        "try: main()\n"
        "finally: print(sum(name.startswith('posbias.') for name in sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=out.parent)
    return int(result.stdout.split()[-1])


if __name__ == "__main__":
    for name, value in sizes(ROOT).items():
        print(f"{name:36} {value:7,}   limit {LIMITS[name]:7,}   aim {AIMS[name]:7,}")  # noqa: T201
