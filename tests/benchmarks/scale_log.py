"""A log that grows like a real one: new queries never cease, so that its pairs grow with it. In bounded memory.

    python tests/benchmarks/scale_log.py LOG IMPRESSIONS [--model pbm|ubm] [--ids integer|text|long] [--home SHARE]

Queries follow a Zipf-Mandelbrot law over 200 million, density ~ (rank + 200) ** -1.3: the first one has 0.15 % of the
sessions, and the number of different queries grows as sessions ** 0.77. A query has 13 documents, which a ranker
shuffles anew in every session; ten are shown. Gamma is a hash of the pair, halved down the ranking. Clicks follow

    PBM: theta = 1 / position          UBM: theta = 1 / (position - position of the last click above, 0 = none)

Nothing is kept but one block of sessions, each of which has its own stream of random numbers: the same call writes
the same rows. A block is a row group of a million rows. Ids are integers, or the same ids as text: short (`q1234`,
`sku-0001234`), or as long as real ones are (queries of 45 characters, URLs of 110, sessions as UUIDs). With a SHARE of
sessions on a home page, these have one query and 100,000 documents.

With --scrolled K, a log of lists through which users scroll: a query has as many documents as there are positions, each
of its 20 sessions moves them by a few positions, and users see the first K ** u, u uniform between .3 and 1, or, one in
five, all K; theta = position ** -.25.
"""

import argparse
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray
from processes import Measured, Model

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Ids = Literal["integer", "text", "long"]
IDS: tuple[Ids, ...] = get_args(Ids)

POSITIONS = 10
SESSIONS_PER_BLOCK = 100_000
SEED = 20_260_105

_SESSIONS_OF_A_LIST, _MOVED, _TO_THE_END = 20, 10.0, 0.2

_QUERIES, _OFFSET, _EXPONENT = 200_000_000, 200.0, 1.3
_DOCS_PER_QUERY = 13
_HOME = _QUERIES  # the query of a home page, whose pages are those of so many queries
_QUERIES_AT_HOME = 7_700
_SHUFFLE = 10.0  # ranks by which noise may move a document
_CATALOGUE = 9_999_991  # documents in all: a prime, so that the steps below visit different ones
_STEP = 7_654_321  # from a document of a query to the next
_MOST_ATTRACTIVE = 0.8

_DIGITS = pl.col("session").cast(pl.String).str.zfill(12)
_IN_WORDS: dict[Ids, list[pl.Expr]] = {
    "integer": [],
    "text": [
        pl.format("s{}", "session").alias("session"),
        pl.format("q{}", "query").alias("query"),
        pl.format("sku-{}", pl.col("doc").cast(pl.String).str.zfill(7)).alias("doc"),
    ],
    "long": [
        pl.format("6f1c2a9e-41d3-4b7a-9c55-{}", _DIGITS).alias("session"),
        pl.format("cheap hotels near station {} with breakfast", "query").alias("query"),
        pl.format(
            "https://www.example.com/en/catalogue/household/kitchen/small-appliances/{}/product-page?item={}&ref=search",
            pl.col("doc") % 97,
            "doc",
        ).alias("doc"),
    ],
}
"""Ids as text."""


@contextmanager
def simulated_log(
    n_impressions: int, model: Model = "pbm", directory: Path | None = None, ids: Ids = "integer", home: float = 0.0
) -> Generator[Path]:
    """A log in a temporary directory of its own, written by a process of its own, and gone at the end.

    A child starts with its parent's peak of memory, so the parent keeps to little.
    """
    with tempfile.TemporaryDirectory(prefix="scale-", dir=directory) as folder:
        log = Path(folder) / "log.parquet"
        Measured().add((__file__, str(log), str(n_impressions), "--model", model, "--ids", ids, "--home", str(home)))
        yield log


@contextmanager
def scrolled_log(n_impressions: int, n_positions: int, directory: Path | None = None) -> Generator[Path]:
    """Likewise, a log of lists of so many positions."""
    with tempfile.TemporaryDirectory(prefix="scale-", dir=directory) as folder:
        log = Path(folder) / "log.parquet"
        Measured().add((__file__, str(log), str(n_impressions), "--scrolled", str(n_positions)))
        yield log


def write_scrolled_log(path: Path, n_impressions: int, n_positions: int) -> None:
    """Write a log of whole lists."""
    rng, lists = np.random.default_rng([SEED, n_positions]), list[pl.DataFrame]()
    gamma, written, session = np.empty(0), 0, 0
    while written < n_impressions:
        if session % _SESSIONS_OF_A_LIST == 0:
            gamma = rng.beta(1, 2, n_positions)  # of the next query
        share = 1.0 if rng.random() < _TO_THE_END else rng.uniform(0.3, 1)
        length = int(np.ceil(n_positions**share))
        doc = np.argsort(np.arange(n_positions) + rng.normal(0, _MOVED, n_positions))[:length]
        position = np.arange(1, length + 1)
        click = rng.random(length) < position**-0.25 * gamma[doc]
        shown = pl.DataFrame({"doc": doc, "position": position, "click": click.view(np.int8)})
        query = session // _SESSIONS_OF_A_LIST
        lists.append(shown.select(pl.lit(session).alias("session"), pl.lit(query).alias("query"), pl.all()))
        written, session = written + length, session + 1
    pl.concat(lists).write_parquet(path)


