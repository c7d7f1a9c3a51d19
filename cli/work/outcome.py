"""What a comparison comes to: what is printed, what is written, which conditions are met, and the exit code."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posbias.cli.options.comparing import ComparingOptions
from posbias.cli.report import comparison as report
from posbias.cli.report.result import CHANGED, DONE, WITH_DOUBTS
from posbias.cli.report.table import Printed
from posbias.cli.work.comparing import Comparison
from posbias.core.comparison.tables import beyond
from posbias.core.errors import UsageError
from posbias.core.standard_errors.contrasts import ContrastTest
from posbias.core.wording import counted
from posbias.io.results.tables import write_small_table

SCHEMA = "posbias.comparison"
COMPARISON = "comparison"


@dataclass(frozen=True)
class Outcome:
    """What is said of a comparison.

    Attributes:
        printed: tables and sentences.
        verdicts: those of them that say what was found.
        warnings: sentences that are always shown.
        conditions: what of `--max-change` and `--fail-if` is met.
        exit_code: 3 where some of it is, 1 where an estimate did not converge.
    """

    printed: tuple[Printed, ...]
    verdicts: tuple[str, ...]
    warnings: tuple[str, ...]
    conditions: tuple[str, ...]
    exit_code: int


def judge(found: Comparison, asked: ComparingOptions) -> Outcome:
    """Say what was found, and look at the conditions.

    Raises:
        UsageError: a condition asks for what cannot be known.
    """
    asks_for_errors = asked.max_change is not None or "change" in (asked.fail_if or ())
    if asks_for_errors and not found.found.test.n_contrasts:
        raise UsageError(
            "--max-change and --fail-if change need standard errors, and there are none to compare. Use a method that "
            "has them, such as --method conditional."
        )
    conditions, warnings = list[str](), list[str]()
    if asked.max_change is not None:
        far = beyond(found.table, asked.max_change)
        if far.height:
            row = far.sort((far["ratio"].log()).abs(), descending=True).row(0, named=True)
            labels = [*(["day"] if found.of == "days" else []), *found.cells]
            conditions.append("max-change")
            warnings.append(
                f"--max-change {asked.max_change:g}: {far.height} of {found.found.difference.size} propensities "
                f"changed by more than that, most at {report.in_words(row, labels)}, by a factor of {row['ratio']:.3g}."
            )
    for condition in dict.fromkeys(asked.fail_if or ()):
        if condition in found.met:
            conditions.append(condition)
            warnings.append(f"--fail-if {condition}: {found.met[condition]}.")
    if "not-converged" in found.met and "not-converged" not in conditions:
        warnings.append(f"{found.met['not-converged']}: do not rely on what is compared.")
    verdicts = (report.verdict(found.table, found.cells, found.found, found.of), *found.notes)
    title = f"propensities relative to {report.in_words(found.references.row(0, named=True), found.cells)}"
    if found.references.height > 1:
        title += f", and likewise in {counted(found.references.height - 1, 'other contexts')}"
    if found.of == "days":
        said = report.days_report(found.table, found.cells, f"{len(found.names)} days, {title}")
    else:
        said = report.change_report(found.table, found.cells, found.names, title)
    code = CHANGED if conditions else WITH_DOUBTS if "not-converged" in found.met else DONE
    return Outcome((*said, *verdicts), verdicts, tuple(warnings), tuple(conditions), code)


def described(found: Comparison, outcome: Outcome) -> dict[str, Any]:
    """What the manifest says about a comparison."""
    return {
        "schema": SCHEMA,
        COMPARISON: {
            "of": found.of,
            "names": list(found.names),
            "test": _test(found.found.test),
            "found": dict(found.met),
            "conditions_met": list(outcome.conditions),
            "differences": [_plain(row) for row in found.table.to_dicts()],
        },
        "verdicts": list(outcome.verdicts),
    }


def write(found: Comparison, folder: Path, *, csv: bool) -> None:
    """Write the table of differences."""
    write_small_table(found.table, folder, COMPARISON, csv=csv)


def _test(test: ContrastTest) -> dict[str, float | int | None]:
    known = test.n_contrasts > 0
    return {
        "contrasts": test.n_contrasts,
        "p_value": test.p_value if known else None,
        "statistic": test.statistic if known else None,
        "degrees": test.degrees if known else None,
    }


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if value is None or isinstance(value, int | float | str) else str(value)
        for name, value in row.items()
    }
