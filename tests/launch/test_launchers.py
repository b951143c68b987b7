"""The launchers of clusters, with commands that only pretend; `test_slurm.py` has a real SLURM."""

import os
import pathlib
import shlex
import signal
import subprocess

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[2]


def make_commands(folder, **texts):
    """Shell scripts that note how they were called, and do what `texts` say."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        note = f"printf '%s\\0' {name} \"$@\" END >> {folder}/calls"
        path.write_text(f"#!/bin/bash\n{note}\n{text}\n")
        path.chmod(0o755)


def calls(folder):
    path = folder / "calls"
    text = path.read_text() if path.exists() else ""
    return [call.split("\0")[:-1] for call in text.split("END\0")[:-1]]


def run(script, folder, *arguments, cwd=ROOT, **environment):
    path = f"{folder}:{os.environ['PATH']}"
    command = [ROOT / "launch" / script, *arguments]
    environment = {"HOME": str(folder), "PATH": path, **environment}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("path", sorted((ROOT / "launch").glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_bash(path):
    subprocess.run(["bash", "-n", path], check=True)


@pytest.mark.parametrize(
    "script, arguments",
    [
        ("first_hour.sh", ("--help",)),
        ("first_hour.sh", ("one", "two")),
        ("quickstart.sh", ("--help",)),
        ("package.sh", ("--help",)),
        ("versions.sh", ("--all", "--quick")),
    ],
)
def test_an_option_that_a_script_does_not_have_is_refused_in_a_line(tmp_path, script, arguments):
    result = run(script, tmp_path, *arguments, cwd=tmp_path)
    assert (result.returncode, result.stderr.count("\n"), result.stdout) == (2, 1, "")
    assert " ".join(arguments) in result.stderr and not [*tmp_path.iterdir()]


@pytest.fixture
def heeded_ctrl_c():
    """Commands ignore Ctrl-C where the tests do, as in the background of a script."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded_ctrl_c")
def test_the_first_hour_ends_on_ctrl_c(tmp_path):
    """Also where the step that runs ends by itself, as pip does."""
    make_commands(tmp_path / "bin", python="kill -INT $PPID; exit 1")
    result = run("first_hour.sh", tmp_path, "a folder", cwd=tmp_path, PYTHON=str(tmp_path / "bin" / "python"))
    assert result.returncode == 130 and not result.stdout
    assert calls(tmp_path / "bin") == [["python", "-m", "venv", "venv"]]
    assert [path.name for path in (tmp_path / "a folder").iterdir()] == ["environment.txt"]


def test_the_first_hour_installs_nothing_without_an_environment(tmp_path):
    """Nor into the caller's own."""
    make_commands(tmp_path / "bin", python="exit 1", pip="")
    result = run("first_hour.sh", tmp_path / "bin", "a folder", cwd=tmp_path, PYTHON=str(tmp_path / "bin" / "python"))
    assert (result.returncode, result.stdout) == (1, "environment\t0 s\texit code 1\n")
    assert calls(tmp_path / "bin") == [["python", "-m", "venv", "venv"]]


@pytest.fixture
def cluster(tmp_path):
    """Runs `slurm.sh` as SLURM would, in a folder with .venv, its srun ending with `exit_code`."""
    commands = tmp_path / "commands"
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").touch(0o755)

    def slurm(*arguments, exit_code=0, state="RUNNING", **environment):
        make_commands(commands, srun=f"exit {exit_code}", squeue=f"echo {state}", scontrol="")
        result = run("slurm.sh", commands, *arguments, cwd=tmp_path, **{"SLURM_JOB_ID": "12"} | environment)
        return result, calls(commands)

    return slurm


@pytest.mark.parametrize(
    "exit_code, state, requeued",
    [
        (0, "RUNNING", False),
        (143, "RUNNING", True),
        (143, "COMPLETING", False),
        (1, "RUNNING", False),
        (130, "RUNNING", False),
        (134, "RUNNING", True),
    ],
    ids=["done", "time limit", "cancelled", "failed", "stopped", "lost a process"],
)
def test_slurm_queues_again_what_has_saved(cluster, exit_code, state, requeued):
    arguments = ("--config=a.py", "--config.data.dir=a folder")
    result, called = cluster(*arguments, exit_code=exit_code, state=state)
    assert result.returncode == exit_code
    assert called[0] == ["srun", "--kill-on-bad-exit=0", ".venv/bin/python", "-m", "posattn_jax.main", *arguments]
    assert (["scontrol", "requeue", "12"] in called) == requeued


