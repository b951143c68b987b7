# Sourced by gpu_check.sh and tpu_check.sh, which set `jax`, what to install: finds the Python, and goes to the checkout.
set -euo pipefail
name=$(basename "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
    echo "$name: no $python: set PYTHON=/path/to/python" >&2
    exit 2
fi
missing=$("$python" -c '
import importlib.util, sys
sys.stdout.write(" ".join(name for name in ("jax", "flax", "jaxtyping", "absl", "numpy") if not importlib.util.find_spec(name)))')
if [ -n "$missing" ]; then
    echo "$name: $python has no $missing: pip install '$jax' flax jaxtyping absl-py numpy" >&2
    exit 2
fi

export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
export XLA_PYTHON_CLIENT_PREALLOCATE=false # PyTorch needs memory too
unset JAX_PLATFORMS # the reference runs on the CPU beside the device
