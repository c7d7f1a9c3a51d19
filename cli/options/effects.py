"""An option that is given on the command line has an effect, or is refused.

What stands in posbias.toml or in the environment may be meant for several commands and methods: where it has no effect,
it is left aside. What is typed for this one command is meant for it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from posbias.core.errors import UsageError

if TYPE_CHECKING:
    from posbias.core.counts.plan import StatisticsPlan
    from posbias.io.stores.store import Statistics


@dataclass(frozen=True)
class Situation:
    """What a command is asked to do.

    Attributes:
        command: its name.
        values: of all its parameters, by name.
    """

    command: str
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - of whatever type the option has
        return self.values[name]

    @property
    def inputs(self) -> list[str]:
        """Logs or statistics, as named by the user."""
        return cast("list[str]", self.values.get("inputs") or self.values.get("logs") or [])

    @property
    def statistics(self) -> "StatisticsPlan | None":
        """What the inputs count, where they are statistics; looked up only if an option asks."""
        return self._found[0].metadata.plan if self._found else None

    @property
    def merges(self) -> bool:
        """Whether the inputs are several statistics."""
        return len(self._found) > 1

    @cached_property
    def _found(self) -> "list[Statistics]":
        from posbias.io.stores.store import find_statistics

        return find_statistics(self.inputs)


Need = Callable[[Situation], str | None]
"""Says why an option has no effect in a situation, or None where it has one."""


def only_where(holds: Callable[[Situation], bool], otherwise: str) -> Need:
    """A need with one reason."""
    return lambda situation: None if holds(situation) else otherwise


def check_effects(given: Mapping[str, str], needs: Mapping[str, Iterable[Need]], situation: Situation) -> None:
    """Refuse an option without effect.

    Args:
        given: what stands on the command line, by parameter.
        needs: what options need, by parameter; others always have an effect.
        situation: what they are given for.

    Raises:
        UsageError: one has no effect.
    """
    for name, said in given.items():
        for need in needs.get(name, ()):
            reason = need(situation)
            if reason is not None:
                raise UsageError(f"{said}: has no effect here: {reason}. Leave it out.")
