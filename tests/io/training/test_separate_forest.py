"""Model files in a process of their own: LightGBM's scores, and one error whatever a file does to LightGBM."""

import re
from collections.abc import Callable
from pathlib import Path

import lightgbm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posbias.core.arrays.count_table import Floats
from posbias.core.errors import LogFormatError
from posbias.core.learners.boosting import ModelText
from posbias.io.training import separate_forest as separate_forest_module
from posbias.io.training.separate_forest import separate_forest

N_ROWS, CATEGORIES = 400, 70
LARGEST = 1e-35  # what LightGBM takes for 0


def odd_rows(seed: int) -> Floats:
    """Features that are missing, zero, nearly zero, infinite or negative categories here and there."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((N_ROWS, 4))
    rows[:, 3] = rng.integers(0, CATEGORIES, N_ROWS)
    odd = [np.nan, 0.0, -0.0, np.inf, -np.inf, LARGEST, -LARGEST / 2, 2 * LARGEST, -0.5, -3.0, 1e12]
    chosen = rng.integers(-len(odd), len(odd), rows.shape)
    return np.where(chosen >= 0, np.array(odd)[chosen], rows)


def trained(seed: int, **parameters: object) -> str:
    """The model file of a few trees that split numbers and categories by what is missing, too."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((N_ROWS, 4))
    rows[:, 3] = rng.integers(0, CATEGORIES, N_ROWS)
    rows[rng.random(rows.shape) < 0.15] = np.nan
    rows[rng.random(rows.shape) < 0.15] = 0.0
    value = np.nan_to_num(rows[:, 0]) + np.nan_to_num(rows[:, 3]) % 3 + 2 * np.isnan(rows[:, 2]) + (rows[:, 1] == 0)
    by_category = {"min_data_per_group": 1, "cat_smooth": 0.1, "cat_l2": 0.1}
    options = {**by_category, "num_leaves": 12, "min_data_in_leaf": 3, "verbose": -1, "num_threads": 1, **parameters}
    booster = lightgbm.Booster(options, lightgbm.Dataset(rows, value, categorical_feature=[3], params=options))
    for _ in range(5):
        booster.update()
    return booster.model_to_string()


def by_lightgbm(text: str, rows: Floats) -> Floats:
    return np.asarray(lightgbm.Booster(model_str=text).predict(rows, raw_score=True, num_threads=1))


def apart(text: str, *batches: Floats) -> list[Floats]:
    """Scores of batches of rows, as `score` computes them."""
    model = ModelText.parse(text)
    model.check()
    with separate_forest(model.text(), Path("model.txt"), 2) as scores:
        return [scores(rows) for rows in batches]


MISSING = [(use, zero, one_hot) for use in ("true", "false") for zero in ("true", "false") for one_hot in (1, 100)]


@pytest.mark.parametrize(("use_missing", "zero_as_missing", "one_hot"), MISSING)
@pytest.mark.slow
def test_scores_are_those_of_lightgbm(use_missing: str, zero_as_missing: str, one_hot: int) -> None:
    for seed, leaves in enumerate((2, 12, 100)):
        text = trained(
            seed, use_missing=use_missing, zero_as_missing=zero_as_missing, max_cat_to_onehot=one_hot, num_leaves=leaves
        )
        rows = odd_rows(seed)
        np.testing.assert_allclose(
            np.concatenate(apart(text, rows[:7], rows[7:])), by_lightgbm(text, rows), rtol=0, atol=1e-12
        )


def test_a_tree_that_splits_nothing_is_its_one_leaf() -> None:
    text = trained(0, min_data_in_leaf=N_ROWS)
    (scores,) = apart(text, odd_rows(0))
    np.testing.assert_allclose(scores, by_lightgbm(text, odd_rows(0)), rtol=0, atol=1e-12)
    assert len(np.unique(scores)) == 1


def resized(text: str) -> str:
    """The text with the sizes of its trees made right."""
    trees = text.partition("\nend of trees")[0].split("\nTree=")[1:]
    sizes = " ".join(str(len(f"Tree={tree}\n")) for tree in trees)
    return re.sub(r"tree_sizes=.*", f"tree_sizes={sizes}", text, count=1)


def edited(text: str, name: str, change: str, tree: int = 0, place: int = 0) -> str:
    """The text with another word at a place of a field of a tree."""
    start = text.index(f"\nTree={tree}\n")
    field = re.compile(rf"^{name}=.*$", re.MULTILINE).search(text, start)
    assert field is not None
    words = field[0].removeprefix(f"{name}=").split(" ")
    words[place] = change
    return resized(f"{text[: field.start()]}{name}={' '.join(words)}{text[field.end() :]}")


WRONG = {
    "a child far away": ("left_child", "1000000000"),
    "a leaf far away": ("left_child", "-1000000000"),
    "a loop": ("left_child", "0"),
    "a child of two": ("left_child", "-1"),
    "a feature that is not there": ("split_feature", "4"),
    "a negative feature": ("split_feature", "-1"),
    "a set of categories that is not there": ("threshold", "1000000"),
    "a leaf too few": ("num_leaves", "11"),
    "many leaves": ("num_leaves", "2000000000"),
    "many sets": ("num_cat", "2000000000"),
    "a boundary that is not there": ("cat_boundaries", "7"),
}


