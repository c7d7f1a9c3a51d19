"""Nothing that is read is run: no file of posbias reads a pickle, or evaluates a text, but where it is listed here."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDERS = ("cli", "core", "io", "sample_logs")

ALLOWED = {
    ("core/choices.py", "import module"): "a file of posbias itself, by the tables of names above it",
    ("io/log/scan.py", "values.list.eval"): "an expression of Polars on the entries of lists, none of which is read",
    ("io/log/lists.py", "text.str.split(self.separator).list.eval"): "likewise",
    (
        "io/log/lists.py",
        "pl.when(text.str.contains(_PY_LIST)).then(text).str.extract_all(_PY_ENTRY).list.eval",
    ): "likewise: text that Python printed is taken apart, not read by Python",
    (
        "io/engines/spark_worker.py",
        "import pickle",
    ): "lazy frames and results, between this process and its Spark workers",
    ("io/engines/spark_worker.py", "pickle.loads"): "only what bears the signature of this process's own token",
}
"""Every place that may read what could be code, with its reason."""

MODULES = {
    *("pickle", "_pickle", "pickletools", "cPickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal"),
    *("shelve", "yaml", "ruamel", "torch", "code", "codeop", "runpy", "imp", "pty"),
}
BUILTINS = {"eval", "exec", "compile", "__import__", "execfile"}
METHODS = {
    *("deserialize", "read_pickle", "from_pickle", "Unpickler", "unsafe_load", "full_load", "load_module"),
    *("exec_module", "spec_from_file_location", "SourceFileLoader", "run_path", "run_module", "eval", "literal_eval"),
    *("__setstate__", "__reduce__", "PyExtensionType"),
}
PICKLES_ON_REQUEST = {"allow_pickle", "shell"}
HARMLESS_COMPILE = {"re"}


def dangers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """What could run code that was read, and the line where it stands."""
    for node in ast.walk(tree):
        for what in _dangers_of(node):
            yield what, getattr(node, "lineno", 0)


def _dangers_of(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (f"import {name.name}" for name in names if _root(name.name) in MODULES)
        case ast.ImportFrom(module=str(module), names=names):
            yield from (f"import {module}" for _ in names[:1] if _root(module) in MODULES)
            yield from (f"{module}.{name.name}" for name in names if name.name in METHODS)
        case ast.Name(id=name) if name in BUILTINS:
            yield name
        case ast.Attribute(value=value, attr=name) if name in METHODS or name == "compile" or "load" in name.lower():
            owner = ast.unparse(value)
            is_compile = name == "compile" and owner not in HARMLESS_COMPILE
            if name in METHODS or is_compile or _root(owner) in MODULES:
                yield f"{owner}.{name}"
        case ast.Call(func=function, args=arguments, keywords=keywords):
            yield from _imported_by_name(function, arguments)
            yield from (
                f"{keyword.arg}={ast.unparse(keyword.value)}"
                for keyword in keywords
                if keyword.arg in PICKLES_ON_REQUEST and ast.unparse(keyword.value) != "False"
            )
        case _:
            pass


def _imported_by_name(function: ast.expr, arguments: list[ast.expr]) -> Iterator[str]:
    """A module that is imported by a text: it must stand there, and be none of those."""
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if not name.endswith("import_module"):
        return
    named = arguments[0].value if arguments and isinstance(arguments[0], ast.Constant) else None
    if not isinstance(named, str) or _root(named) in MODULES:
        yield f"import {named or ast.unparse(arguments[0])}"


def _root(name: str) -> str:
    return name.partition(".")[0]


def test_nothing_that_is_read_is_run(repository: Path, repository_files: set[str]) -> None:
    files = [name for name in sorted(repository_files) if name.startswith(FOLDERS) and name.endswith(".py")]
    found = [
        (name, what, line)
        for name in files
        for what, line in dangers(ast.parse((repository / name).read_text(encoding="utf-8")))
    ]

    assert [f"{name}:{line}: {what}" for name, what, line in found if (name, what) not in ALLOWED] == []
    assert sorted((name, what) for name, what, _ in found) == sorted(ALLOWED)  # each once


def test_nor_by_the_scripts_that_are_written_beside_training_files(
    repository: Path, repository_files: set[str]
) -> None:
    scripts = sorted(name for name in repository_files if re.fullmatch(r"io/training/scripts/\w+\.py\.txt", name))
    words = ("import pickle", "pickle.", "allow_pickle=True", "eval(", "exec(", "marshal", "joblib", "deserialize")
    texts = {name: (repository / name).read_text(encoding="utf-8") for name in scripts}

    assert len(scripts) >= 5
    assert [(name, word) for name, text in texts.items() for word in words if word in text] == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "import pickle as harmless",
        "from pickle import loads",
        "from cloudpickle import load as f",
        "import numpy, marshal",
        "import_module('dill')",
        "importlib.import_module(name)",
        "__import__('pickle')",
        "eval(text)",
        "exec(text)",
        "run = exec",
        "compile(text, 'x', 'exec')",
        "builtins.compile(text, 'x', 'exec')",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=given)",
        "yaml.load(text)",
        "from shelve import open",
        "pl.LazyFrame.deserialize(data)",
        "pl.Expr.deserialize(data)",
        "pd.read_pickle(path)",
        "frame.eval('a + b')",
        "frame.__setstate__(state)",
        "subprocess.run(command, shell=True)",
    ],
)
def test_the_search_finds(code: str) -> None:
    assert list(dangers(ast.parse(code)))


@pytest.mark.parametrize(
    "code", ["re.compile('x')", "np.load(path)", "json.loads(text)", "import_module('pyspark')", "run(x, shell=False)"]
)
def test_the_search_passes_over(code: str) -> None:
    assert not list(dangers(ast.parse(code)))
