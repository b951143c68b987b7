#!/usr/bin/env bash
# Checks and times attention on one GPU, in under 9 minutes: launch/gpu_check.sh [--minutes=8] [--quick] [--only=2d64]
# Needs no .venv: PYTHON (python3), with jax[cuda12] or jax[cuda13] >= 0.10.2, flax, jaxtyping, absl-py and numpy installed,
# and with PyTorch where FlexAttention is to be compared. Results are in benchmarks/results/DEVICE/, and a table of them
# on screen; called again it goes on where it stopped. --quick runs tiny shapes, on a CPU too; --help tells more.
# Exit codes: 0 done or out of time, 1 a layout disagrees with float64, 2 wrong input or no GPU, 130 stopped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
started=$(date +%s)
if ! command -v "$python" >/dev/null; then
    echo "gpu_check.sh: no $python: set PYTHON=/path/to/python" >&2
    exit 2
fi
missing=$("$python" -c '
import importlib.util, sys
sys.stdout.write(" ".join(name for name in ("jax", "flax", "jaxtyping", "absl", "numpy") if not importlib.util.find_spec(name)))')
if [ -n "$missing" ]; then
    echo "gpu_check.sh: $python has no $missing: pip install 'jax[cuda12]' flax jaxtyping absl-py numpy" >&2
    exit 2
fi

export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
export XLA_PYTHON_CLIENT_PREALLOCATE=false # PyTorch needs memory too
unset JAX_PLATFORMS # the float64 reference runs on the CPU beside the GPU

# A program that hangs or crashes ends its process; the next one goes on without it.
for ((attempt = 0; attempt < 8; attempt++)); do
    code=0
    "$python" -m benchmarks.gpu.check --started="$started" "$@" || code=$?
    case $code in
        75 | 132 | 133 | 134 | 135 | 136 | 137 | 139) echo "gpu_check.sh: a process ended with exit code $code: going on" >&2 ;;
        *) break ;;
    esac
done
exit "$code"
