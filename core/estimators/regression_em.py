"""Theta from features by regression EM, as published. For comparison only, so it reports no errors."""

from posbias.core.estimators.estimator import MethodOfRows


class RegressionEMMethod(MethodOfRows):
    """EM whose M-step for relevance fits trees to sampled labels."""

    name = "regression-em"
    reference = "Wang et al. 2018"
    takes = ("max_iterations",)