@pytest.mark.parametrize("what", WRONG)
def test_one_wrong_number_is_one_error_that_names_the_tree(what: str) -> None:
    name, change = WRONG[what]
    text = trained(0, max_cat_to_onehot=1)
    tree = next(n for n in range(5) if "cat_boundaries" in text.split("\nTree=")[n + 1])
    place = 0
    if name == "threshold":
        fields = ModelText.parse(text).trees[tree]
        place = next(n for n, kind in enumerate(fields["decision_type"].split()) if int(kind) & 1)
    with pytest.raises(ValueError, match=f"tree {tree}: its nodes form no tree"):
        apart(edited(text, name, change, tree, place), odd_rows(0))


ENDS: dict[str, tuple[Callable[[str], str], str]] = {
    "a cut": (lambda text: text[: text.index("\nTree=3")], "(Error|signal SIGABRT)"),
    "two scores a row": (lambda text: re.sub("(num_class|num_tree_per_iteration)=1", r"\1=2", text), "ValueError"),
    "nothing": (lambda _: "", "Error"),
    "more features": (lambda text: text.replace("max_feature_idx=3", "max_feature_idx=4"), "Error"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ENDS)
def test_however_lightgbm_ends_it_is_one_error_with_its_last_words(what: str) -> None:
    damage, says = ENDS[what]
    says = rf"^model\.txt: LightGBM cannot score with it: .*{says}.*Train again\.$"
    with separate_forest(damage(trained(0)), Path("model.txt"), 1) as scores:
        for _ in range(2):
            with pytest.raises(LogFormatError, match=says):
                scores(odd_rows(0))


ODD = {
    "an unknown kind of decision": ("decision_type", "255"),
    "a threshold of no number": ("threshold", "nan"),
    "an infinite leaf": ("leaf_value", "inf"),
    "a count of no number": ("leaf_count", "x"),
    "a number of many digits": ("num_leaves", "9" * 5000),
    "a tree of lines": ("is_linear", "1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ODD)
def test_an_odd_value_is_one_error_or_gives_the_scores_that_lightgbm_gives(what: str) -> None:
    text, rows = edited(trained(0), *ODD[what]), odd_rows(0)
    try:
        (scores,) = apart(text, rows)
    except (ValueError, LogFormatError):
        return
    np.testing.assert_allclose(scores, by_lightgbm(ModelText.parse(text).text(), rows), rtol=0, atol=1e-12)


WORDS = [
    *("-1", "0", "1", "2", "3", "5", "11", "-12", "1000000000", "-2147483649", "1e999", "nan", "inf", "", "x", "0.5"),
    *("1_0", "-0", "1e-400", "4294967295", "\u0661"),
]


def test_a_process_that_is_killed_is_one_error_with_its_signal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    monkeypatch.setattr(separate_forest_module, "__file__", str(program))
    with (
        separate_forest(trained(0), Path("model.txt"), 1) as scores,
        pytest.raises(LogFormatError, match=r"no message \(signal SIGKILL\)"),
    ):
        scores(odd_rows(0))


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A model file with a few words, lines or characters of its trees changed, its sizes perhaps made right."""
    text = trained(draw(st.integers(0, 1)), num_leaves=5, max_cat_to_onehot=1)
    head, _, rest = text.partition("\nend of trees")
    lines = [line for line in head.split("\n") if not line.startswith("objective=")]  # of predictions, not of scores
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.integers(0, len(lines) - 1))
        name, equals, value = lines[place].partition("=")
        words = value.split(" ")
        match draw(st.sampled_from(["word", "word", "word", "word", "gone", "twice", "swap", "character"])):
            case "word":
                words[draw(st.integers(0, len(words) - 1))] = draw(st.sampled_from([*WORDS, words[0]]))
                lines[place] = f"{name}{equals}{' '.join(words)}"
            case "gone":
                del lines[place]
            case "twice":
                lines.insert(place, lines[place])
            case "swap":
                other = draw(st.integers(0, len(lines) - 1))
                lines[place], lines[other] = lines[other], lines[place]
            case _:
                at = draw(st.integers(0, len(lines[place])))
                lines[place] = lines[place][:at] + draw(st.characters()) + lines[place][at:]
    changed = "\n".join(lines) + "\nend of trees" + rest
    return resized(changed) if draw(st.integers(0, 9)) else changed


@pytest.mark.slow
@pytest.mark.parametrize("examples", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_a_changed_file_is_one_error_or_gives_the_scores_that_lightgbm_gives(examples: int) -> None:
    rows, accepted = odd_rows(5), list[str]()

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True)
    @given(mutated())
    def holds(text: str) -> None:
        try:
            (scores,) = apart(text, rows)
        except (ValueError, LogFormatError):
            return
        np.testing.assert_allclose(scores, by_lightgbm(ModelText.parse(text).text(), rows), rtol=0, atol=1e-12)
        accepted.append(text)

    holds()
    assert 0 < len(accepted) < examples
