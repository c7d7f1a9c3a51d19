"""Settings that mean nothing are errors: in posbias.toml, in the environment, and on the command line."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from command_results import Output
from workshop import RunPosbias as Run

from posbias.core.fit import fit


def said(done: CompletedProcess[str]) -> str:
    """The message, out of the frame that is drawn around it."""
    return " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.slow
def test_sql_is_an_option_of_some_commands_and_a_command_with_a_section(
    run_in_process: Run, log: Path, tmp_path: Path
) -> None:
    (tmp_path / "posbias.toml").write_text("sql = 'FROM log LIMIT 9'\n", encoding="utf-8")
    done = run_in_process("collect", log, "-o", "out", cwd=tmp_path)
    assert "rows: 9 read" in done.stderr
    (tmp_path / "posbias.toml").write_text("[sql]\ndialect = 'trino'\n", encoding="utf-8")
    printed = run_in_process("sql", "shown", cwd=tmp_path)
    assert (printed.returncode, printed.stdout[:4]) == (0, "WITH"), printed.stderr


def test_numbers_and_days_of_the_configuration_need_no_quotes(run_in_process: Run, log: Path, tmp_path: Path) -> None:
    (tmp_path / "posbias.toml").write_text("memory = 1073741824\ndate = 2026-01-05\ncsv = true\n", encoding="utf-8")

    run_in_process("fit", log, "-o", "out", code=0)

    options = Output(tmp_path / "out").manifest["options"]
    assert (options["memory"], options["date"], options["csv"]) == ("1073741824", "2026-01-05", True)


NO_OPTIONS = {
    "Did you mean POSBIAS_": ("POSBIAS_MIN_PROPENSTY", "POSBIAS_MINPROPENSITY", "posbias_model", "POSBIAS_SESION"),
    "ename or unset the variable.": (
        *("POSBIAS_REPOSITORY", "POSBIAS_X", "POSBIAS_", "posbias_image"),
        *("POSBIAS_PORTS", "POSBIAS_PORT_TCP", "POSBIAS_SERVICE", "POSBIAS_PORT_80_TCP_HOST"),  # not of Kubernetes
    ),
}


@pytest.mark.parametrize(("says", "name"), [(says, name) for says, names in NO_OPTIONS.items() for name in names])
def test_a_variable_that_is_no_option_is_refused_without_its_value(
    run_in_process: Run, log: Path, tmp_path: Path, says: str, name: str
) -> None:
    done = run_in_process("run", log, "-o", "out", "--quiet", **{name: "a-secret"}, code=2)

    assert f"{name}: no such option." in done.stderr
    assert says in done.stderr
    assert "a-secret" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["force", "dry-run", "help-all"])
@pytest.mark.parametrize("value", ["true", "false"])
def test_what_holds_for_one_run_is_refused_as_a_setting(
    run_in_process: Run, log: Path, tmp_path: Path, option: str, value: str
) -> None:
    variable = f"POSBIAS_{option.replace('-', '_').upper()}"
    run_in_process("collect", log, "-o", "out", code=0)
    before = (tmp_path / "out" / "manifest.json").read_bytes()
    reason = f"--{option} is no setting: it is given on the command line, each time."
    done = run_in_process("collect", log, "-o", "out", code=2, **{variable: value})
    assert done.stderr == f"posbias: error: {variable}: {reason} Unset the variable.\n"
    for section in ("", "[collect]\n", "[report]\n"):
        (tmp_path / "posbias.toml").write_text(f"{section}{option} = {value}\n", encoding="utf-8")
        assert f"{option}: {reason} Leave it out." in said(run_in_process("collect", log, "-o", "out", code=2))
    assert (tmp_path / "out" / "manifest.json").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("service", ["POSBIAS", "POSBIAS_WEB", "POSBIAS_2"])
def test_the_variables_that_kubernetes_sets_for_a_service_are_harmless(
    run_in_process: Run, log: Path, service: str
) -> None:
    port = f"{service}_PORT_8080_TCP"
    names = (f"{service}_SERVICE_HOST", f"{service}_SERVICE_PORT", f"{service}_SERVICE_PORT_HTTPS", f"{service}_PORT")
    variables = dict.fromkeys((*names, port, f"{port}_PROTO", f"{port}_PORT", f"{port}_ADDR"), "tcp://10.0.0.11:8080")

    usual = run_in_process("fit", log, "-o", "usual", "--quiet")
    done = run_in_process("fit", log, "-o", "out", "--quiet", **variables, code=0)

    assert (done.returncode, done.stderr) == (usual.returncode, usual.stderr)


def test_an_empty_variable_is_not_set_and_a_blank_one_is_an_error(run_in_process: Run, log: Path) -> None:
    empty = run_in_process("fit", log, "-o", "out", POSBIAS_MODEL="", POSBIAS_SESSION="", POSBIAS_NO_SUCH="", code=0)
    blank = run_in_process("fit", log, "-o", "other", POSBIAS_SESSION=" ", code=2)

    assert "warning: POSBIAS" not in empty.stderr
    assert "POSBIAS_SESSION: contains only whitespace." in blank.stderr


def test_what_is_set_for_several_commands_is_left_aside_where_it_has_no_effect(
    run_in_process: Run, log: Path, tmp_path: Path
) -> None:
    (tmp_path / "posbias.toml").write_text(
        'tolerance = 1e-6\nseed = 3\n[layout-options]\nrate = "ips"\n', encoding="utf-8"
    )

    fitted = run_in_process("fit", log, "-o", "fit", "--method", "ctr", POSBIAS_LAYOUT_OPTIONS="grades=3")
    weighted = run_in_process("weight", log, "--propensities", "fit", "-o", "out", POSBIAS_STRATIFY="nosuch")

    assert (fitted.returncode, weighted.returncode) == (0, 0), fitted.stderr + weighted.stderr


@pytest.mark.slow
def test_what_joint_em_was_asked_is_said_to_have_no_effect_where_it_does_not_run(
    run_in_process: Run, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "LARGEST_COMPARISON", 1)
    for words in (("--examination-prior", "0.3:5"), ("--no-acceleration",)):
        done = run_in_process("fit", log, "-o", words[0].strip("-"), *words, code=0)
        assert f"! {' '.join(words)} had no effect" in done.stderr


def test_a_day_to_come_is_refused(run_in_process: Run, log: Path, tmp_path: Path) -> None:
    day = datetime.now(tz=UTC).date()

    later = run_in_process("collect", log, "-o", "later", "--date", str(day + timedelta(days=3)))
    today = run_in_process("collect", log, "-o", "today", "--date", str(day))

    assert (later.returncode, today.returncode) == (2, 0)
    assert "is in the future" in later.stderr
    assert not (tmp_path / "later").exists()
