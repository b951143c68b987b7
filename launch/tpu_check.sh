#!/usr/bin/env bash
# The same on one TPU, such as Colab's or that of a TPU VM: launch/tpu_check.sh [--minutes=8] [--quick] [--only=2d64]
# Needs no .venv: PYTHON (python3), with jax[tpu], flax, jaxtyping, absl-py and numpy installed. No other process may have
# the TPU. Results, options and exit codes are those of launch/gpu_check.sh.
platform=tpu jax='jax[tpu]'
source "$(dirname "${BASH_SOURCE[0]}")/device_check.sh"
