"""Names and texts of data never reach the code of `load.py`, and trainers take them as names."""

import json
from pathlib import Path

import polars as pl
import pytest
from command_results import Refused, Run
from training_sample import Sample, load, make_sample

from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.core.training.layout import get_layout, layout_names
from posbias.io.training import format_names, get_format
from posbias.io.training.laid_out import Feature, TrainingSet

CODE = (
    'a"; import os; os.system("touch pwned") #',
    "b''''; open('pwned', 'w') #",
    'c"""\nopen("pwned", "w")\n"""',
    "d\nopen('pwned', 'w').close()\n",
    "d open('pwned',  'w').close()",
    "{__import__('os').system('touch pwned')}",
    "$(touch pwned) `touch pwned`",
    "@SCAN@ @SUFFIX@ @WHY@ @PARAMETERS@",
    "e\\",
    "f\t\x1b[31m\r\n1\tLabel\tclick",
    'g,"h""',
)
"""Names that would run as code, or begin a line of their own, where they are not quoted."""

CARRIED = [
    (form, layout)
    for form in format_names()
    for layout in layout_names()
    if get_format(form).carries(get_layout(layout))
]


def _hostile(sample: Sample) -> Sample:
    """The same sample with names of features that are code, and twice as many of them."""
    names = [feature.name for feature in sample.of.features]
    renamed = dict(zip(names, CODE, strict=False))
    more = {name: pl.col(names[0]) for name in CODE[len(names) :]}
    rows = sample.rows.with_columns(**more).rename(renamed)
    categories = {feature.name: feature.categories for feature in sample.of.features}
    features = [Feature(renamed[name], categories[name]) for name in names] + [Feature(name) for name in more]
    of = TrainingSet(sample.of.layout, sample.of.ids, tuple(features))
    return Sample(of, rows, sample.preferences)


@pytest.mark.parametrize(("form", "layout"), CARRIED)
@pytest.mark.slow
def test_names_of_features_are_no_code(form: str, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain, hostile = (
        make_sample(layout).write(form, tmp_path / "plain"),
        _hostile(make_sample(layout)).write(form, tmp_path / "x"),
    )
    load(hostile)

    assert [path.name for path in tmp_path.rglob("*pwned*")] == []
    for script in plain.glob("load.*"):
        assert (hostile / script.name).read_bytes() == script.read_bytes()
    assert sorted(path.name for path in hostile.iterdir()) == sorted(path.name for path in plain.iterdir())
    named = json.loads((hostile / "features.json").read_text(encoding="utf-8"))
    assert [feature["name"] for feature in named] == list(CODE)


@pytest.mark.parametrize("form", format_names())
@pytest.mark.slow_after(1)
def test_the_command_line_writes_data_as_data(form: str, run_in_process: Run, tmp_path: Path) -> None:
    log = simulate(SimulationOptions(n_sessions=300, n_queries=4, docs_per_query=4, n_positions=3, seed=3)).log
    log = log.with_columns((pl.lit(CODE[2]) + pl.col(name).cast(pl.String)).alias(name) for name in ("query", "doc"))
    keys = log.select("query", "doc").unique(maintain_order=True)
    readable = [name for name in CODE if name.isprintable()]  # others are refused where they are read
    numbers = [pl.int_range(0, keys.height).sin().alias(name) for name in readable[:-1]]
    texts = pl.Series(readable[-1], [CODE[row % len(CODE)] for row in range(keys.height)])
    keys.with_columns(*numbers).with_columns(texts).write_parquet(tmp_path / "features.parquet")
    log.write_parquet(tmp_path / "log.parquet")
    layout = () if get_format(form).carries(get_layout("pointwise")) else ("--layout", "judgments")
    layout += ("--layout-options", "search_index=--force; touch pwned") if get_format(form).takes else ()
    run_in_process(
        *("run", "log.parquet", "--features", "features.parquet", "--format", form, *layout, "-o", "out"), code=(0, 1)
    )

    load(tmp_path / "out" / "training")
    assert [path.name for path in tmp_path.rglob("*pwned*")] == []
    for script in (tmp_path / "out" / "training").glob("load.*"):
        assert "touch pwned" not in script.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["a\0b", *(name for name in CODE if not name.isprintable())])
def test_a_name_with_control_characters_is_refused(refused: Refused, tmp_path: Path, name: str) -> None:
    log = simulate(SimulationOptions(n_sessions=300, n_queries=4, docs_per_query=4, n_positions=3, seed=3)).log
    log.write_parquet(tmp_path / "log.parquet")
    log.select("query", "doc").unique().with_columns(pl.lit(1).alias(name)).write_parquet(tmp_path / "features.parquet")
    assert "holds control characters. Rename the column." in refused(
        "run", "log.parquet", "--features", "features.parquet"
    )


@pytest.mark.slow
def test_nothing_in_a_log_is_the_name_of_a_file(run_in_process: Run, tmp_path: Path) -> None:
    log = simulate(SimulationOptions(n_sessions=300, n_queries=4, docs_per_query=4, n_positions=3, seed=3)).log
    (tmp_path / "work" / "temporary").mkdir(parents=True)
    for name, way_out in {"plain": "a", "hostile": "../../../", "absolute": "/evil/"}.items():
        texts = [(pl.lit(way_out) + pl.col(key).cast(pl.String)).alias(key) for key in ("session", "query", "doc")]
        device = way_out + (pl.col("session") % 2).cast(pl.String)
        rows = log.with_columns(*texts, device=device).with_columns((pl.lit(way_out) + "x").alias(f"{way_out}x"))
        rows.write_parquet(tmp_path / "work" / f"{name}.parquet")
        run_in_process(
            *("run", f"{name}.parquet", "-o", name, "--context", "device", "--layout", "session", "--csv"),
            *("--feature", f"{way_out}x", "--format", "csv", "--memory", "256MiB", "--temp-dir", "temporary"),
            cwd=tmp_path / "work",
            code=(0, 1),
        )

    written = {
        name: sorted(path.relative_to(tmp_path / "work" / name) for path in (tmp_path / "work" / name).rglob("*"))
        for name in ("plain", "hostile", "absolute")
    }
    assert written["hostile"] == written["absolute"] == written["plain"]
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
    assert not any((tmp_path / "work" / "temporary").iterdir())
