#!/usr/bin/env bash
# Checks and times attention on one GPU, in under 9 minutes: launch/gpu_check.sh [--minutes=8] [--quick] [--only=2d64]
# Needs no .venv: PYTHON (python3), with jax[cuda12] or jax[cuda13] >= 0.7.2, flax, jaxtyping, absl-py and numpy installed,
# and with PyTorch where FlexAttention is to be compared. Results are in benchmarks/results/DEVICE/, and a table of them
# on screen; called again it goes on where it stopped. --quick runs tiny shapes, on a CPU too; --help tells more.
# Exit codes: 0 done or out of time, 1 a layout disagrees with float64, 2 wrong input or no GPU, 130 stopped.
platform=gpu jax='jax[cuda12]'
source "$(dirname "${BASH_SOURCE[0]}")/device_check.sh"
