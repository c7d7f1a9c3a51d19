"""Options that stand in several groups, each declared once: what is said of it is then the same everywhere."""

from typing import Annotated

from posbias.cli.options.option import option, read_name
from posbias.core.choices import Missing, Source

_COLUMNS, _FEATURES, _READING = "Columns of the log", "Features", "Reading"
_WEIGHTING, _OUTPUT = "Weighting", "Output"

MODEL_HELP = (
    "The click model. Examination depends on the position (pbm, the default), also on the last click above (ubm). "
    "With a propensity by cell: {cell_models}. For fit, run and simulate, also {page_models}."
)

Query = Annotated[
    list[str] | None, option("--query", "The query. Repeat for several columns.", _COLUMNS, metavar="COLUMN")
]
Doc = Annotated[
    list[str] | None, option("--doc", "The document. Repeat for several columns.", _COLUMNS, metavar="COLUMN")
]
Memory = Annotated[str, option("--memory", "Target for peak memory.", _READING, metavar="SIZE")]
Threads = Annotated[
    int | None, option("--threads", "Threads to work with; all cores by default.", _READING, metavar="N", min=1)
]
Features = Annotated[
    list[str] | None,
    option(
        "--features",
        "Table of features by query and document, or by document. Repeatable.",
        _FEATURES,
        metavar="FILE",
        parser=read_name,
    ),
]
Feature = Annotated[
    list[str] | None,
    option("--feature", "Log column to use as a feature. Repeatable.", _FEATURES, metavar="COLUMN"),
]
MissingFeatures = Annotated[
    Missing,
    option("--missing", "Rows without features: stop, drop them, or leave the values empty.", _FEATURES),
]
Validation = Annotated[
    float,
    option("--validation", "Share to hold out for validation, by a hash of the id.", _WEIGHTING, metavar="X"),
]
Propensity = Annotated[
    Source,
    option(
        "--propensity",
        "smooth: use the smooth curve where the standard error exceeds {largest_error}. fitted: never.",
        _WEIGHTING,
    ),
]
PROPENSITIES = option(
    "--propensities",
    "Directory written by `posbias fit` or `run`; or a table of position and propensity, or power:ETA.",
    metavar="DIR|FILE",
    parser=read_name,
)
MinPropensity = Annotated[
    float, option("--min-propensity", "Clip propensities at this minimum.", _WEIGHTING, metavar="X")
]
Csv = Annotated[bool, option("--csv", "Also write the tables as CSV, for spreadsheets.", _OUTPUT)]
