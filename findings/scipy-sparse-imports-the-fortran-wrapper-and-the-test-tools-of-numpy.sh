#!/usr/bin/env bash
# SciPy 1.17.1: "import scipy.sparse" (or special, linalg, optimize, stats) imports numpy.f2py, the program that wraps
# Fortran, and numpy.testing with unittest, which nothing of a sparse matrix needs. NumPy 2.4.6 loads neither by itself:
# it hands them out when they are first used. SciPy's copy of array_api_compat clones NumPy by asking it for each of its
# public names, which is such a first use. A command-line tool that reads one sparse matrix, and whatever imports
# scikit-learn or LightGBM, pays for it at each start; "import scipy" alone does not. It is found with -X importtime
# only, since a profile of one's own code begins after it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check scipy==1.17.1 numpy==2.4.6
cd "$folder"
cat > try.py <<'PYTHON'
import subprocess
import sys

unneeded = {"numpy.f2py", "numpy.testing", "unittest"}


def python(*arguments):
    return subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True)


for module in ("numpy", "scipy", "scipy.sparse", "scipy.special"):
    loaded = set(python("-c", f"import sys, {module}; print(*sys.modules)").stdout.split())
    print(f"import {module:13} {len(loaded)} modules, among them {sorted(unneeded & loaded)}")
    assert unneeded & loaded == (unneeded if "." in module else set())
lines = python("-X", "importtime", "-c", "import scipy.sparse").stderr.splitlines()[1:]
times = {name.strip(): int(total) for _, total, name in (line.rsplit("|", 2) for line in lines if line.count("|") == 2)}
for name in ("numpy.f2py", "numpy.testing", "scipy._lib.array_api_compat.numpy", "scipy.sparse"):
    print(f"{name:34} {times[name] / 1e3:5.0f} ms with all that it imports")
PYTHON
venv/bin/python try.py
