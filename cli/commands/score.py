"""`posbias score`: scores of new documents, by a model of `train`."""

from typing import Annotated

from posbias.cli.options.option import argument, option, read_place
from posbias.cli.options.output import OutputOptions
from posbias.cli.options.shared import DOC, MEMORY, QUERY, THREADS
from posbias.cli.options.values import parse_memory
from posbias.io.places.locations import Location


def score(
    inputs: Annotated[list[str], argument("FILE...", "Documents to score: their ids, and the model's features.")],
    model: Annotated[
        Location, option("Directory written by `posbias train`.", "DIR", parser=read_place, environment=False)
    ],
    output: OutputOptions,
    query: Annotated[list[str] | None, QUERY] = None,
    doc: Annotated[list[str] | None, DOC] = None,
    memory: Annotated[str, MEMORY] = "2GiB",
    threads: Annotated[int | None, THREADS] = None,  # noqa: ARG001 - set before anything is loaded
) -> int:
    """Score documents with a model that `posbias train` wrote.

    Example: posbias score candidates.parquet --model ranker -o scored
    """
    from posbias.cli.report.result import open_result
    from posbias.core.wording import counted
    from posbias.io.learning.model_files import read_model
    from posbias.io.learning.new_documents import open_new_documents
    from posbias.io.learning.scores import score_rows, write_scores

    stored = read_model(model)
    found = open_new_documents(inputs, tuple(query or ()), tuple(doc or ()), stored.section.features)
    with open_result("score", output, inputs, [], [model]) as result:
        with result.progress.stage("scoring") as stage:
            n_rows = write_scores(score_rows(found, stored, parse_memory(memory)), result.folder, stage)
        result.content |= {
            "model": str(model),
            "sources": {str(source.path): source.digest() for source in found.sources},
            "documents": n_rows,
        }
        result.printed.append(f"scored {counted(n_rows, 'documents')}")
    return result.exit_code
