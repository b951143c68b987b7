# Sourced by gpu_check.sh and tpu_check.sh, which set `platform` (gpu, tpu) and `jax`, what to install: runs the check
# again where a program has ended its process, until all is done or the time is spent.
set -euo pipefail
name=$(basename "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
started=$(date +%s)
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
unset JAX_PLATFORMS # the float64 reference runs on the CPU beside the device

# A program that hangs or crashes ends its process; the next one goes on without it.
for ((attempt = 0; attempt < 8; attempt++)); do
    code=0
    "$python" -m benchmarks.device.check --platform="$platform" --started="$started" "$@" || code=$?
    case $code in
        75 | 132 | 133 | 134 | 135 | 136 | 137 | 139) echo "$name: a process ended with exit code $code: going on" >&2 ;;
        *) break ;;
    esac
done
exit "$code"
