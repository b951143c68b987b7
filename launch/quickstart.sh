#!/usr/bin/env bash
# From a machine with Python >= 3.11 to a trained model and its pictures: launch/quickstart.sh [FOLDER]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" train
workdir=${1:-runs/digits}
.venv/bin/python -m posattn_jax.main --config=configs/digits.py:short_span --workdir="$workdir"
echo "pictures in $workdir/figures"
