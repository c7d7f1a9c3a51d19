"""Spark frames that the cluster keeps, because they are used several times, for as long as somebody uses them."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from posbias.core.errors import EngineError
from posbias.io.engines.spark_session import spark_errors

SparkFrame = Any
"""pyspark.sql.DataFrame, which is not there unless the extra is installed."""


@dataclass(frozen=True)
class KeptFrames:
    """The frames that are kept. A Spark session may outlive the command: they would fill it."""

    _kept: list[SparkFrame] = field(default_factory=list[SparkFrame])

    def keep(self, frame: SparkFrame) -> SparkFrame:
        """The same frame, kept from its first use on."""
        self._kept.append(frame.persist())
        return frame

    def let_go(self, frame: SparkFrame) -> None:
        """Do not keep a frame any longer. Where Spark has broken down, there is nothing left to do."""
        self._kept.remove(frame)
        with suppress(EngineError), spark_errors():
            frame.unpersist()

    def let_go_of_all(self) -> None:
        """Keep none of the frames any longer."""
        for frame in reversed(self._kept.copy()):
            self.let_go(frame)
