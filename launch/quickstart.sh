#!/usr/bin/env bash
# From a machine with Python >= 3.11 to a trained model and its pictures: launch/quickstart.sh [FOLDER]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" ""
workdir=${1:-runs/digits}
# Two virtual devices of a CPU share a batch: faster than one (docs/training.md, "How fast it trains").
[ "$(getconf _NPROCESSORS_ONLN)" -lt 2 ] || export JAX_NUM_CPU_DEVICES=${JAX_NUM_CPU_DEVICES:-2}
.venv/bin/python -m posattn_jax.main --config=configs/digits.py --workdir="$workdir"
echo "pictures in $workdir/figures"
