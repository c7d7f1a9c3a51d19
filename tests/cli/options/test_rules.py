"""options.toml: every name in it resolves, nothing in it is dead, and each of its rules refuses an option."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args, get_type_hints

import pytest
from command_results import invoke
from typer.main import get_command
from workshop import RunPosbias as Run

from posbias.cli.main import app
from posbias.cli.options import groups
from posbias.cli.options.groups import SETTINGS
from posbias.cli.options.option import COMPLETERS, READERS, declaration, declarations
from posbias.cli.options.rules import CHOICES, PLUGINS, REASONS
from posbias.core.choices import settings_of
from posbias.core.estimators import methods_that_take
from posbias.core.learners.learning import learners_that_take
from posbias.core.training.layout import layouts_that_take
from posbias.io import options
from posbias.io.training import formats_that_take

if TYPE_CHECKING:
    from typer.core import TyperGroup

COMMANDS = cast("TyperGroup", get_command(app)).commands
PARAMETERS = {name: {str(each.name) for each in command.params} - {"help"} for name, command in COMMANDS.items()}
TRIALS = json.loads(Path(__file__).with_name("trials.json").read_text(encoding="utf-8"))
KEYS = {
    *("argument", "help", "metavar", "section", "min", "max", "short", "flag", "first", "environment", "complete"),
    *("reads", "on_disk", "python", "in", "rules"),
}
KEYS_OF_RULES = {"commands", "setting", "when", "requires", "excludes", "taken_by", "reason_of", "reason"}
OPTIONS, _, LISTS = declarations()
ENTRIES = {(command, name): declaration(command, name) for command, names in PARAMETERS.items() for name in names}


def rules_of(command: str, name: str) -> Iterator[dict[str, str] | str]:
    """Tables and names of functions, in place of named lists, that may hold for a command."""

    def in_full(rules: list[Any]) -> Iterator[dict[str, str] | str]:
        for rule in rules:
            yield from (in_full(LISTS[rule]) if isinstance(rule, str) and rule in LISTS else [rule])

    for rule in in_full(ENTRIES[command, name].get("rules", [])):
        if isinstance(rule, str) or command in rule.get("commands", command).split():
            yield rule


RULES = [(*key, rule) for key in ENTRIES for rule in rules_of(*key)]
TABLES = [(command, name, rule) for command, name, rule in RULES if isinstance(rule, dict)]


def test_every_option_is_one_of_a_command_and_every_key_is_known() -> None:
    assert set(OPTIONS) == {name for command, name in ENTRIES if ENTRIES[command, name].get("section")} - {"format_"}
    for (_, name), entry in ENTRIES.items():
        assert set(entry) <= KEYS, name
        assert {(command, name) for command in entry.get("in", {})} <= set(ENTRIES)


def test_every_name_that_the_table_gives_to_code_is_used_and_resolves() -> None:
    for key, known in (("complete", COMPLETERS), ("reads", READERS)):
        assert {entry[key] for entry in ENTRIES.values() if key in entry} == set(known)
    assert {rule if isinstance(rule, str) else rule.get("reason_of") for _, _, rule in RULES} - {None} == set(REASONS)
    assert {rule["taken_by"] for _, _, rule in TABLES if "taken_by" in rule} == set(PLUGINS)
    lists = [*LISTS.values(), *(entry.get("rules", []) for entry in ENTRIES.values())]
    assert {rule for rules in lists for rule in rules if isinstance(rule, str)} - set(REASONS) == set(LISTS)


def values_of(option: str) -> set[str]:
    """The values that an option may have, as far as they are names."""
    classes = [one for one in (vars(groups) | vars(options)).values() if isinstance(one, type)]
    kinds = [get_type_hints(one).get(option) for one in classes]
    hints = [kind for hint in kinds for kind in (hint, *get_args(hint))]
    offered = COMPLETERS[OPTIONS[option]["complete"]]("") if "complete" in OPTIONS[option] else []
    switch = {"True", "False"} if bool in hints else set[str]()
    return {*offered, *switch, "None"} | {str(value) for hint in hints for value in get_args(hint)}


def test_every_option_and_choice_in_a_rule_resolves() -> None:
    conditions: set[tuple[str, str]] = set()
    for command, option, rule in TABLES:
        assert set(rule) <= KEYS_OF_RULES
        assert set(rule.get("commands", "").split()) <= set(COMMANDS)
        assert "setting" not in rule or rule["setting"] in settings_of(SETTINGS[option])
        conditions |= {(command, rule[key]) for key in ("when", "requires", "excludes") if key in rule}
        assert {*re.findall(r"\{(\w+)\}", rule.get("reason", ""))} <= {
            rule.get(key, "").partition("=")[0] for key in ("requires", "excludes")
        }
    resolved = {
        condition
        for command, condition in conditions
        if {*condition.partition("=")[0].split("|")} <= PARAMETERS[command]
    }
    assert {condition for _, condition in conditions} == resolved
    for condition in filter(lambda condition: "=" in condition, resolved):
        name, _, values = condition.partition("=")
        words = {value for value in values.split(",") if not value.isdecimal()}
        assert words <= {*CHOICES, *values_of(name), *get_args(groups.Form)}


def test_what_only_some_plugins_take_has_the_rule_that_says_so() -> None:
    takers = {"method": methods_that_take, "layout": layouts_that_take, "format": formats_that_take}
    for command, option in ENTRIES:
        ruled = {rule.get("taken_by") for rule in rules_of(command, option) if isinstance(rule, dict)}
        for name in settings_of(SETTINGS[option]) if option in SETTINGS else [option]:
            for kind, take in (takers | {"learner": learners_that_take}).items():
                assert not take(name) or kind not in PARAMETERS[command] or kind in ruled, (command, name)


MISSING = {
    "score": "log.csv --model ranker",
    "weight": "log.csv --propensities fit",
    "predict": "log.csv --propensities fit",
    "interleave": "log.csv --team team",
    "sql": "shown --dialect duckdb",
}
"""What a command reads, by command; nothing of it is there."""


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in {"demo", "simulate"}])
def test_no_option_breaks_a_rule(run_in_process: Run, command: str) -> None:
    trials = TRIALS.get(command, TRIALS["log"])
    for name in PARAMETERS[command] & {*trials}:
        output = ["-o", "there/out"] if "output" in PARAMETERS[command] - {name} else []
        done = run_in_process(command, *f"{MISSING.get(command, 'log.csv')} {trials[name]['words']}".split(), *output)
        assert done.returncode == 2 or command == "sql", done.stderr
        assert "bug in posbias" not in done.stderr


CASES = [
    case.split(" -> ") for case in Path(__file__).with_name("refused.txt").read_text(encoding="utf-8").splitlines()
]
"""Command lines, each with what refuses its option."""


@pytest.fixture(scope="module")
def statistics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return statistics of a small log."""
    folder = tmp_path_factory.mktemp("rules")
    (folder / "log.csv").write_text("query,doc,position,click\n1,1,1,1\n1,2,2,0\n1,2,1,0\n1,1,2,1\n", encoding="utf-8")
    invoke("collect", folder / "log.csv", "-o", folder / "statistics", "--quiet", code=None)
    return folder / "statistics"


