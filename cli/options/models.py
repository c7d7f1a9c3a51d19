"""The options of judging click models by clicks that they were not fitted to."""

from dataclasses import dataclass
from typing import Annotated, Literal

from posbias.cli.options.option import option, read_name

_MODELS = "Click models"


@dataclass(frozen=True)
class ModelsOptions:
    """Which click models are judged, and by which sessions."""

    models: Annotated[
        str | None,
        option(
            "--models",
            "Click models to judge instead of rankings, with commas, e.g. pbm,ubm,dbn; or all.",
            _MODELS,
            metavar="LIST",
        ),
    ] = None
    split: Annotated[
        Literal["session", "time"],
        option("--split", "Which sessions are held out: some, by a hash of the session, or the latest.", _MODELS),
    ] = "session"
    test_share: Annotated[
        float,
        option("--test-share", "The share of the sessions that is held out.", _MODELS, metavar="X"),
    ] = 0.25
    test: Annotated[
        list[str] | None,
        option(
            "--test",
            "A log to judge by, instead of holding sessions out. Repeatable.",
            _MODELS,
            metavar="LOG",
            parser=read_name,
        ),
    ] = None
    samples: Annotated[
        int,
        option(
            "--samples", "Bootstrap samples of sessions, for standard errors.", _MODELS, min=20, max=10_000, metavar="N"
        ),
    ] = 200
    seed: Annotated[int, option("--seed", "Random seed.", _MODELS, min=0, metavar="N")] = 0
