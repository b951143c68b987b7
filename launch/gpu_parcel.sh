#!/usr/bin/env bash
# Packs what a GPU machine without a network needs for a list of sweeps, as folders of at most 60 MiB:
#   launch/gpu_parcel.sh --out=PARCEL [--data=FOLDER] LIST                 here
#   launch/gpu_slice.sh --parcel=PARCEL --minutes=11 --out=OUT LIST        there
# Nothing is packed if a sweep of the list could not start. --help tells more. Uses .venv, which it makes if it is missing.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" train
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
exec .venv/bin/python -m posattn_jax.sweeps.parcel "$@"
