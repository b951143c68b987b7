#!/usr/bin/env bash
# Builds dist/*.tar.gz and from it dist/*.whl, installs the latter into a fresh environment, and trains digits in an empty
# folder: launch/package.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" test
.venv/bin/python -m build --outdir dist
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
.venv/bin/python -m venv "$scratch/venv"
"$scratch/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint launch/constraints.txt "$(ls -t dist/*.whl | head -n 1)[train]"
unset PYTHONPATH
cd "$scratch"
venv/bin/posattn --config=configs/digits.py:tiny --workdir=run
