"""The options of judging click models by clicks that they were not fitted to."""

from typing import Literal

from posbias.cli.options.complete import several_of
from posbias.cli.options.option import option, options, read_name
from posbias.core.choices import CLICK_MODELS


@options("Click models")
class ModelsOptions:
    """Which click models are judged, and by which sessions."""

    models: str | None = option(
        "Click models to judge instead of rankings, with commas, e.g. pbm,ubm,dbn; or all.",
        "LIST",
        complete=several_of((*CLICK_MODELS, "all")),
    )
    split: Literal["session", "time"] = option(
        "Which sessions are held out: some, by a hash of the session, or the latest.", default="session"
    )
    test_share: float = option("The share of the sessions that is held out.", "X", default=0.25)
    test: list[str] | None = option(
        "A log to judge by, instead of holding sessions out. Repeatable.", "LOG", parser=read_name
    )
    samples: int = option("Bootstrap samples of sessions, for standard errors.", "N", default=200, min=20, max=10_000)
    seed: int = option("Random seed.", "N", default=0, min=0)
