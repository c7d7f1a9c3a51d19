"""What can be counted: models that have cells, and columns that results can hold under their own names."""

from collections.abc import Iterable, Sequence

from posbias.core.errors import UsageError
from posbias.core.models import FactorisedModel, click_model_names, get_model, model_names
from posbias.core.schema import NAMES_TAKEN

DEFAULT_MODEL = "pbm"


def counted_model(name: str) -> FactorisedModel:
    """The model whose cells are counted.

    Raises:
        UsageError: there is none of that name, or it has no cells.
    """
    try:
        return get_model(name)
    except UsageError:
        if name not in click_model_names():
            raise
    raise UsageError(
        f"--model {name}: needs whole pages, and what is counted are impressions by cell, for "
        f"{' and '.join(model_names())}. It is for `posbias fit` and `run`."
    )


def check_named_columns(model: FactorisedModel, named: Iterable[tuple[str, Sequence[str]]]) -> None:
    """See that columns which stand in results under their own names can do so.

    Args:
        model: whose cells are counted.
        named: options with the columns that they name.

    Raises:
        UsageError: a name means something else there.
    """
    for flag, names in named:
        for name in names:
            if name in NAMES_TAKEN[flag] or name in model.cell_columns:
                raise UsageError(f"{flag} {name}: this name means something else in the results. Rename the column.")


def check_context(model: FactorisedModel, context: Sequence[str]) -> None:
    """See that a model takes contexts, where there are some.

    Raises:
        UsageError: it does not.
    """
    if context and model.name != DEFAULT_MODEL:
        raise UsageError(f"--context: works only with --model {DEFAULT_MODEL}, not {model.name}.")
