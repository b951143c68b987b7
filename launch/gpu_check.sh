#!/usr/bin/env bash
# Checks and times attention on one GPU, in one process, in about 6 minutes: launch/gpu_check.sh [--minutes=6] [--quick]
# Needs no .venv: PYTHON (python3), with jax[cuda12] or jax[cuda13] >= 0.7.2, flax, jaxtyping, absl-py and numpy installed,
# and with PyTorch where FlexAttention is to be compared. Results are in benchmarks/results/DEVICE/kernels.json, and
# tables of them on screen. --quick runs tiny shapes, on a CPU too (with pytest); --help tells more.
# Exit codes: 0 done or out of time, 1 a problem disagrees with the reference, 2 wrong input or no GPU, 130 stopped.
jax='jax[cuda12]'
source "$(dirname "${BASH_SOURCE[0]}")/device_check.sh"
exec "$python" -m benchmarks.device.gpu_kernels "$@"