@pytest.mark.parametrize(("line", "reason"), CASES, ids=[line for line, _ in CASES])
def test_an_option_without_effect_is_refused_with_the_reason(
    run_in_process: Run, statistics: Path, line: str, reason: str
) -> None:
    words = [str(statistics) if word == "statistics" else word for word in line.split()]
    has_output = words[0] in {"show", "check", "compare", "sql"} or {"-o", "--info", "--into"} & {*words}
    done = run_in_process(*words, *([] if has_output else ["-o", "out"]), code=2)
    said = done.stderr.splitlines()[-1].replace(str(statistics), "statistics")
    assert said.endswith(f": has no effect here: {reason}. Leave it out.")


def test_every_reason_of_the_table_is_tried() -> None:
    reasons = [re.sub(r"\\\{\w+\\\}", r"\\S+", re.escape(rule["reason"])) for _, _, rule in TABLES if "reason" in rule]
    tried = [reason for _, reason in CASES]
    assert [reason for reason in reasons if not any(re.fullmatch(reason, each) for each in tried)] == []


@pytest.mark.parametrize("source", ["algolia", "ubi"])
def test_settings_of_a_file_that_the_command_line_makes_meaningless_are_left_aside(
    run_in_process: Run, tmp_path: Path, source: str
) -> None:
    (tmp_path / "posbias.toml").write_text('impression-where = "a=1"\nclick-where = "a=2"\npage-base = 0\n', "utf-8")
    (tmp_path / "log.ndjson").write_text('{"a": 1}\n', encoding="utf-8")
    done = run_in_process("fit", "log.ndjson", "--input-format", source, "-o", "out", code=2)
    assert "has no effect" not in done.stderr
