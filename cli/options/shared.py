"""Options that stand in several groups, each declared once: what is said of it is then the same everywhere."""

from posbias.cli.options.complete import one_of
from posbias.cli.options.option import option, read_name
from posbias.core.choices import CLICK_MODELS

MODEL_HELP = (
    "The click model. Examination depends on the position (pbm, the default), also on the last click above (ubm). "
    "With a propensity by cell: {cell_models}. For fit, run and simulate, also {page_models}."
)
MODEL = option(MODEL_HELP, "NAME", complete=one_of(CLICK_MODELS))
QUERY = option("The query. Repeat for several columns.", "COLUMN", section="Columns of the log")
DOC = option("The document. Repeat for several columns.", "COLUMN", section="Columns of the log")
MEMORY = option("Target for peak memory.", "SIZE", default="2GiB", section="Reading")
THREADS = option("Threads to work with; all cores by default.", "N", min=1, section="Reading")
FEATURES = option(
    "Table of features by query and document, or by document. Repeatable.", "FILE", parser=read_name, section="Features"
)
FEATURE = option("Log column to use as a feature. Repeatable.", "COLUMN", section="Features")
MISSING = option(
    "Rows without features: stop, drop them, or leave the values empty.", default="error", section="Features"
)
VALIDATION = option("Share to hold out for validation, by a hash of the id.", "X", default=0.0, section="Weighting")
PROPENSITY = option(
    "smooth: use the smooth curve where the standard error exceeds {largest_error}. fitted: never.",
    default="smooth",
    section="Weighting",
)
PROPENSITIES = option(
    "Directory written by `posbias fit` or `run`; or a table of position and propensity, or power:ETA.",
    "DIR|FILE",
    parser=read_name,
)
MIN_PROPENSITY = option("Clip propensities at this minimum.", "X", default=0.01, section="Weighting")
CSV = option("Also write the tables as CSV, for spreadsheets.", section="Output")
