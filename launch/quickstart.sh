#!/usr/bin/env bash
# From a machine with Python >= 3.11 to a trained model with learned spans, and their picture: launch/quickstart.sh [FOLDER]
set -euo pipefail
if [ $# -gt 1 ] || [[ ${1:-} = -* ]]; then
    echo "$*: expected nothing, or the folder of the run: launch/quickstart.sh [FOLDER]" >&2
    exit 2
fi
if [ $# = 1 ] && [[ $1 != /* ]]; then set -- "$PWD/$1"; fi # before the folder is changed
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" train
workdir=${1:-runs/digits}
.venv/bin/python -m posattn_jax.main --config=configs/digits.py:short_span --workdir="$workdir"
echo "the spans, before and after: $workdir/figures/span_on_grid.png"
echo "what a query looks at: .venv/bin/posattn --mode=explain --workdir=$(printf %q "$workdir")"
