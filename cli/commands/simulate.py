"""`posbias simulate`: logs with known truth."""

from posbias.cli.options.output import OutputOptions
from posbias.cli.options.simulation import (
    ExperimentOptions,
    LabelOptions,
    RankerOptions,
    UserOptions,
    WorldOptions,
)


def simulate(
    drawn: WorldOptions,
    labels: LabelOptions,
    ranking: RankerOptions,
    users: UserOptions,
    experiments: ExperimentOptions,
    output: OutputOptions,
) -> int:
    """Simulate a click log of which the truth is known, from scratch or from graded labels.

    Example: posbias simulate -o simulated
    """
    from posbias.cli.work import simulating

    return simulating.simulate(drawn, labels, ranking, users, experiments, output)
