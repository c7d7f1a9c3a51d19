#!/usr/bin/env bash
# LightGBM 4.7.0: "Support for Position Bias Treatment" (Advanced Topics) says that positions can be a column of the data
# file, to be named by the parameter position_column. There is no such parameter. A job that names its columns in the
# style of label_column and group_column trains without positions, and the column stays what the columns of a file are: a
# feature. It is the best one, as clicks follow the position, so the ranker learns the bias that it was to be corrected
# for. One line says "Unknown parameter: position_column", among the other output of a training, and none with verbose=-1;
# validation on logged clicks looks excellent. The file beside it, log.csv.position, of which the page speaks first, works.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check lightgbm==4.7.0 numpy==2.4.6 scipy==1.17.1
cd "$folder"
cat > try.py <<'PYTHON'
from pathlib import Path

import lightgbm as lgb
import numpy as np

rng = np.random.default_rng(1)
pages, length = 400, 10
features = rng.random((pages * length, 2))
position = np.tile(np.arange(1, length + 1), pages)
clicks = (rng.random(pages * length) < features[:, 0] / position).astype(int)
page = np.repeat(np.arange(pages), length)
rows = zip(clicks, page, position, *features.T)
text = "click,page,position,match,noise\n" + "".join(f"{c},{p},{at},{m:.6f},{n:.6f}\n" for c, p, at, m, n in rows)
names = {"header": True, "label_column": "name:click", "group_column": "name:page"}
options = {"objective": "lambdarank", "num_threads": 1, "deterministic": True}
said = []


class Keep:
    def info(self, message):
        said.append(message)

    warning = info


lgb.register_logger(Keep())


def trained(name, **given):
    Path(name).write_text(text)
    said.clear()
    given = {**options, **names, **given}
    data = lgb.Dataset(name, params=given)
    booster = lgb.train(given, data, 20)
    shares = dict(zip(booster.feature_name(), booster.feature_importance("gain") / booster.feature_importance("gain").sum()))
    unknown = {message for message in said if "position_column" in message}
    print({feature: round(float(share), 3) for feature, share in shares.items()}, "positions known:", end=" ")
    print(data.get_position() is not None, "said:", unknown or "nothing")
    return shares, data.get_position(), unknown


shares, known, unknown = trained("log.csv", position_column="name:position")
assert known is None and shares["position"] == max(shares.values()) and len(unknown) == 1
shares, known, unknown = trained("quiet.csv", position_column="name:position", verbose=-1)
assert known is None and shares["position"] == max(shares.values()) and not unknown
Path("beside.csv.position").write_text("".join(f"{at}\n" for at in position))
shares, known, unknown = trained("beside.csv", ignore_column="name:position", verbose=-1)
assert known is not None and shares["position"] == 0 and shares["match"] == max(shares.values())
PYTHON
venv/bin/python try.py
