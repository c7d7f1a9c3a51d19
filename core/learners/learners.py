"""The learners. Each is a class below `Learner`, with its paper; a line in `choices` names it."""

from posbias.core.choices import LEARNERS, Room
from posbias.core.learners.learning import Learner

_LEARNERS = Room[Learner](LEARNERS, "--learner")


def get_learner(name: str) -> Learner:
    """The learner of that name.

    Raises:
        UsageError: there is none.
    """
    return _LEARNERS.get(name)


def learners_from_randomized() -> list[str]:
    """The learners that need to know which rows were placed at random."""
    return [name for name, learner in _LEARNERS.plugins.items() if learner.needs_randomized]


def learners_that_take(option: str) -> list[str]:
    """The learners that know an option that is not for all."""
    return [name for name, learner in _LEARNERS.plugins.items() if option in learner.takes]
