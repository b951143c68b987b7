#!/usr/bin/env bash
# Works off a list of sweeps for some minutes, on any machine, and joins what came of it with the committed results:
#   launch/gpu_slice.sh --minutes=11 --out=FOLDER [--data=FOLDER] LIST    launch/gpu_queue.txt is such a list
#   launch/gpu_slice.sh --take=FOLDER                                     here, or on another machine
#   launch/gpu_slice.sh --check LIST                                      says which sweeps could not start
# Paths are those from the project's folder. Uses .venv, which it makes if it is missing; PYTHON=/path/to/python3 uses
# what that has. --parcel=FOLDER, of launch/gpu_parcel.sh, needs no network: its packages are added to those of PYTHON
# (python3), and its data are those of --data. --help tells more.
set -euo pipefail
parcel=
help=
options=()
for option in "$@"; do
    case $option in
        --parcel=*) parcel=${option#*=} ;;
        -h | --help) help=yes options+=("$option") ;;
        *) options+=("$option") ;;
    esac
done
if [ -z "${PYTHON:-}$parcel" ]; then
    source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" train
    PYTHON=.venv/bin/python
else
    cd "$(dirname "${BASH_SOURCE[0]}")/.."
    source launch/python.sh
    PYTHON=${PYTHON:-python3}
fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
if [ -n "$parcel" ] && [ -z "$help" ]; then
    if ! compgen -G "$parcel/*/pieces.json" >/dev/null; then
        echo "gpu_slice.sh: --parcel=$parcel: expected a folder of launch/gpu_parcel.sh, with 0/pieces.json" >&2
        exit 2
    fi
    rm -rf build/unpacked
    if compgen -G "$parcel/*/wheels/*.whl" >/dev/null; then
        "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target build/unpacked/packages \
            "$parcel"/*/wheels/*.whl
    fi
    export PYTHONPATH=$PYTHONPATH:$PWD/build/unpacked/packages
    "$PYTHON" -m posattn_jax.sweeps.parcel --unpack="$parcel" --out=build/unpacked/data
    options+=(--data=build/unpacked/data "--spent=$SECONDS")
fi
exec "$PYTHON" -m posattn_jax.sweeps.slices "${options[@]}"
