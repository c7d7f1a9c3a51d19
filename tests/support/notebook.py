"""The tutorial, run cell by cell as Jupyter does, without Jupyter.

    python tests/support/notebook.py

runs sample_logs/tutorial.ipynb in a copy of its folder and stores what its cells give, charts as pictures.
"""

import ast
import base64
import json
import shutil
import sys
import tempfile
import warnings
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

TUTORIAL = "sample_logs/tutorial.ipynb"


def executed(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The notebook with the output of every cell, run one after the other in a folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells: list[dict[str, Any]] = []
    with chdir(folder):
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                count = 1 + sum(each["cell_type"] == "code" for each in cells)
                cells.append(cell | {"execution_count": count, "outputs": _outputs(cell, names, count)})
            else:
                cells.append(cell)
    return notebook | {"cells": cells}


def texts(notebook: dict[str, Any]) -> list[str]:
    """What the cells print and give as text: that which a test can hold against another run."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return ["".join(output["text"] if "text" in output else output["data"]["text/plain"]) for output in outputs]


def _outputs(cell: dict[str, Any], names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    printed = StringIO()
    with redirect_stdout(printed), warnings.catch_warnings(record=True, action="always") as kept:
        value = _run("".join(cell["source"]), names)
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if kept:
        lines = [f"{each.category.__name__}: {each.message}\n" for each in kept]
        outputs.append({"output_type": "stream", "name": "stderr", "text": lines})
    if value is not None:
        outputs.append(
            {"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": _forms(value)}
        )
    return outputs


def _run(source: str, names: dict[str, Any]) -> object:
    """Run a cell; its value is that of a last expression."""
    tree = ast.parse(source)
    *first, last = tree.body
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "<cell>", "exec"), names)  # noqa: S102 - our own tutorial
        return None
    exec(compile(ast.Module(first, []), "<cell>", "exec"), names)  # noqa: S102 - our own tutorial
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)  # noqa: S307 - our own tutorial


def _forms(value: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever a cell ends with
    """A value in the forms that Jupyter would store."""
    save = getattr(value, "save", None)
    if save is not None:
        with tempfile.TemporaryDirectory() as folder:
            save(Path(folder) / "chart.png", scale_factor=1)
            picture = (Path(folder) / "chart.png").read_bytes()
        return {"text/plain": ["a chart"], "image/png": base64.b64encode(picture).decode()}
    data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = value._repr_html_().splitlines(keepends=True)
    return data


def run_tutorial(repository: Path) -> dict[str, Any]:
    """Run the tutorial in a copy of the sample logs."""
    notebook = json.loads((repository / TUTORIAL).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        for path in (repository / TUTORIAL).parent.glob("shop_*.parquet"):
            shutil.copyfile(path, Path(folder) / path.name)
        return executed(notebook, Path(folder))


def main() -> None:
    """Run the tutorial of this repository and store it."""
    repository = Path(__file__).parents[2]
    text = json.dumps(run_tutorial(repository), indent=1, ensure_ascii=False)
    (repository / TUTORIAL).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
