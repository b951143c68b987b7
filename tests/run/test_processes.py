"""One run by several processes of this machine, joined over the loopback."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import types

import jax
import numpy as np
import pytest

from posattn_jax.data.pipeline.batches import Share
from posattn_jax.system import processes
from posattn_jax.system.errors import InputError
from posattn_jax.train import sharding
from tests.support.command import ROOT, environment
from tests.support.recorded import figures_of

TINY = "--config=configs/digits.py:tiny"


def start(workdir, *arguments, count=2, devices=2):
    """As many processes of one run, with as many devices each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = environment(devices)
    if count > 1:
        shared |= {processes.COORDINATOR: f"127.0.0.1:{port}", processes.COUNT: str(count)}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "posattn_jax.main", *arguments, f"--workdir={workdir}"],
            cwd=ROOT,
            env=shared | ({processes.INDEX: str(index)} if count > 1 else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]


def finish(started, code=0):
    """What each said on stdout."""
    said = [process.communicate(timeout=600) for process in started]
    assert [process.returncode for process in started] == [code] * len(started), said
    return [out for out, _ in said]


def metrics(workdir):
    """By step, split and name, without the clock."""
    return {(row["step"], row["split"], row["name"]): row["value"] for row in figures_of(workdir)}


def assert_alike(workdir, other):
    ours, theirs = metrics(workdir), metrics(other)
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert ours[key] == pytest.approx(value, rel=1e-5, abs=1e-5), key


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path):
    """With dropout; only the first of them writes and tells."""
    out = finish(start(tmp_path / "two", TINY))
    assert "best validation accuracy" in out[0]
    assert "best validation" not in out[1]
    finish(start(tmp_path / "one", TINY, count=1, devices=1))
    assert_alike(tmp_path / "two", tmp_path / "one")
    assert json.loads((tmp_path / "two" / "summary.json").read_text())["device"] == "4 x cpu"


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh, updates",
    [
        ((), 35),
        (("--config.mesh.data=1", "--config.mesh.model=4"), 35),
        # Errors of rounding grow 500 times from update 6 to 35, to 4e-5; in float64 the 35 updates are one device's.
        (("--config.mesh.data=1", "--config.mesh.fsdp=4"), 25),
    ],
    ids=["data", "model", "fsdp"],
)
def test_killed_and_continued_by_another_number_of_processes(tmp_path, mesh, updates):
    """Two processes of two devices are killed; one process of four goes on with what they saved."""
    steps = (f"--config.train.total_steps={updates}", "--config.train.checkpoint_steps=5")
    digits = ("--config=configs/digits.py", *steps, *mesh)
    alone = tuple(each for each in digits if "mesh" not in each)
    finish(start(tmp_path / "whole", *alone, count=1, devices=1))
    started = start(tmp_path / "killed", *digits)
    while not any((tmp_path / "killed" / "checkpoints").glob("[0-9]*")):
        time.sleep(0.2)
        assert all(process.poll() is None for process in started), finish(started)
    for process in started:
        process.kill()
        process.communicate()
    finish(start(tmp_path / "killed", *digits, count=1, devices=4))
    assert_alike(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.slow
def test_sigterm_to_one_of_two_stops_both_at_one_step(tmp_path):
    arguments = ("--config=configs/digits.py", "--config.train.total_epochs=1", "--config.train.log_steps=1")
    started = start(tmp_path / "run", *arguments)
    while not (tmp_path / "run" / "metrics.jsonl").exists() or not (tmp_path / "run" / "metrics.jsonl").read_text():
        time.sleep(0.2)
    started[1].send_signal(signal.SIGTERM)
    finish(started, code=128 + signal.SIGTERM)
    saved = [int(path.name) for path in (tmp_path / "run" / "checkpoints").glob("[0-9]*")]
    assert len(saved) == 1
    finish(start(tmp_path / "run", *arguments))
    finish(start(tmp_path / "whole", *arguments))
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


@pytest.mark.slow
def test_the_launcher_restarts_a_job_that_lost_a_process(tmp_path):
    command = [str(ROOT / "launch" / "local.sh"), "2", "--config=configs/digits.py", "--config.train.total_epochs=1"]
    command += ["--config.train.checkpoint_steps=5", f"--workdir={tmp_path / 'run'}"]
    job = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"XLA_FLAGS": ""}, stderr=subprocess.PIPE, text=True)
    while not any((tmp_path / "run" / "checkpoints").glob("[0-9]*")):
        time.sleep(0.2)
        assert job.poll() is None
    of_job = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True, check=True).stdout.split()
    os.kill(int(of_job[-1]), signal.SIGKILL)
    _, err = job.communicate(timeout=600)
    assert job.returncode == 0, err
    assert "exit code 137: starting again (1 of 3)" in err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["final"]["epoch"] == 1


