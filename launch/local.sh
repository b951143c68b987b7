#!/usr/bin/env bash
# One run by N processes of this machine: launch/local.sh N --config=configs/digits.py --workdir=runs/digits
# When one of them dies the others are ended and all are started again, from the last checkpoint, RESTARTS (3) times.
# Paths are those from the project's folder. With NVIDIA GPUs each process has one to itself; on CPUs
# JAX_NUM_CPU_DEVICES=2 gives each two virtual devices.
set -uo pipefail
if ! [[ ${1:-} =~ ^[1-9][0-9]*$ ]]; then
    echo "usage: launch/local.sh NUMBER_OF_PROCESSES --config=FILE --workdir=FOLDER ..." >&2
    exit 2
fi
count=$1
shift
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" train || exit

processes=()
stopped=""
tell_all() { [ ${#processes[@]} -eq 0 ] || kill -s "$1" "${processes[@]}" 2>/dev/null; }
trap 'stopped=yes; tell_all TERM' INT TERM

for ((attempt = 0; ; attempt++)); do
    port=$(.venv/bin/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    export POSATTN_COORDINATOR=127.0.0.1:$port POSATTN_PROCESS_COUNT=$count
    processes=()
    for ((i = 0; i < count; i++)); do
        if [ -z "${CUDA_VISIBLE_DEVICES:-}" ] && command -v nvidia-smi >/dev/null; then
            POSATTN_PROCESS_INDEX=$i CUDA_VISIBLE_DEVICES=$i .venv/bin/python -m posattn_jax.main "$@" &
        else
            POSATTN_PROCESS_INDEX=$i .venv/bin/python -m posattn_jax.main "$@" &
        fi
        processes+=($!)
    done
    # The first that fails decides how the job has ended; the others have lost it, and are ended.
    code=0
    while true; do
        wait -n # until a process ends, or a signal comes
        ended=$?
        [ "$ended" -ne 127 ] || break # no process is left
        if [ "$ended" -ne 0 ] && [ "$code" -eq 0 ]; then
            code=$ended
            [ -n "$stopped" ] || tell_all KILL
        fi
    done
    # 2: wrong input; 130, 143: asked to stop, and saved. Any other end is worth another try.
    if [ "$code" -eq 0 ] || [ "$code" -eq 2 ] || [ -n "$stopped" ] || [ "$attempt" -ge "${RESTARTS:-3}" ]; then
        exit "$code"
    fi
    echo "launch/local.sh: a process ended with exit code $code: starting again ($((attempt + 1)) of ${RESTARTS:-3})" >&2
done