def write_log(path: Path, n_impressions: int, model: Model, ids: Ids, home: float) -> None:
    """Write a log of whole sessions, block by block."""
    parquet: Any = import_module("pyarrow.parquet")  # it has no types
    n_sessions = n_impressions // POSITIONS
    writer: Any = None
    for first in range(0, n_sessions, SESSIONS_PER_BLOCK):
        block = _block(first, min(SESSIONS_PER_BLOCK, n_sessions - first), model, ids, home)
        table = cast("Any", block.to_arrow())
        writer = writer or parquet.ParquetWriter(path, table.schema, compression="zstd", use_dictionary=False)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def _block(first: int, n_sessions: int, model: Model, ids: Ids, home: float) -> pl.DataFrame:
    rng = np.random.default_rng([SEED, first])
    query = _draw_queries(n_sessions, rng)
    at_home = np.arange(n_sessions) < home * n_sessions
    query[at_home] %= _QUERIES_AT_HOME
    rank = _shown(n_sessions, rng)
    attraction = _attractiveness(query, rank)
    chance = rng.random(rank.shape, dtype=np.float32)
    click = _pbm_clicks(attraction, chance) if model == "pbm" else _ubm_clicks(attraction, chance)
    doc = (_mixed(query)[:, None] % _CATALOGUE + rank.astype(np.uint64) * _STEP) % _CATALOGUE
    columns = {
        "session": np.repeat(np.arange(first, first + n_sessions), POSITIONS),
        "query": np.repeat(np.where(at_home, _HOME, query), POSITIONS),
        "doc": doc.astype(np.int64).ravel(),
        "position": np.tile(np.arange(1, POSITIONS + 1, dtype=np.int8), n_sessions),
        "click": click.ravel().view(np.int8),
    }
    return pl.DataFrame(columns).with_columns(_IN_WORDS[ids])


def _draw_queries(n_sessions: int, rng: np.random.Generator) -> Integers:
    """Numbers of queries, from 0, by the inverse of the continuous law: (q + 200) / 200 = u ** (-1 / 0.3)."""
    power = 1 - _EXPONENT
    rarest = ((_QUERIES + _OFFSET) / _OFFSET) ** power
    u = rarest + (1 - rarest) * rng.random(n_sessions)
    return (_OFFSET * u ** (1 / power) - _OFFSET).astype(np.int64)


def _shown(n_sessions: int, rng: np.random.Generator) -> NDArray[np.int8]:
    """Which document, by its rank from 0, stands at each position, shape (S, K)."""
    noise = rng.random((n_sessions, _DOCS_PER_QUERY), dtype=np.float32)
    score = np.arange(_DOCS_PER_QUERY, dtype=np.float32) + _SHUFFLE * noise
    return np.argsort(score, axis=1)[:, :POSITIONS].astype(np.int8)


def _attractiveness(query: Integers, rank: NDArray[np.int8]) -> Floats:
    """Gamma of each pair shown, shape (S, K): a hash, uniform below 0.8 at the top, below 0.4 at the end."""
    pair = query[:, None] * 16 + rank
    uniform = (_mixed(pair) >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
    best = _MOST_ATTRACTIVE * (1 - np.arange(_DOCS_PER_QUERY) / (2 * _DOCS_PER_QUERY))
    return (best.astype(np.float32)[rank] * uniform).astype(np.float32, copy=False)


def _mixed(number: Integers) -> NDArray[np.uint64]:
    """Well mixed bits of whole numbers: the finaliser of SplitMix64 (Steele, Lea & Flood 2014)."""
    z = number.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _pbm_clicks(attraction: Floats, chance: Floats) -> NDArray[np.bool_]:
    return chance * np.arange(1, POSITIONS + 1, dtype=np.float32) < attraction


def _ubm_clicks(attraction: Floats, chance: Floats) -> NDArray[np.bool_]:
    click = np.zeros(attraction.shape, dtype=np.bool_)
    last = np.zeros(len(attraction), dtype=np.int64)
    for position in range(1, POSITIONS + 1):
        clicked = chance[:, position - 1] * (position - last) < attraction[:, position - 1]
        click[:, position - 1] = clicked
        last[clicked] = position
    return click


def main() -> None:
    """Parse the command line and write one log."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("impressions", type=int)
    parser.add_argument("--model", choices=("pbm", "ubm"), default="pbm")
    parser.add_argument("--ids", choices=IDS, default="integer")
    parser.add_argument("--home", type=float, default=0.0)
    parser.add_argument("--scrolled", type=int, metavar="K")
    options = parser.parse_args()
    if options.scrolled:
        write_scrolled_log(options.log, options.impressions, options.scrolled)
        return
    write_log(options.log, options.impressions, options.model, options.ids, options.home)


if __name__ == "__main__":
    main()
