"""`posbias collect`: sufficient statistics, the merging of those of other days, and stores that grow day by day."""

from typing import Annotated

from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.option import argument
from posbias.cli.options.options import CountingOptions, DecayOptions, GateOptions, StoreOptions
from posbias.cli.options.output import OutputOrInfoOptions
from posbias.cli.options.reading import ReadingOptions


def collect(
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    decay: DecayOptions,
    gate: GateOptions,
    store: StoreOptions,
    output: OutputOrInfoOptions,
    inputs: Annotated[
        list[str] | None, argument("LOGS|STATISTICS...", "Logs to count, or statistics to merge.")
    ] = None,
) -> int:
    """Count a log once and for all, into compact statistics that can be merged across days.

    Example: posbias collect logs/2026-01-05.parquet --date 2026-01-05 --into store
    """
    from posbias.cli.work import stores

    return stores.collect(columns, reading, counting, decay, gate, store, output, inputs)
