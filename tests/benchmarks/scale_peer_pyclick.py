"""Train a click model of PyClick on a log; see `scale_peers.py`.

    python tests/benchmarks/scale_peer_pyclick.py LOG MODEL OUTPUT PYCLICK

As its example trains: 50 iterations of EM, which is all the stopping it has. Written is what P(examined) is relative
to the first cell.
"""

import sys
from importlib import import_module
from typing import Any

import polars as pl

POSITIONS = 10


def read_sessions(log: str) -> list[Any]:
    """Sessions of equal length, as `scale_log.py` writes them, as PyClick's objects."""
    session_class: Any = import_module("pyclick.search_session.SearchSession").SearchSession
    result_class: Any = import_module("pyclick.search_session.SearchResult").SearchResult
    frame = pl.read_parquet(log, columns=["query", "doc", "click"])
    sessions: list[Any] = []
    for page in frame.iter_slices(POSITIONS):
        session = session_class(page.item(0, "query"))
        session.web_results = [result_class(doc, click) for doc, click in page.select("doc", "click").iter_rows()]
        sessions.append(session)
    return sessions


def examination(model: Any, name: str) -> pl.DataFrame:  # noqa: ANN401 # PyClick has no types
    """P(examined) by cell, relative to the first cell. PyClick counts from 0; no click above is its last rank."""
    container = model.params[model.param_names.exam]
    if name == "pbm":
        rows = [(rank + 1, container.get(rank).value()) for rank in range(POSITIONS)]
        frame = pl.DataFrame(rows, schema=["position", "propensity"], orient="row")
    else:
        cells = [(rank, above) for rank in range(POSITIONS) for above in range(rank + 1)]
        rows = [(rank + 1, above, container.get(rank, (above - 1) % POSITIONS).value()) for rank, above in cells]
        frame = pl.DataFrame(rows, schema=["position", "previous_click", "propensity"], orient="row")
    return frame.with_columns(pl.col("propensity") / pl.col("propensity").first())


def main() -> None:
    """Read, train, write."""
    log, name, output, checkout = sys.argv[1:]
    sys.path.insert(0, checkout)
    module: Any = import_module(f"pyclick.click_models.{name.upper()}")
    model = getattr(module, name.upper())()
    model.train(read_sessions(log))
    examination(model, name).write_parquet(output)


if __name__ == "__main__":
    main()
