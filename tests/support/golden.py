"""What the commands give on the sample logs and on small simulated ones: for changes that must change nothing.

    python tests/support/golden.py write DIR                half a minute
    python tests/support/golden.py compare BEFORE AFTER     exit code 1 where they differ

To compare two versions, run `write` with the Python of each. Tables are compared to 1e-9, text and exit codes as they
are. What changes from run to run is left out: times, versions, digests, sizes of files.
"""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import polars as pl
from polars.testing import assert_frame_equal
from typer.testing import CliRunner

from posbias.cli.main import app

SAMPLES = Path(__file__).parents[2] / "sample_logs"
SIMULATED = {
    "pbm": "--sessions 3000 --queries 60",
    "sparse": "--sessions 3000 --queries 2000",
    "steep": "--sessions 2000 --queries 40 --eta 1.5 --positions 6",
    "flat": "--sessions 2000 --queries 40 --eta 0",
    "ubm": "--model ubm --sessions 3000 --queries 40 --positions 5",
    "dbn": "--model dbn --sessions 3000 --queries 40 --positions 5",
    "devices": "--device 0.7 --device 1.1 --sessions 3000 --queries 60 --positions 6",
    "learning": "--sessions 3000 --queries 40 --feedback-strength 2",
    "segments": "--sessions 2000 --queries 40 --segments 2",
    "readiness": "--sessions 2000 --queries 40 --readiness .3,1.7 --attractiveness-scale .5",
    "swaps": "--sessions 2000 --queries 40 --swap 1-5 --swap-share .5",
    "fixed": "--sessions 500 --queries 20 --ranker-strength inf",
}
"""Logs, each made with these options."""

_SIMULATED_RUNS = {
    "check": "check {log}",
    "fit": "fit {log} -o {out}",
    "run": "run {log} --layout session --validation 0.2 -o {out}",
}
"""What is run on each of them."""

RUNS = {
    "help": "fit --help-all",
    "sample": "run {samples}/web_search.parquet -o {out}",
    "sample in buckets": "run {samples}/web_search.parquet --memory 256MiB --csv -o {out}",
    "sample ubm": "run {samples}/web_search.parquet --model ubm --layout pairs -o {out}",
    "zozo": "fit {samples}/open_bandit.parquet --no-query -o {out}",
    "joint": "fit {pbm} --method joint -o {out}",
    "allpairs": "fit {pbm} --method allpairs -o {out}",
    "ctr": "fit {pbm} --method ctr -o {out}",
    "randomized": 'fit {swaps} --method randomized --randomized-where "experiment=swap 1-5@1,5" -o {out}',
    "monotone": "fit {sparse} --shape monotone -o {out}",
    "power": "fit {sparse} --shape power -o {out}",
    "bins": "fit {pbm} --position-bins 1,2,3,5 -o {out}",
    "contexts": "fit {devices} --context device -o {out}",
    "each device": "fit {devices} --for-each device -o {out}",
    "days": "fit {learning} --timestamp timestamp -o {out}",
    "stratify": "fit {segments} --stratify segment -o {out}",
    "ubm of ubm": "fit {ubm} --model ubm -o {out}",
    "dbn of dbn": "run {dbn} --model dbn --layout session -o {out}",
    "cascade": "fit {dbn} --model cm -o {out}",
    "statistics": "collect {pbm} --timestamp none -o {out}",
    "fit of statistics": "fit {statistics} -o {out}",
    "weights of statistics": "weight {statistics} --propensities {joint} -o {out}",
    "clicked groups": "weight {pbm} --propensities {joint} --layout clicked-group -o {out}",
    "judgments": "weight {pbm} --propensities {joint} --layout judgments --format qrels -o {out}",
    "models": "evaluate {ubm} --models pbm,ubm,dbn --json -o {out}",
    "explored": "explore {sample} --pages 2000 -o {out}",
    "compared": "compare {joint} {allpairs}",
    "shown": "show {sample} --plot",
    "shown as csv": "show {sample} --format csv",
    "rehearsed": "fit {pbm} --dry-run -o {out}",
    "settings": "fit {pbm} --print-config -o {out}",
    "no such column": "fit {pbm} --query nothing -o {out}",
    "no such option": "fit {pbm} --modle ubm -o {out}",
    "no such file": "fit nowhere.parquet -o {out}",
    "no such model": "fit {pbm} --model pmb -o {out}",
    "already there": "fit {pbm} -o {joint}",
}
"""Commands by name; `{name}` is the result of an earlier one, or a simulated log."""

