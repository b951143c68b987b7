#!/usr/bin/env bash
# A run as a SLURM job, or several jobs for one sweep. From the repository's folder, with .venv made beforehand:
#   sbatch launch/slurm.sh --config=configs/digits.py --workdir=runs/digits
#   sbatch --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 launch/slurm.sh --config=... --workdir=...
#       one run, a process a GPU: JAX gives each process the GPU of its number on the node
#   sbatch --array=0-3 --gpus-per-node=1 launch/slurm.sh --mode=sweep --config=... --workdir=...
#       one sweep, whose runs four jobs take from each other
# Before a time limit, and when another job wants its place, a run saves and ends with 143; the job is then queued again
# and goes on from there. So it does, up to RESTARTS (3) times, where a process dies of a signal: the others have lost it,
# and end. `scancel JOB` ends it for good; the same sbatch command goes on even then.
#SBATCH --job-name=posattn_jax
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@120
set -euo pipefail

complain() {
    echo "slurm.sh: $1" >&2
    exit 2
}

if [ -z "${SLURM_JOB_ID-}" ]; then complain "is started by sbatch: sbatch launch/slurm.sh $*"; fi
if [ ! -x .venv/bin/python ]; then complain "no .venv in $PWD: submit from the repository's folder, set up before"; fi
case " $* " in *" --mode=sweep "* | *" --mode sweep "*) is_sweep=1 ;; *) is_sweep= ;; esac
# In an array the last job has the array's number: alone, that names all of them.
job=$SLURM_JOB_ID
if [ -n "${SLURM_ARRAY_JOB_ID-}" ]; then
    job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    if [ -z "$is_sweep" ]; then complain "--array is for --mode=sweep: the jobs would all be the same run"; fi
fi
if [ -n "$is_sweep" ] && [ "${SLURM_NTASKS:-1}" != 1 ]; then
    complain "a sweep's runs have one process each: give --array=0-$((SLURM_NTASKS - 1)) instead of $SLURM_NTASKS tasks"
fi

export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} # srun no longer takes over sbatch's
exit_code=0
# --kill-on-bad-exit=0: a process that has saved and ended is no reason to kill one that is still saving.
srun --kill-on-bad-exit=0 .venv/bin/python -m posattn_jax.main "$@" || exit_code=$?
case $exit_code in
    143) go_on=1 ;; # has saved
    129 | 13[1-9] | 14?) go_on=$((${SLURM_RESTART_COUNT:-0} < ${RESTARTS:-3})) ;;
    *) go_on=0 ;; # done, failed, or stopped by SIGINT
esac
# Otherwise it is SLURM that ends the job, for good or to queue it again.
if [ "$go_on" = 1 ] && [ "$(squeue --noheader --jobs="$job" --format=%T)" = RUNNING ]; then
    scontrol requeue "$job"
fi
exit "$exit_code"
