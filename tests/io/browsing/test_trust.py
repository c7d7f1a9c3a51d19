"""Tables of trust bias: both forms say the same, and what says something else is one clear error."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from posbias.core.errors import LogFormatError, SchemaError
from posbias.io.jobs.click_models import check_trust_is_known, read_trust

GOOD = {"position": [2, 1], "alpha": [0.3, 0.6], "beta": [0.1, 0.2]}


def written(tmp_path: Path, table: Mapping[str, Sequence[float | str | None]], name: str = "trust.csv") -> str:
    path = tmp_path / name
    frame = pl.DataFrame(table, strict=False)
    frame.write_parquet(path) if name.endswith(".parquet") else frame.write_csv(path)
    return str(path)


@pytest.mark.parametrize("name", ["trust.csv", "trust.parquet"])
def test_both_forms_say_the_same_in_any_order(tmp_path: Path, name: str) -> None:
    parts = {"position": [1, 2], "theta": [1.0, 0.5], "epsilon_plus": [0.8, 0.8], "epsilon_minus": [0.2, 0.2]}
    affine = read_trust(written(tmp_path, GOOD, name))
    of_parts = read_trust(written(tmp_path, parts, f"parts-{name}"))

    assert affine["click_if_relevant"][1:] == pytest.approx([0.8, 0.4])
    assert affine["click_if_not_relevant"][1:] == pytest.approx([0.2, 0.1])
    assert np.isnan(affine["click_if_relevant"][0])
    for parameter, values in affine.items():
        assert of_parts[parameter][1:] == pytest.approx(values[1:])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"alpha": [0.3, "x"]}, "row 2: alpha is 'x'; it must be a number"),
        ({"alpha": [0.3, None]}, "row 2: alpha is None"),
        ({"alpha": [0.3, 0.0]}, "position 1: alpha is 0 and beta 0.2. alpha must be above 0"),
        ({"beta": [-0.1, 0.2]}, "position 2: alpha is 0.3 and beta -0.1"),
        ({"beta": [0.1, 0.5]}, "at most 1"),
        ({"position": [1, 1]}, "a position stands twice"),
        ({"position": [0, 1]}, "row 1: position 0 must be a whole number from 1 to 100,000"),
        ({"position": [1.5, 1]}, "row 1: position 1.5 must be a whole number"),
        ({"position": [1, 10**9]}, "must be a whole number"),
        ({"position": [], "alpha": [], "beta": []}, "holds no row"),
    ],
)
def test_what_is_no_trust_bias_is_named(
    tmp_path: Path, changed: Mapping[str, Sequence[float | str | None]], said: str
) -> None:
    with pytest.raises((SchemaError, LogFormatError)) as error:
        read_trust(written(tmp_path, {**GOOD, **changed}))
    assert said in str(error.value)


def test_columns_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="must have the columns position, alpha and beta; or position, theta"):
        read_trust(written(tmp_path, {"position": [1], "alpha": [0.5]}))


def test_a_position_that_the_log_shows_must_be_there(tmp_path: Path) -> None:
    trust = read_trust(written(tmp_path, {"position": [1, 3], "alpha": [0.5, 0.5], "beta": [0.1, 0.1]}))

    check_trust_is_known(trust, [1, 3], "trust.csv")
    for shown in ([1, 2], [4]):
        with pytest.raises(SchemaError, match=f"says nothing of position {shown[-1]}, which the log shows"):
            check_trust_is_known(trust, shown, "trust.csv")
