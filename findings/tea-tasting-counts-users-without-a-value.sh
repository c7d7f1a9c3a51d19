#!/usr/bin/env bash
# tea-tasting 1.14.0: a user without a value (null in Polars or DuckDB, NaN in pandas) is left out of the mean and of the
# variance of a metric, and is counted in the number of users by which the variance is divided. So a measure that not all
# users have (rank of the first click, time to it, CTR of who saw a result) has the same mean as without those users and
# an interval that is too narrow: with 3 of 4 missing half as wide as it should be. Under no difference at all the share
# of p-values below .05 is about a third. In RatioOfMeans a null in the numerator still leaves the row's denominator in
# (the mean of each is of other users), so there the ratio changes too. In Polars, NaN gives a result of NaN, null this.
# No docstring of Mean says that the column must be complete; MannWhitneyU and Bootstrap beside it have a nan_policy.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    tea-tasting==1.14.0 polars==2.1.0 pandas==3.1.1 pyarrow==26.0.1 narwhals==2.29.0 ibis-framework==12.0.0 \
    numpy==2.4.6 scipy==1.17.1
cd "$folder"
cat > try.py <<'PYTHON'
import numpy as np
import polars as pl
import tea_tasting as tt

rng = np.random.default_rng(1)
users = 4000


def log():
    clicked = rng.random(users) < 0.25
    return pl.DataFrame({
        "variant": rng.integers(0, 2, users),
        "first_rank": np.where(clicked, rng.geometric(0.4, users), np.nan),
    }).with_columns(pl.col("first_rank").fill_nan(None))


def analysed(data):
    return tt.Experiment(rank=tt.Mean("first_rank")).analyze(data)["rank"]


def width(result):
    return result.effect_size_ci_upper - result.effect_size_ci_lower


data = log()
whole, complete, pandas = analysed(data), analysed(data.drop_nulls()), analysed(data.to_pandas())
for name, result in (("with nulls", whole), ("pandas, NaN", pandas), ("rows with a click only", complete)):
    print(f"{name:23} means {result.control:.4f} {result.treatment:.4f}, width {width(result):.4f}, p {result.pvalue:.4f}")
assert whole.control == complete.control and whole.treatment == complete.treatment
assert abs(width(whole) / width(complete) - 0.5) < 0.02 and abs(width(pandas) - width(whole)) < 1e-9
experiments = [log() for _ in range(200)]
false = np.mean([analysed(data).pvalue < 0.05 for data in experiments])
right = np.mean([analysed(data.drop_nulls()).pvalue < 0.05 for data in experiments])
print(f"200 experiments without a difference: p < .05 in {false:.1%} with nulls, in {right:.1%} without those rows")
assert false > 0.2 and right < 0.1
PYTHON
venv/bin/python try.py
