"""The words among which options choose, and defaults, apart from what they mean: the command line starts at once.

A plug-in is a class in a file of its own and a line in a table at the end; it is imported when it is used.
"""

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

# --- plug-ins: what help and options call each, in the order of help, and its class ------------------------------

MODELS = {
    "pbm": "posbias.core.models.pbm:PositionBasedModel",
    "ubm": "posbias.core.models.ubm:UserBrowsingModel",
}
"""Click models that have a propensity by cell."""

CLICK_MODELS = {
    **MODELS,
    "tpbm": "posbias.core.models.tpbm:TrustBiasModel",
    "gctr": "posbias.core.models.click_rate:GlobalCTRModel",
    "rctr": "posbias.core.models.click_rate:RankCTRModel",
    "dctr": "posbias.core.models.click_rate:DocumentCTRModel",
    "rdctr": "posbias.core.models.click_rate:RankDocumentCTRModel",
    "cm": "posbias.core.models.cm:CascadeOfOneClickModel",
    "dcm": "posbias.core.models.dcm:DependentClickModel",
    "ccm": "posbias.core.models.ccm:ClickChainModel",
    "dbn": "posbias.core.models.dbn:DynamicBayesianNetworkModel",
    "sdbn": "posbias.core.models.sdbn:SimplifiedDBNModel",
}
"""All click models."""

ESTIMATORS = {
    "conditional": "posbias.core.estimators.conditional:ConditionalEstimator",
    "joint": "posbias.core.estimators.joint:JointEstimator",
    "allpairs": "posbias.core.estimators.allpairs:AllPairsEstimator",
    "adjacent-chain": "posbias.core.estimators.adjacent_chain:AdjacentChainEstimator",
    "randomized": "posbias.core.estimators.randomized:RandomizedEstimator",
    "ctr": "posbias.core.estimators.ctr:ClickRateEstimator",
}
"""Ways to estimate from counts."""

METHODS_OF_ROWS = {
    "features": "posbias.core.estimators.features:FeaturesMethod",
    "regression-em": "posbias.core.estimators.regression_em:RegressionEMMethod",
}
"""Ways to estimate from rows with features."""

SHAPES = {
    "monotone": "posbias.core.shapes.monotone:MonotoneShape",
    "power": "posbias.core.shapes.power:PowerShape",
    "smooth": "posbias.core.shapes.smooth:SmoothShape",
}
"""Shapes of the propensity curve beside `FREE`."""

LAYOUTS = {
    "pointwise": "posbias.core.training.layouts.pointwise:PointwiseLayout",
    "clicked-group": "posbias.core.training.layouts.clicked_groups:ClickedGroupLayout",
    "session": "posbias.core.training.layouts.session:SessionLayout",
    "pairs": "posbias.core.training.layouts.preferences:PairsLayout",
    "judgments": "posbias.core.training.layouts.judgments:JudgmentsLayout",
}
"""Rows of training files."""

LEARNERS = {
    "pbm": "posbias.core.learners.methods.trees:PBMLearner",
    "naive": "posbias.core.learners.methods.trees:NaiveLearner",
    "position-feature": "posbias.core.learners.methods.trees:PositionFeatureLearner",
    "logistic": "posbias.core.learners.methods.logistic:LogisticLearner",
    "lambdarank": "posbias.core.learners.methods.trees:LambdaRankLearner",
    "ipw-arp": "posbias.core.learners.methods.listwise:IPWAverageRankLearner",
    "ipw-dcg": "posbias.core.learners.methods.listwise:IPWDiscountedGainLearner",
    "dla": "posbias.core.learners.methods.listwise:DualLearner",
    "single-tower": "posbias.core.learners.methods.networks:SingleTowerLearner",
    "pal-product": "posbias.core.learners.methods.networks:PALProductLearner",
    "pal-sum": "posbias.core.learners.methods.networks:PALSumLearner",
    "factors": "posbias.core.learners.methods.factors:FactorsLearner",
    "gbrank": "posbias.core.learners.methods.gbrank:GBRankLearner",
    "mf": "posbias.core.learners.methods.factors:MFLearner",
    "propensity-mf": "posbias.core.learners.methods.factors:PropensityMFLearner",
    "cause": "posbias.core.learners.methods.factors:CausELearner",
    "regression-em": "posbias.core.learners.methods.trees:RegressionEMLearner",
}
"""Ways to learn a ranker."""

FORMATS = {
    "parquet": "posbias.io.formats.plain_tables:ParquetFormat",
    "csv": "posbias.io.formats.plain_tables:CsvFormat",
    "lightgbm": "posbias.io.formats.lightgbm_files:LightGBMFormat",
    "xgboost": "posbias.io.formats.xgboost_files:XGBoostFormat",
    "catboost": "posbias.io.formats.catboost_files:CatBoostFormat",
    "ranklib": "posbias.io.formats.judgment_lists:RankLibFormat",
    "qrels": "posbias.io.formats.judgment_lists:QrelsFormat",
    "opensearch": "posbias.io.formats.judgment_lists:OpenSearchFormat",
    "elasticsearch": "posbias.io.formats.judgment_lists:ElasticsearchFormat",
    "quepid": "posbias.io.formats.judgment_lists:QuepidFormat",
}
"""Formats of training files."""

FORMS = {
    "ubi": "posbias.io.forms.ubi:Ubi",
    "elasticsearch": "posbias.io.forms.elasticsearch:Elasticsearch",
    "metarank": "posbias.io.forms.metarank:Metarank",
    "yandex": "posbias.io.forms.yandex:Yandex",
}
"""Raw files of known sources."""
