"""As on another processor: what posbias computes with rounding differs in its last bit.

Processors add up in other orders and have other instructions for exp and log, so that a result may be the number next
to it. `LAST_BITS=SEED pytest` moves the results of sums, dense products, logarithms and the like in every module of
posbias by one unit in the last place, up or down or not at all, as a hash of the number and the seed says: the same in
every run with that seed. What is exact stays: whole numbers, and others with few digits in binary, such as 0.75.

A test that fails then holds a number more precisely than it is computed, or shows a computation that magnifies
rounding. Not moved are what Polars, LightGBM and the like add up, and what runs in other processes: three slow tests
that compare its bytes fail (`test_crash_safety.py`, `test_daily_job.py`, `test_interface.py`).
"""

import ast
import sys
from collections.abc import Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

_Array, _Floats = NDArray[Any], NDArray[np.float64]

ROUNDED = {
    *("exp", "expm1", "log", "log1p", "log2", "log10", "power", "tanh", "sin", "cos", "arcsin", "logaddexp"),
    *("sum", "mean", "average", "var", "std", "dot", "einsum", "bincount", "sum_by_unit", "convolve", "norm"),
    *("solve", "inv", "pinv", "eigh", "eigvalsh", "svd", "lstsq", "slogdet", "cho_solve", "nnls"),
    *("betainc", "betaincinv", "betaln", "psi", "polygamma", "gammaln", "gammaincc", "ndtr", "ndtri", "stdtr"),
    *("stdtrit", "owens_t", "expit", "roots_jacobi", "np.add.reduceat"),
}
"""Functions and methods whose results depend on the processor."""

_EXACT = np.uint64((1 << 16) - 1)  # last bits that are all 0 in a number that was not rounded, and hardly in others


def install(seed: int) -> None:
    """Let the modules of posbias that are imported from now on differ in last bits."""
    sys.meta_path.insert(0, Finder(seed))


class Finder(MetaPathFinder):
    """Finds the modules of posbias as the other finders do, and rewrites them."""

    def __init__(self, seed: int) -> None:
        self.seed = np.uint64(seed * 0xBF58476D1CE4E5B9 % 2**64)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module as another finder finds it, to be rewritten; None for modules of others."""
        if fullname.partition(".")[0] != "posbias":
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is not None and (spec.origin or "").endswith(".py"):
            spec.loader = _Loader(fullname, str(spec.origin), self.seed)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, seed: np.uint64) -> None:
        super().__init__(fullname, path)
        self.seed = seed

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - the loader has one file
        """Compile anew: what is compiled so is not kept beside the source."""
        tree = _Rewriting().visit(ast.parse(self.get_data(self.path), self.path))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(_in_last_bits=partial(moved, self.seed), _product=partial(product, self.seed))
        super().exec_module(module)


class _Rewriting(ast.NodeTransformer):
    """Put `_in_last_bits` around each result that depends on the processor, and `_product` in the place of `@`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and ROUNDED & {node.func.attr, ast.unparse(node.func)}:
            return self._moved(node, in_place=any(word.arg == "out" for word in node.keywords))
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.MatMult):
            return ast.copy_location(ast.Call(ast.Name("_product", ast.Load()), [node.left, node.right], []), node)
        return self._moved(node) if isinstance(node.op, ast.Pow) else node

    @staticmethod
    def _moved(node: ast.expr, *, in_place: bool = False) -> ast.AST:
        how = ast.keyword("in_place", ast.Constant(in_place))
        return ast.copy_location(ast.Call(ast.Name("_in_last_bits", ast.Load()), [node], [how]), node)


def product(seed: np.uint64, left: Any, right: Any) -> Any:  # noqa: ANN401 - arrays, dense or sparse
    """A product, which SciPy adds up in one order on every processor where one of the two is sparse."""
    sparse = hasattr(left, "indptr") or hasattr(right, "indptr")
    return left @ right if sparse else moved(seed, left @ right)


def moved(seed: np.uint64, value: Any, *, in_place: bool = False) -> Any:  # noqa: ANN401 - whatever is computed
    """A result, or each of several, with other last bits; what holds no floats of 64 bits as it is."""
    if isinstance(value, tuple):
        return tuple(moved(seed, part) for part in cast("tuple[Any, ...]", value))
    if isinstance(value, float):  # of Python or of NumPy
        return type(value)(moved(seed, np.array([value]))[0])
    if not isinstance(value, np.ndarray) or cast("_Array", value).dtype != np.float64:
        return cast("Any", value)
    numbers = cast("_Floats", value)
    bits = np.ascontiguousarray(numbers).view(np.uint64).ravel()  # of 0-d arrays, too, whose scalars warn of overflow
    hashed = (bits ^ seed) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
    step = (hashed % np.uint64(3)).astype(np.int64) - 1
    whole = (numbers == np.rint(numbers)) | ~np.isfinite(numbers)
    exact = (bits & _EXACT == 0) | np.ravel(whole)
    result = (bits.view(np.int64) + np.where(exact, 0, step)).view(np.float64).reshape(numbers.shape)
    if in_place:
        numbers[...] = result
        return numbers
    return result
