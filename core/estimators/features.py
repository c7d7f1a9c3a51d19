"""Theta from features, where no pair repeats: the conditional likelihood on strata with cross-fitted exposure."""

from posbias.core.estimators.estimator import MethodOfRows


class FeaturesMethod(MethodOfRows):
    """Fixed-effects Poisson on strata of predicted relevance and place, errors clustered by page."""

    name = "features"
    reference = "Hausman, Hall & Griliches 1984; Rosenbaum & Rubin 1984; Chernozhukov et al. 2018"
    takes = ("cluster", "shrink", "max_iterations", "tolerance")
