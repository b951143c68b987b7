#!/usr/bin/env bash
# Works off a list of sweeps for some minutes, on any machine, and joins what came of it with the committed results:
#   launch/gpu_slice.sh --minutes=11 --out=FOLDER [--data=FOLDER] LIST    launch/gpu_queue.txt is such a list
#   launch/gpu_slice.sh --take=FOLDER                                     here, or on another machine
# Paths are those from the project's folder. Uses .venv, which it makes if it is missing; PYTHON=/path/to/python3 uses
# what that has. --help tells more.
set -euo pipefail
if [ -z "${PYTHON:-}" ]; then
    source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" train
    PYTHON=.venv/bin/python
else
    cd "$(dirname "${BASH_SOURCE[0]}")/.."
    source launch/python.sh
fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
exec "$PYTHON" -m posattn_jax.sweeps.slices "$@"
