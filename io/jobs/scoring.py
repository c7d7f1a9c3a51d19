"""Documents scored by a model that `train` wrote."""

from collections.abc import Callable, Sequence

from posbias.core.errors import plural
from posbias.io.jobs.tables import Result
from posbias.io.places.locations import Location
from posbias.io.training.rankers import open_new_documents, read_model, score_rows, write_scores


def open_scoring(
    inputs: Sequence[str], model: Location, query: tuple[str, ...], doc: tuple[str, ...], memory: int
) -> Callable[[Result], None]:
    """Open a model and the documents to score; return what scores them into a result.

    Args:
        inputs: files of documents: their ids, and the features of the model.
        model: the directory that `train` wrote.
        query: the columns of it; those of a well-known name if none is named.
        doc: columns of the document.
        memory: how many bytes to take at most.

    Raises:
        PosbiasError: something cannot be read, or a column is missing.
    """
    stored = read_model(model)
    documents = open_new_documents(inputs, query, doc, stored.section.features)

    def score(result: Result) -> None:
        with result.progress.stage("scoring") as stage:
            n_rows = write_scores(score_rows(documents, stored, memory), result.folder, stage)
        sources = {str(source.path): source.digest() for source in documents.sources}
        result.content |= {"model": str(model), "sources": sources, "documents": n_rows}
        result.headline = f"{plural(n_rows, 'documents')} are scored"

    return score
