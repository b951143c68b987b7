#!/usr/bin/env bash
# Checks and times attention on one TPU, such as Colab's or that of a TPU VM, in under 9 minutes:
# launch/tpu_check.sh [--minutes=8] [--quick] [--only=2d64]
# Needs no .venv: PYTHON (python3), with jax[tpu], flax, jaxtyping, absl-py and numpy installed. No other process may have
# the TPU. Results are in benchmarks/results/DEVICE/, and a table of them on screen; called again it goes on where it
# stopped. --quick runs tiny shapes, on a CPU too; --help tells more.
# Exit codes: 0 done or out of time, 1 an implementation disagrees with float64, 2 wrong input or no TPU, 130 stopped.
jax='jax[tpu]'
source "$(dirname "${BASH_SOURCE[0]}")/device_check.sh"

# A program that hangs or crashes ends its process; the next one goes on without it.
started=$(date +%s)
for ((attempt = 0; attempt < 8; attempt++)); do
    code=0
    "$python" -m benchmarks.device.check --started="$started" "$@" || code=$?
    case $code in
        75 | 132 | 133 | 134 | 135 | 136 | 137 | 139) echo "$name: a process ended with exit code $code: going on" >&2 ;;
        *) break ;;
    esac
done
exit "$code"