def test_slurm_queues_again_one_job_of_an_array(cluster):
    """Its own number would name all of them, where it is the last."""
    array = {"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}
    result, called = cluster("--mode=sweep", exit_code=143, **array)
    assert result.returncode == 143
    assert called[1:] == [["squeue", "--noheader", "--jobs=12_3", "--format=%T"], ["scontrol", "requeue", "12_3"]]


def test_slurm_queues_again_three_times_what_died(cluster):
    for restarts, requeued in (("2", True), ("3", False)):
        _, called = cluster(exit_code=137, SLURM_RESTART_COUNT=restarts)
        assert (called[-1] == ["scontrol", "requeue", "12"]) == requeued


@pytest.mark.parametrize(
    "arguments, environment, message",
    [
        ((), {"SLURM_JOB_ID": ""}, "is started by sbatch"),
        ((), {"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "0"}, "--array is for --mode=sweep"),
        (("--mode=sweep",), {"SLURM_NTASKS": "4"}, "give --array=0-3 instead of 4 tasks"),
    ],
    ids=["no job", "array", "tasks"],
)
def test_slurm_refuses_what_cannot_be(cluster, arguments, environment, message):
    result, called = cluster(*arguments, **environment)
    assert result.returncode == 2 and message in result.stderr and len(result.stderr.splitlines()) == 1
    assert not called


# A slice that is lost while the first run is on it: the file `state` has what `describe` says.
GCLOUD = """
state={folder}/state
case $4 in
    describe) cat $state ;;
    create) echo READY > $state ;;
    delete) : > $state ;;
    ssh)
        if [ ! -e {folder}/lost ]; then
            touch {folder}/lost
            echo {after} > $state
            exit 255
        fi ;;
esac
"""
SLICE = {"TPU": "slice", "ZONE": "us-central2-b", "TYPE": "v4-32", "SHARE": "10.0.0.2:/share", "PAUSE": "0"}


def tpu_vm(folder, *arguments, after="PREEMPTED", **environment):
    make_commands(folder, gcloud=GCLOUD.format(folder=folder, after=after))
    (folder / "state").touch()
    result = run("tpu_vm.sh", folder, *arguments, **SLICE | environment)
    return result, [call[4:] for call in calls(folder)]


def test_a_tpu_slice_is_made_again_and_the_run_goes_on(tmp_path):
    result, called = tpu_vm(tmp_path, "--config=a.py", "--config.data.dir=a folder", CREATE="--spot --reserved")
    assert result.returncode == 0, result.stderr
    verbs = [call[0] for call in called if call[0] != "describe"]
    assert verbs == ["create", "scp", "ssh", "delete", "create", "scp", "ssh"]
    zone = "--zone=us-central2-b"
    made = ["--accelerator-type=v4-32", "--version=tpu-ubuntu2204-base", "--spot", "--reserved", zone]
    assert called[1] == ["create", "slice", *made]
    copied, started = called[2:4]
    assert copied[2:] == ["slice:posattn_jax.tar.gz", "--worker=all", zone]
    assert started[:3] == ["ssh", "slice", "--worker=all"] and started[-1] == zone
    lines = started[3].removeprefix("--command=").splitlines()
    assert shlex.split(lines[-1])[-3:] == ["--distributed", "--config=a.py", "--config.data.dir=a folder"]
    assert subprocess.run(["bash", "-n"], input="\n".join(lines), text=True, check=False).returncode == 0


def test_a_run_that_fails_on_a_tpu_slice_is_not_started_again(tmp_path):
    result, called = tpu_vm(tmp_path, "--config=a.py", after="READY")
    assert result.returncode == 255
    assert [call[0] for call in called] == ["describe", "create", "scp", "ssh", "describe"]


def test_a_dry_run_on_tpus_prints_its_commands(tmp_path):
    result, called = tpu_vm(tmp_path, "--dry_run", "--config=a.py")
    assert result.returncode == 0 and not called
    words = [line.split("'")[9] for line in result.stdout.splitlines() if line.startswith("'gcloud'")]
    assert words == ["create", "scp", "ssh"]
    result, _ = tpu_vm(tmp_path, "--config=a.py", ZONE="")
    assert result.returncode == 2 and "ZONE is not set" in result.stderr


def test_the_pods_of_kubernetes_find_each_other():
    (jobset,) = yaml.safe_load_all((ROOT / "launch" / "kubernetes.yaml").read_text())
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    variables = {each["name"]: each for each in container["env"]}
    # JobSet calls pods SET-JOB-REPLICA-POD, in a domain of the set's name.
    name = jobset["metadata"]["name"]
    coordinator, port = variables["POSATTN_COORDINATOR"]["value"].split(":")
    assert coordinator == f"{name}-{replicated['name']}-0-0.{name}" and replicated["replicas"] == 1
    assert container["ports"] == [{"containerPort": int(port)}]
    assert int(variables["POSATTN_PROCESS_COUNT"]["value"]) == job["parallelism"] == job["completions"]
    index = variables["POSATTN_PROCESS_INDEX"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert index == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert job["completionMode"] == "Indexed" and job["backoffLimit"] == 0
    # Wrong input ends the set; anything else, such as a run that was evicted, starts all pods again.
    assert pod["restartPolicy"] == "Never"
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob" and rule["onExitCodes"]["values"] == [2]
    assert rule["onExitCodes"]["containerName"] == container["name"]
    failure = jobset["spec"]["failurePolicy"]
    assert failure["restartStrategy"] == "BlockingRecreate" and failure["maxRestarts"] > 0
    (policy,) = failure["rules"]
    assert (policy["action"], policy["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
