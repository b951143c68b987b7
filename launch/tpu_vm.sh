#!/usr/bin/env bash
# A run on all hosts of a TPU slice, which is made where it is missing, and again whenever it was preempted:
#   TPU=posattn ZONE=us-central2-b TYPE=v4-32 SHARE=10.0.0.2:/share \
#       launch/tpu_vm.sh [--dry_run] --config=configs/cifar2d_span.py --config.mesh.data=16 \
#       --config.data.dir=/mnt/share/data --workdir=/mnt/share/runs/cifar
# TPU, ZONE, TYPE  the slice's name, zone and accelerator type
# SHARE            NFS, such as Filestore's, mounted on every host as /mnt/share: they need one run folder and the data
# VERSION          the hosts' software, tpu-ubuntu2204-base by default
# CREATE           further options for making it, --spot by default
# --dry_run prints the commands. The hosts get the last commit, and Python 3.12 from uv. The slice is left to you in the
# end: gcloud compute tpus tpu-vm delete NAME
set -euo pipefail

usage() {
    echo "tpu_vm.sh: $1: see the first lines of launch/tpu_vm.sh" >&2
    exit 2
}

dry_run=
if [ "${1-}" = --dry_run ]; then
    dry_run=1
    shift
fi
for name in TPU ZONE TYPE SHARE; do
    if [ -z "${!name-}" ]; then usage "$name is not set"; fi
done
if [ $# = 0 ]; then usage "no --config and no --workdir"; fi
read -r -a create <<<"${CREATE---spot}"
pause=${PAUSE:-60} # seconds until what happened to a slice is known
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tpu() { # VERB [ARGUMENT ...]
    local words=(gcloud compute tpus tpu-vm "$1" "${@:2}" "--zone=$ZONE")
    if [ -n "$dry_run" ]; then echo "${words[*]@Q}"; else "${words[@]}"; fi
}

state() {
    if [ -n "$dry_run" ]; then return; fi
    tpu describe "$TPU" --format="value(state)" 2>/dev/null || true # there is none
}

start() {
    local archive=$1 command
    command="set -e
mkdir -p posattn_jax && tar -xzf posattn_jax.tar.gz -C posattn_jax && cd posattn_jax
if ! mountpoint -q /mnt/share; then
    sudo apt-get install -q -y nfs-common
    sudo mkdir -p /mnt/share
    sudo mount ${SHARE@Q} /mnt/share
fi
python3 -m pip install --quiet --user uv
python3 -m uv python install --quiet 3.12
export PYTHON=\$(python3 -m uv python find 3.12)
source launch/setup.sh train,tpu
exec .venv/bin/python -m posattn_jax.main --distributed ${*:2}"
    tpu scp "$archive" "$TPU:posattn_jax.tar.gz" --worker=all && tpu ssh "$TPU" --worker=all --command="$command"
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
git archive --format=tar.gz --output="$folder/posattn_jax.tar.gz" HEAD
while true; do
    case $(state) in
        READY) ;;
        CREATING | STARTING | RESTARTING | REPAIRING)
            sleep "$pause"
            continue
            ;;
        "")
            until tpu create "$TPU" "--accelerator-type=$TYPE" "--version=${VERSION:-tpu-ubuntu2204-base}" "${create[@]}"; do
                echo "tpu_vm.sh: $TPU was not made; again in $pause s" >&2
                sleep "$pause"
            done
            ;;
        *) # preempted, stopped
            tpu delete "$TPU" --quiet
            continue
            ;;
    esac
    exit_code=0
    start "$folder/posattn_jax.tar.gz" "${@@Q}" || exit_code=$?
    if [ "$exit_code" = 0 ]; then exit; fi
    sleep "$pause"
    if [ "$(state)" = READY ]; then exit "$exit_code"; fi # the run failed, not the slice
done
