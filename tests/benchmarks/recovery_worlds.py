"""The logs with known truth that `recovery.py` fits, and what is asked of the estimators on each."""

from dataclasses import dataclass, replace
from typing import Literal

from posbias.core.choices import Period
from posbias.core.simulation.simulate import SimulationOptions

SPARSE_AIM = 5.0
"""Joint EM's error relative to conditional's that is asked for on a sparse log."""
DENSE_AIM = 0.5
"""The same on the densest log: conditional within 2x of joint EM."""


@dataclass(frozen=True)
class Fitting:
    """One way to fit a log.

    Attributes:
        label: what the table adds to the log's name.
        model: the click model that is fitted, not always the one that clicked.
        period: whether attractiveness may differ by day.
        strata: columns that attractiveness may differ by.
        aim: lowest ratio of joint EM's error to conditional's that is asked for; 0 for none.
    """

    label: str = ""
    model: Literal["pbm", "ubm"] = "pbm"
    period: Period = "none"
    strata: tuple[str, ...] = ()
    aim: float = 0.0


@dataclass(frozen=True)
class World:
    """One kind of log, drawn anew for every seed, and the ways to fit it."""

    name: str
    options: SimulationOptions
    fittings: tuple[Fitting, ...] = (Fitting(),)


ASKED_OF_SPARSE = (Fitting(aim=SPARSE_AIM),)
UBM = Fitting(model="ubm")
BY_DAY = (Fitting("pooled"), Fitting("by day", period="day"), Fitting("auto", period="auto"))
BY_DAY_SPARSE = (BY_DAY[0], replace(BY_DAY[1], aim=SPARSE_AIM), replace(BY_DAY[2], aim=SPARSE_AIM))
BY_SEGMENT = (Fitting("pooled"), Fitting("by segment", strata=("segment",)))

DENSE = SimulationOptions(n_sessions=30_000, n_queries=50, docs_per_query=20)
SPARSE = SimulationOptions(n_sessions=100_000, n_queries=30_000, docs_per_query=20, query_exponent=0.7)
LONGER = replace(SPARSE, n_sessions=200_000, n_queries=60_000)
SPARSEST = SimulationOptions(n_sessions=200_000, n_queries=150_000, docs_per_query=20, query_exponent=0.3)

# A sticky ranker has standing errors: else documents that never move would also be sorted by attractiveness.
STICKY = {"ranker_strength": 30.0, "score_weight": 0.3}
CONFOUNDED = {"ranker_strength": 4.0}
LOW_CLICKS = {"attractiveness_scale": 0.1}
HIGH_CLICKS = {"attractiveness_shape": (4.0, 2.0), "eta": 0.5}
UNEVEN_READINESS = {"readiness": (0.3, 1.7), "attractiveness_scale": 0.58}
RANDOMIZED = {"randomized_share": 0.05}
RERANKED = {"days": 10, "feedback_strength": 3.0}
RERANKED_STRONGLY = {"days": 30, "feedback_strength": 6.0}
PERSONALISED = {"segments": 4, "segment_difference": 0.7, "ranker_strength": 2.0}

WORLDS = (
    World(
        "densest",
        SimulationOptions(n_sessions=100_000, n_queries=20, docs_per_query=15, query_exponent=0.0),
        (Fitting(aim=DENSE_AIM),),
    ),
    World("dense", DENSE),
    World("dense, high click rate", replace(DENSE, **HIGH_CLICKS)),
    World("dense, low click rate", replace(DENSE, **LOW_CLICKS)),
    World("dense, sticky", replace(DENSE, **STICKY)),
    World("dense, confounded", replace(DENSE, **CONFOUNDED)),
    World("dense, confounded, 5 % random", replace(DENSE, **CONFOUNDED, **RANDOMIZED)),
    World("sparse", SPARSE, ASKED_OF_SPARSE),
    World("sparsest", SPARSEST, ASKED_OF_SPARSE),
    World("sparse, short log", replace(SPARSE, n_sessions=20_000, n_queries=10_000), ASKED_OF_SPARSE),
    World("sparse, high click rate", replace(SPARSE, **HIGH_CLICKS), ASKED_OF_SPARSE),
    World("sparse, low click rate", replace(SPARSE, **LOW_CLICKS), ASKED_OF_SPARSE),
    World("sparse, sticky", replace(SPARSE, **STICKY), ASKED_OF_SPARSE),
    World("sparse, confounded", replace(SPARSE, **CONFOUNDED), ASKED_OF_SPARSE),
    World("sparse, confounded, 5 % random", replace(SPARSE, **CONFOUNDED, **RANDOMIZED), ASKED_OF_SPARSE),
    World("50 positions, dense", replace(DENSE, n_positions=50, docs_per_query=60, n_queries=20)),
    World(
        "50 positions, sparse",
        replace(SPARSE, n_positions=50, docs_per_query=60, n_sessions=40_000, n_queries=20_000),
        ASKED_OF_SPARSE,
    ),
    World("UBM, dense", replace(DENSE, model="ubm"), (UBM,)),
    World("UBM, sparse", replace(SPARSE, model="ubm"), (replace(UBM, aim=SPARSE_AIM),)),
    World("UBM, sparse, longer log", replace(LONGER, model="ubm"), (replace(UBM, aim=SPARSE_AIM),)),
    World(
        "uneven readiness",
        replace(DENSE, **UNEVEN_READINESS, n_sessions=100_000),
        (Fitting("PBM"), replace(UBM, label="UBM")),
    ),
    World("strongly re-ranked, dense", replace(DENSE, **RERANKED_STRONGLY), BY_DAY),
    World("re-ranked, sparse", replace(SPARSE, **RERANKED, n_queries=5_000), BY_DAY_SPARSE),
    World("strongly re-ranked, sparse", replace(SPARSE, **RERANKED_STRONGLY, n_queries=5_000), BY_DAY_SPARSE),
    World("personalised, dense", replace(DENSE, **PERSONALISED, n_sessions=60_000), BY_SEGMENT),
    World("personalised, sparse", replace(SPARSE, **PERSONALISED), BY_SEGMENT),
)
