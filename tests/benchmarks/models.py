"""What fitting each click model costs, next to PyClick and CLAX on the same log, in the same run.

    python tests/benchmarks/models.py [--impressions N...] [--models NAME...] [--memory SIZE] [--pyclick DIR]
                                      [--peers DIR] [--clax-impressions N] [--directory DIR]

`posbias evaluate LOG --models NAME` is timed whole: it reads the log, fits the model to three quarters of the sessions,
judges it by the others with 200 bootstrap samples, and writes the tables. "fit" is the fit alone, in a process of its
own that has all sessions in memory. PyClick and CLAX are timed whole, too; they read the log and train, and judge
nothing.

PyClick (github.com/markovi/PyClick, `--pyclick DIR`, a checkout) makes 50 iterations of EM in plain Python. What would
take it hours is not measured: each model is given logs up to a size of its own (`LIMITS` in `models_peer_pyclick.py`),
and where a cell is empty, nothing was run. CLAX lives in an environment of its own (`--peers DIR`), which is made if
there is none; see `scale_peers.py`. Neither has `tpbm`, PyClick has no `rdctr`.

The logs are those of `scale_log.py --model ubm`. Seconds are those of the processor, of all threads; one run each. A
ratio below 10 is marked *, and a peak above --memory, too.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from models_peer_clax import KINDS
from models_peer_pyclick import LIMITS
from processes import POSBIAS, Measured, table_console
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from scale_log import simulated_log
from scale_peers import install_clax

from posbias.core.models import click_model_names

SIZES = (10_000, 350_000, 10_000_000)
CLAX_IMPRESSIONS = 10_000_000
WANTED = 10
"""How many times less processor time than a peer is aimed at."""

_FOLDER = Path(__file__).parent
_PEAKS = {"MiB": 1, "GiB": 1024}


@dataclass(frozen=True)
class Peers:
    """Where the others are.

    Attributes:
        pyclick: a checkout.
        clax: an environment.
        clax_impressions: of the largest log that CLAX is given.
    """

    pyclick: Path | None
    clax: Path | None
    clax_impressions: int


@dataclass
class Costs:
    """What one model took.

    Attributes:
        own: the command.
        fit: processor seconds of the fit alone.
        peers: by name.
    """

    own: Measured = field(default_factory=Measured)
    fit: float = 0.0
    peers: dict[str, Measured] = field(default_factory=dict[str, Measured])


def costs(log: Path, name: str, n_impressions: int, memory: str, peers: Peers) -> Costs:
    """Run posbias, and then the others, each in a process of its own."""
    found = Costs()
    out, seconds = log.with_name("judged"), log.with_name("seconds")
    options = ("--models", name, "--memory", memory, "--quiet", "--force", "-o", str(out))
    found.own.add((*POSBIAS, "evaluate", str(log), *options), temp=log.with_name("temp"))
    Measured().add((str(_FOLDER / "models_fit.py"), str(log), name, str(seconds)))
    found.fit = float(seconds.read_text(encoding="utf-8"))
    if peers.pyclick is not None and n_impressions <= LIMITS.get(name, 0):
        of_pyclick = str(_FOLDER / "models_peer_pyclick.py"), str(log), name, str(peers.pyclick)
        found.peers.setdefault("PyClick", Measured()).add(of_pyclick)
    if peers.clax is not None and name in KINDS and n_impressions <= peers.clax_impressions:
        of_clax = str(_FOLDER / "models_peer_clax.py"), str(log), name
        found.peers.setdefault("CLAX", Measured()).add(of_clax, interpreter=str(peers.clax / "bin" / "python"))
    return found


def table_of(n_impressions: int, memory: str) -> Table:
    """An empty table."""
    title = f"{n_impressions:,} impressions, --memory {memory}; processor seconds, * misses the aim"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("model")
    for heading in ("fit", "evaluate", "wall s", "peak MiB", "PyClick", "x ours", "CLAX", "x ours", "CLAX MiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def row_of(name: str, found: Costs, memory: str) -> list[str]:
    """A model's row: ratios are to the whole command."""
    own, peak = found.own.median_cpu_seconds(), max(found.own.mebibytes)
    cells = [name, f"{found.fit:.2f}", f"{own:.1f}", f"{found.own.median_seconds():.1f}"]
    cells.append(f"{peak:,.0f}" + ("*" if peak > _mebibytes(memory) else ""))
    for peer in ("PyClick", "CLAX"):
        measured = found.peers.get(peer)
        if measured is None:
            cells += ["", ""]
            continue
        ratio = measured.median_cpu_seconds() / own
        cells += [f"{measured.median_cpu_seconds():,.1f}", f"{ratio:.1f}" + ("*" if ratio < WANTED else "")]
    clax = found.peers.get("CLAX")
    return [*cells, "" if clax is None else f"{max(clax.mebibytes):,.0f}"]


def _mebibytes(memory: str) -> float:
    return float(memory[:-3]) * _PEAKS[memory[-3:]]


def measure_models(
    console: Console, sizes: Sequence[int], names: Sequence[str], memory: str, peers: Peers, directory: Path | None
) -> None:
    """Print a table for each size, as soon as it is there."""
    if peers.clax is not None:
        install_clax(peers.clax)
    for n_impressions in sizes:
        table = table_of(n_impressions, memory)
        with simulated_log(n_impressions, "ubm", directory) as log:
            for name in names:
                table.add_row(*row_of(name, costs(log, name, n_impressions, memory, peers), memory))
        console.print(table)
    for name, folder, option in (("PyClick", peers.pyclick, "--pyclick"), ("CLAX", peers.clax, "--peers")):
        if folder is None:
            console.print(f"  {name}: not at hand, {option} says where it is")


def main() -> None:
    """Parse the command line, measure, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--impressions", type=int, nargs="+", default=SIZES, help="of the logs")
    parser.add_argument("--models", nargs="+", choices=click_model_names(), default=click_model_names())
    parser.add_argument("--memory", default="512MiB", help="of posbias, in MiB or GiB")
    parser.add_argument("--pyclick", type=Path, help="a checkout of PyClick")
    parser.add_argument("--peers", type=Path, help="where CLAX's environment is, or is installed")
    parser.add_argument("--clax-impressions", type=int, default=CLAX_IMPRESSIONS, help="the most that CLAX is given")
    parser.add_argument("--directory", type=Path, help="where the logs and results go; a temporary one by default")
    options = parser.parse_args()
    peers = Peers(options.pyclick, options.peers, options.clax_impressions)
    measure_models(table_console(), options.impressions, options.models, options.memory, peers, options.directory)


if __name__ == "__main__":
    main()
