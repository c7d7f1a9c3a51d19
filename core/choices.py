"""The words among which options choose, and a default, apart from what they mean: the command line starts at once."""

from typing import Literal

# --- reading ----------------------------------------------------------------------------------------------------

Impressions = Literal["hits", "events"]
"""What counts as shown in UBI."""

DuplicateDocs = Literal["error", "first", "keep"]
"""What becomes of a document that stands twice on a page."""

OnBadRows = Literal["error", "drop"]
"""What becomes of rows that break the rules."""

MOST_BAD_ROWS = 0.05
"""The share of the rows that may be left out because they break the contract, where nothing else is said."""

MOST_RESULTS_OF_A_PAGE = 10_000
"""The most results that one of several pages of results holds."""

CheckPages = Literal["sample", "all"]
"""Which pages of a large log are looked at."""

EngineName = Literal["polars", "spark"]
"""Where rows are read and counted."""

# --- estimating -------------------------------------------------------------------------------------------------

Period = Literal["auto", "none", "hour", "day", "week"]
"""By what attractiveness may differ."""

Cluster = Literal["query", "pair", "session", "column", "two-way"]
"""By what errors are clustered."""

Shrink = Literal["auto", "none"]
"""Whether contexts are shrunk towards each other."""

FREE = "free"
"""The name of no shape."""

LARGEST_ERROR = 0.25
"""Standard error of log propensity up to which a free estimate is good enough to make weights from."""

# --- training and evaluating ------------------------------------------------------------------------------------

Missing = Literal["error", "drop", "nan"]
"""What becomes of rows without features."""

Grouping = Literal["session", "query"]
"""What is ranked together."""

Source = Literal["smooth", "fitted"]
"""Which propensities are used where the fitted ones are not sure."""

Negatives = Literal["clamp", "posterior"]
"""What weight rows without clicks have."""

Rate = Literal["posterior", "coec", "ips"]
"""What the label of a judgment is made from."""

MultipleTests = Literal["none", "bonferroni", "fdr"]
"""What a level of significance is about."""

Candidates = Literal["page", "query"]
"""What a document is ranked among."""

MARGIN_LIMIT = 0.5
"""Weight of -tau^2 from which on the objective of pairs falls without end as tau grows."""

Vectors = Literal["treatment", "control"]
"""Which factors of documents rank, where there are those of rows placed at random and those of the others."""

TieDistance = Literal["squared", "absolute"]
"""How the two are held together."""

PENALTIES = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Penalties of factors to choose from, where none is named."""