_CHANGING = re.compile(
    r"seconds|digest|version|created|started|finished|host|memory|checksum|fingerprint|bytes|size|peak"
)
_CHANGING_TEXT = re.compile(r"\d+(\.\d+)? ?(ms|s|MB|MiB|GB|GiB|kB)\b|/[^\s:'\"]*golden[^\s:'\"]*/")


def write(folder: Path) -> None:
    """Run everything, and keep what it gave below a folder that is not there yet."""
    folder.mkdir(parents=True)
    with chdir(folder):
        places = {"samples": str(SAMPLES)}
        for name, options in SIMULATED.items():
            run(f"simulated {name}", f"simulate {options} -o {name}")
            places[name] = f"{name}/log.parquet"
        for name in SIMULATED:
            for kind, command in _SIMULATED_RUNS.items():
                out = f"{kind}-{name}"
                run(out, command.format(log=places[name], out=out))
        for name, command in RUNS.items():
            out = name.replace(" ", "-")
            run(out, command.format(out=out, **places))
            places[name] = out


def run(name: str, command: str) -> None:
    """Run a command, and keep its exit code and what it printed."""
    result = CliRunner().invoke(app, shlex.split(command))
    printed = f"$ posbias {command}\nexit code {result.exit_code}\n{result.stdout}\n--- stderr\n{result.stderr}"
    Path(f"{name.replace(' ', '-')}.txt").write_text(printed, encoding="utf-8")


def compare(before: Path, after: Path) -> int:
    """Print what differs, and return the exit code."""
    files = [
        {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()} for folder in (before, after)
    ]
    differences = [f"{path}: only in one of them" for path in sorted(files[0].keys() ^ files[1].keys())]
    for path in sorted(files[0].keys() & files[1].keys()):
        differences += [f"{path}: {difference}" for difference in _differences(files[0][path], files[1][path])]
    report = [*differences, f"{len(files[0])} files, {len(differences)} differences"]
    sys.stdout.write("\n".join([*report, ""]))
    return int(bool(differences))


def _differences(before: Path, after: Path) -> Iterator[str]:
    if before.suffix == ".parquet":
        try:
            assert_frame_equal(pl.read_parquet(before), pl.read_parquet(after), rel_tol=1e-9, abs_tol=1e-12)
        except AssertionError as error:
            yield str(error).splitlines()[0]
    elif before.suffix == ".json":
        yield from _in_json("", *(json.loads(_text(path)) for path in (before, after)))
    else:
        old, new = (_CHANGING_TEXT.sub("~", _text(path)).splitlines() for path in (before, after))
        yield from (f"{a!r} | {b!r}" for a, b in zip(old, new, strict=False) if a != b)
        if len(old) != len(new):
            yield f"{len(old)} lines | {len(new)} lines"


def _text(path: Path) -> str:
    """The text of a file, wherever the samples are, and whatever other processes left behind."""
    text = re.sub(r"[^\s\"']*/sample_logs/", "sample_logs/", path.read_text(errors="replace"))
    return re.sub(r"warning: \S+ is left in place: .*\n", "", text)


def _in_json(place: str, old: Any, new: Any) -> Iterator[str]:  # noqa: ANN401 - JSON
    """What differs between two values, each with its place."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            if not _CHANGING.search(str(key)):  # pyright: ignore[reportUnknownArgumentType]
                yield from _in_json(f"{place}.{key}", old.get(key), new.get(key))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):  # pyright: ignore[reportUnknownArgumentType]
        for number, (one, other) in enumerate(zip(old, new, strict=True)):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            yield from _in_json(f"{place}[{number}]", one, other)
    elif isinstance(old, float) and isinstance(new, float):
        if abs(old - new) > 1e-9 * max(1.0, abs(old)) and (old == old or new == new):  # noqa: PLR0124 - NaN
            yield f"{place}: {old} | {new}"
    elif old != new:
        yield f"{place}: {old!r} | {new!r}"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", folder]:
            write(Path(folder))
        case ["compare", before, after]:
            sys.exit(compare(Path(before), Path(after)))
        case _:
            sys.exit(__doc__)
