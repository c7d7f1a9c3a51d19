"""What is said of an estimate from features: what it cannot see, and whether repeated pairs say the same."""

from posbias.core.fit.fit import Fit
from posbias.core.fit.from_rows import PairsTest
from posbias.core.wording import counted


def rows_verdicts(fit: Fit) -> list[str]:
    """What is worth a line: from how many pages was learnt, and that repeated pairs agree."""
    found, test = fit.from_rows, fit.against_pairs
    said: list[str] = []
    if found is not None and found.pages < found.pages_in_all:
        said.append(
            f"relevance is learnt from {found.pages:,} of {counted(found.pages_in_all, 'pages')} (--sample-pages)."
        )
    if test is not None and not test.rejected:
        said.append(f"the pairs that repeat do not contradict the features ({_rests_on(test)}).")
    return said


def rows_warnings(fit: Fit) -> list[str]:
    """What is wrong, or cannot be excluded."""
    found, test = fit.from_rows, fit.against_pairs
    said: list[str] = []
    if found is not None and found.score is None:
        said.append(
            "without the ranker's score (--ranker-score COLUMN) it cannot be ruled out that the ranker knows more of a "
            "document's relevance than these features show. Propensities are then wrong, as a rule too low far down "
            "the page, and no standard error says so."
        )
    if found is not None and test is not None and test.rejected:
        how = "faster" if test.slope < 0 else "more slowly"
        also = "" if found.score is not None else ", or name the ranker's score (--ranker-score COLUMN)"
        said.append(
            f"the pairs that repeat contradict the features ({_rests_on(test)}): by the features, propensities fall "
            f"{how} with the position. The ranker knows more of the documents than these features show, or the pairs "
            f"that repeat are unlike the others. Use --method conditional{also}."
        )
    return said


def _rests_on(test: PairsTest) -> str:
    return f"p = {test.p_value:.1g}, {counted(test.pairs, 'pairs')} at several positions"
