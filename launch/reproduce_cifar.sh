#!/usr/bin/env bash
# Alfons 2022 on CIFAR-10, seven treatments, in slices of time: the same command goes on until all runs are done.
#   launch/reproduce_cifar.sh --data=FOLDER [--minutes=25] [--variant=quick|half] [--workdir=runs/reproduce_cifar]
#                             [--seeds=9188,2755 --treatments=span_2d --workers=2 --config.FIELD=VALUE ...]
#   launch/reproduce_cifar.sh --data=FOLDER --slices=OUT [--minutes=25]    the paper's size, in slices on any machines:
#                             launch/gpu_slice.sh with launch/cifar_queue.txt; its --take=OUT brings them together
# FOLDER has CIFAR-10 as in docs/data.md. Without --variant: the paper's size, for a GPU. After every slice
# WORKDIR/report/ has a page of what is done, next to the paper's Tables 5 to 7.
# Exit codes: 0 all is done, 143 the time is up and the rest is to come, 130 stopped by Ctrl-C, others: a failure.
set -uo pipefail
data="" minutes=25 variant="" slices="" workdir="" rest=()
for argument in "$@"; do
    case $argument in
        --data=*) data=$(realpath -m "${argument#*=}") ;;
        --minutes=*) minutes=${argument#*=} ;;
        --variant=*) variant=${argument#*=} ;;
        --slices=*) slices=$(realpath -m "${argument#*=}") ;;
        --workdir=*) workdir=$(realpath -m "${argument#*=}") ;;
        *) rest+=("$argument") ;;
    esac
done
if [ -z "$data" ] || ! [[ $minutes =~ ^[0-9]+(\.[0-9]+)?$ && $minutes =~ [1-9] ]]; then
    sed -n '3,4s/^# *//p' "${BASH_SOURCE[0]}" >&2
    echo "--data is needed, and --minutes is a number above 0: \"$data\", \"$minutes\" are given" >&2
    exit 2
fi
if [ -n "$slices" ]; then
    if [ -n "$variant$workdir" ]; then
        echo "--slices: expected no --variant and no --workdir: launch/cifar_queue.txt has the paper's size" >&2
        exit 2
    fi
    # The list from the project's folder, which the launcher goes to.
    exec "$(dirname "${BASH_SOURCE[0]}")/gpu_slice.sh" --minutes="$minutes" --out="$slices" --data="$data" \
        launch/cifar_queue.txt ${rest[@]+"${rest[@]}"}
fi
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" train || exit
workdir=${workdir:-runs/reproduce_cifar}

# On a GPU one program trains all seeds of a treatment: one run's arrays are small for it.
if [ -n "${CUDA_VISIBLE_DEVICES-all}" ] && nvidia-smi -L 2>/dev/null | grep -q "^GPU "; then
    rest=(--vmap_seeds=5 ${rest[@]+"${rest[@]}"})
fi

code=0
timeout --foreground --preserve-status --signal=TERM "${minutes}m" \
    .venv/bin/python -m posattn_jax.main --mode=sweep --config="configs/cifar2d_span.py${variant:+:$variant}" \
    --workdir="$workdir" --config.data.dir="$data" ${rest[@]+"${rest[@]}"} || code=$?
if [ "$code" -eq 143 ]; then
    .venv/bin/python -m posattn_jax.main --mode=report --workdir="$workdir"
    echo "the time is up: the same command goes on" >&2
fi
exit "$code"
