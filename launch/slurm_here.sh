#!/usr/bin/env bash
# A SLURM of one node on this Debian or Ubuntu machine, to try launch/slurm.sh on before a cluster is at hand; as root:
#   launch/slurm_here.sh          installs what is missing, starts the daemons, waits until the node is idle
#   launch/slurm_here.sh --stop   stops the daemons, and with them every job
# Two partitions: "main", whose jobs are requeued when "urgent" wants their place, 60 s after SIGTERM. Jobs share the
# cores (two a core), need neither cgroups nor systemd, and run as nice as this script: nice -n 5 launch/slurm_here.sh.
set -euo pipefail

marker="# Written by launch/slurm_here.sh"
conf=/etc/slurm/slurm.conf
state=/var/lib/slurm_here

complain() {
    echo "slurm_here.sh: $1" >&2
    exit 2
}

pid_of() { # nothing where the daemon does not run: its number may be another program's by now
    local pid
    pid=$(cat "$1" 2>/dev/null) && [ "$(ps -o comm= -p "${pid:-0}")" = "$(basename "$1" .pid)" ] && echo "$pid"
}

stop() {
    local file pid
    for file in $state/slurmd.pid $state/slurmctld.pid /run/munge/munged.pid; do
        pid=$(pid_of "$file") || continue
        kill "$pid"
        while kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
    done
}

write_conf() {
    local node memory
    node=$(hostname -s)
    getent hosts "$node" >/dev/null || complain "no address is known of $node: add \"127.0.0.1 $node\" to /etc/hosts"
    memory=$(awk '/^MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)
    cat >$conf <<CONF
$marker
ClusterName=here
SlurmctldHost=$node(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5 # what was requeued starts after as many seconds, not 120
StateSaveLocation=$state/slurmctld
SlurmdSpoolDir=$state/slurmd
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/slurmd.pid
SlurmctldLogFile=$state/slurmctld.log
SlurmdLogFile=$state/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=1024
JobRequeue=1
KillWait=30
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PropagatePrioProcess=0
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$state/jobs.txt
SlurmdParameters=config_overrides # the node has as many CPUs as is said, two a core
NodeName=$node NodeAddr=127.0.0.1 CPUs=$((2 * $(nproc))) RealMemory=$memory State=UNKNOWN
PartitionName=main Nodes=$node Default=YES State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=$node State=UP PriorityTier=2
CONF
}

[ "$(id -u)" = 0 ] || complain "to be run as root"
if [ -e $conf ] && [ "$(head -n 1 $conf)" != "$marker" ]; then
    complain "$conf is another SLURM's, which this machine has already"
fi
case $* in
    "") ;;
    --stop)
        squeue --noheader --format=%A 2>/dev/null | xargs --no-run-if-empty scancel || true
        while squeue --noheader 2>/dev/null | grep --quiet .; do sleep 1; done # they are saving
        stop
        exit
        ;;
    *) complain "$*: expected nothing, or --stop" ;;
esac

for program in munged sbatch slurmctld slurmd; do
    if command -v $program >/dev/null; then continue; fi
    apt-get update --quiet
    DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes --no-install-recommends munge slurm-wlm
    break
done
if ! { pid_of /run/munge/munged.pid && pid_of $state/slurmctld.pid && pid_of $state/slurmd.pid; } >/dev/null; then
    stop
    mkdir -p $state/slurmctld $state/slurmd
    touch $state/jobs.txt
    write_conf
    install -d -o munge -g munge /run/munge
    runuser -u munge -- munged
    slurmctld
    slurmd
fi
for _ in $(seq 60); do
    if sinfo --noheader --partition=main --format=%T 2>/dev/null | grep --quiet --extended-regexp "^(idle|mixed|allocated)$"; then
        sinfo
        exit
    fi
    sleep 1
done
complain "the node does not answer: see $state/slurmctld.log and slurmd.log"
