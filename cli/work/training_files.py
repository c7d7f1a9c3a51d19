"""From options to training files."""

from posbias.cli.options.training import TrainingOptions
from posbias.core.errors import UsageError
from posbias.core.schema import RESERVED
from posbias.core.training.layouts import LayoutOfPages, choose_grouping, get_layout, layouts_of_pages
from posbias.core.training.weights import WeightOptions, check_min_propensity
from posbias.io.features.of_parts import WantedFeatures
from posbias.io.formats import check_format, get_format
from posbias.io.jobs.fit import WeightRequest
from posbias.io.jobs.training import TrainingRequest


def requested_files(training: TrainingOptions) -> TrainingRequest:
    """Read the options, and find wrong ones before anything is read.

    Raises:
        UsageError: a value is out of range, or options do not go together.
    """
    layout = get_layout(training.layout)
    features = WantedFeatures(tuple(training.features or ()), tuple(training.feature or ()), training.missing)
    check_format(training.format, layout, has_features=bool(features.tables or features.columns))
    form = get_format(training.format)
    if "search_index" in form.takes and not training.search_index:
        raise UsageError(
            f"--format {training.format}: a rating names the index that its document is in. Add --search-index NAME."
        )
    check_min_propensity(training.min_propensity)
    if not 0 <= training.validation < 1:
        raise UsageError(f"--validation {training.validation:g}: must be at least 0 and below 1, e.g. 0.1.")
    if training.validation_by == "session" and not layout.from_pages:
        raise UsageError(
            f"--validation-by session: --layout {layout.name} adds up all pages of a query. Hold out queries, or "
            f"choose another layout: {', '.join(layouts_of_pages())}."
        )
    for name in features.columns:
        if name in RESERVED:
            raise UsageError(f"--feature {name}: this name is reserved. Rename the column to use it as a feature.")
    expected_labels = "negatives" in layout.takes and training.negatives == "posterior"
    options = WeightOptions(
        training.min_propensity,
        training.self_normalize,
        training.negatives,
        training.rate,
        training.grades,
        0 if layout.weighted is None or expected_labels else training.replicates,
    )
    in_rows = features.columns if isinstance(layout, LayoutOfPages) and layout.shows_impressions else ()
    return TrainingRequest(
        layout,
        choose_grouping(layout, training.group),
        form,
        training.search_index,
        WeightRequest(options, training.propensity, training.unidentified == "error", in_rows),
        features,
        training.validation,
        training.validation_by,
    )
