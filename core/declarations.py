"""What plug-ins say of themselves, read from the text of their files, of which none is run.

Help needs no more than names, and one plug-in should not load all others of its room.
"""

import ast
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import chain
from typing import Any

LAST_RANK = 100
"""The place in help of a plug-in that asks for none."""


@dataclass(frozen=True)
class Declaration:
    """A class, as its file declares it.

    Attributes:
        module: the file.
        kind: the name of the class.
        said: its attributes that are literals, by name, and those that it inherits within the package.
    """

    module: str
    kind: str
    said: Mapping[str, Any]


def declared_plugins(
    package: str, bases: Sequence[str], folders: Sequence[str] | None = None, mentions: str = ""
) -> dict[str, Declaration]:
    """The classes of a package that are made from one of these classes and have a `name`, by it, in the order of help.

    Args:
        package: in whose files they are. It is not imported.
        bases: names of classes.
        folders: where the files lie, if that is known.
        mentions: only files that hold this text are looked into.

    Raises:
        TypeError: two have one name.
    """
    if folders is None:
        spec = find_spec(package)
        folders = (spec and spec.submodule_search_locations) or ()
    classes = _classes(package, tuple(folders), mentions)
    by_kind = {each.node.name: each for each in classes}
    below = [each for each in classes if _is_below(each, bases, by_kind)]
    found = [Declaration(each.module, each.node.name, _said(each, by_kind)) for each in below]
    named = [each for each in found if "name" in each.said]
    named.sort(key=lambda each: (each.said.get("rank", LAST_RANK), each.said["name"]))
    by_name = {str(each.said["name"]): each for each in named}
    if len(by_name) < len(named):
        raise TypeError(f"{package}: two of {', '.join(each.said['name'] for each in named)} have one name.")
    return by_name


@dataclass(frozen=True)
class _Class:
    """A class in a file.

    Attributes:
        module: the file.
        node: the class.
        imported: from where the file has names that are not its own.
    """

    module: str
    node: ast.ClassDef
    imported: Mapping[str, str]

    @property
    def bases(self) -> list[str]:
        """The names of the classes that it is made from."""
        return [base.id for base in self.node.bases if isinstance(base, ast.Name)]


@cache
def _classes(package: str, folders: tuple[str, ...], mentions: str) -> tuple[_Class, ...]:
    """The classes in the files of a package that hold some text."""
    finders = [(entry.name, entry.module_finder) for entry in pkgutil.iter_modules(folders)]
    texts = [(f"{package}.{name}", _text(finder.find_spec(name, None), name)) for name, finder in finders]
    return tuple(chain.from_iterable(_classes_of(module, text) for module, text in texts if mentions in text))


@cache
def _classes_outside(module: str) -> tuple[_Class, ...]:
    return tuple(_classes_of(module, _text(find_spec(module), module)))


def _text(spec: Any, module: str) -> str:  # noqa: ANN401 - of finders of any kind
    return spec.loader.get_source(module) or ""


def _classes_of(module: str, text: str) -> list[_Class]:
    if "\nclass " not in text:
        return []
    lines = ast.parse(text).body
    imports = [line for line in lines if isinstance(line, ast.ImportFrom)]
    imported = {entry.asname or entry.name: line.module or "" for line in imports for entry in line.names}
    return [_Class(module, line, imported) for line in lines if isinstance(line, ast.ClassDef)]


def _is_below(each: _Class, wanted: Sequence[str], by_kind: Mapping[str, _Class]) -> bool:
    """Whether a class is made from one that is wanted, at any depth, in this package or in others of posbias."""
    for base in each.bases:
        if base in wanted or (base in by_kind and _is_below(by_kind[base], wanted, by_kind)):
            return True
        source = each.imported.get(base, "")
        if base not in by_kind and source.startswith("posbias."):
            outside = {other.node.name: other for other in _classes_outside(source)}
            if base in outside and _is_below(outside[base], wanted, outside):
                return True
    return False


def _said(each: _Class, by_kind: Mapping[str, _Class]) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for base in reversed(each.bases):
        said |= _said(by_kind[base], by_kind) if base in by_kind else {}
    for line in each.node.body:
        if isinstance(line, ast.Assign | ast.AnnAssign) and isinstance(line.value, ast.Constant):
            target = line.target if isinstance(line, ast.AnnAssign) else line.targets[0]
            said |= {target.id: line.value.value} if isinstance(target, ast.Name) else {}
    return said