@pytest.mark.parametrize(
    "environment, message",
    [
        ({processes.COUNT: "2"}, f"{processes.COORDINATOR} .*{processes.COUNT}"),
        (
            {processes.COORDINATOR: "localhost:1", processes.COUNT: "two", processes.INDEX: "0"},
            f"{processes.COUNT}=two",
        ),
        (
            {processes.COORDINATOR: "localhost:1", processes.COUNT: "2", processes.INDEX: "2"},
            f"{processes.INDEX}=2: .* 0 to 1",
        ),
    ],
)
def test_wrong_variables(monkeypatch, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message):
        processes.join()


class Answers:
    """What processes tell each other, where a value is set once."""

    def __init__(self, **known):
        self.known = {f"posattn_jax/it/{name.strip('_')}": value for name, value in known.items()}

    def key_value_set(self, key, value):
        if key in self.known:
            raise jax.errors.JaxRuntimeError("ALREADY_EXISTS")
        self.known[key] = value

    def blocking_key_value_get(self, key, milliseconds):
        assert milliseconds == 1000 * processes.ANSWER_SECONDS
        if key not in self.known:
            raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED")
        return self.known[key]


@pytest.mark.parametrize(
    "client, expected",
    [
        (Answers(_1="here"), True),
        (Answers(_1="other"), False),
        (Answers(), False),
        (Answers(_1="here", reply="no"), False),  # the other did not wait for this one
        (None, False),
    ],
    ids=["alike", "not alike", "no answer", "too late", "not joined"],
)
def test_processes_get_the_same_reply(monkeypatch, caplog, client, expected):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(processes.global_state, "client", client)
    assert [processes.all_answer("it", "here") for _ in range(2)] == [expected] * 2
    if client is not None:
        assert client.known["posattn_jax/it/reply"] == ("yes" if expected else "no")
        assert len(caplog.records) == ("posattn_jax/it/1" not in client.known)


class Device:
    """One of a process."""

    def __init__(self, process_index):
        self.process_index = process_index


@pytest.mark.parametrize(
    "owners, shards",
    [
        ([[[0], [0]], [[1], [1]]], [(0, 1), (2, 3)]),  # data 2 x fsdp 2
        ([[[0], [1]], [[0], [1]]], [(0, 2), (1, 3)]),  # a topology that deals them out in turn
        ([[[0, 1]], [[0, 1]]], [(0, 1), (0, 1)]),  # the model is cut across processes: both read everything
    ],
)
def test_a_process_reads_the_shards_of_its_devices(monkeypatch, unchecked, owners, shards):
    mesh = types.SimpleNamespace(devices=np.vectorize(Device)(np.array(owners)))
    mesh.shape = dict(zip(sharding.AXES, mesh.devices.shape, strict=False))
    for index, expected in enumerate(shards):
        monkeypatch.setattr(jax, "process_index", lambda index=index: index)
        assert sharding.own_share(mesh) == Share(expected, sharding.num_shards(mesh))
