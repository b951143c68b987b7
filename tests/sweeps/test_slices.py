"""Slices of a list of sweeps: made run folders are packed and taken; runs that pretend are stopped on time."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time

import pytest

from posattn_jax.analysis import runs_file
from posattn_jax.analysis.plan import Plan, Treatment, write_plan
from posattn_jax.analysis.run_folders import read_runs
from posattn_jax.sweeps import slices
from posattn_jax.sweeps.prepare import load_plan
from posattn_jax.sweeps.slices import Packer, Sweep, read_list, take, work_off
from posattn_jax.system.command_line import load_config
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import value_at
from tests.analysis.made_sweep import write_run
from tests.support.command import ROOT, environment, run_forked

PLAN = Plan("Which?", (Treatment("a", "a", {"model.span": 1}), Treatment("b", "b", {"model.span": 2})), seeds=(1, 2, 3))
SWEEP = Sweep("one", ("--config=configs/digits.py", "--config.data.dir=DATA/digits"))


def write_checkpoint(run, step, size=100):
    folder = run / "checkpoints" / str(step)
    (folder / "state").mkdir(parents=True)
    (folder / "state" / "d").write_bytes(bytes(size))


@pytest.fixture
def work(tmp_path):
    """Two finished runs and an unfinished one."""
    write_plan(tmp_path / "work" / "one" / "sweep.json", PLAN, {"commands": ["at /home/me"]})
    for treatment, seed, response in (("a", 1, 0.7), ("b", 1, 0.8), ("a", 2, 0.9)):
        run = tmp_path / "work" / "one" / treatment / str(seed)
        write_run(run, response, finished=seed == 1, span={"a": 1, "b": 2}[treatment])
        config = json.loads((run / "config.json").read_text())
        config["data"]["dir"] = str(tmp_path / "data" / "digits")
        (run / "config.json").write_text(json.dumps(config))
        write_checkpoint(run, 10)
    return tmp_path / "work"


def packer(work, out="out", **changes):
    fields = {"sweeps": [SWEEP], "work": work, "data": work.parent / "data", "parts": 2, "part_mib": 1.0}
    return Packer(**(fields | {"out": work.parent / out} | changes))


def contents(folder):
    """Every file with its bytes and when it was written."""
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_what_is_packed_is_taken_once(work, tmp_path):
    assert packer(work).pack() == ["one: 2 runs finished, 1 not"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["finished.tar.gz", "unfinished_0.tar.gz"]
    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    take(tmp_path / "out", elsewhere, results)
    runs = runs_file.read(results / "one" / "runs.jsonl")
    assert {(run.treatment, run.seed): run.response for run in runs.all} == {("a", 1): 0.7, ("b", 1): 0.8}
    assert (results / "one" / "report.md").exists()
    assert runs.commands == [SWEEP.command] and runs.all[0].config["data"]["dir"] == "DATA/digits"
    assert str(tmp_path) not in (results / "one" / "runs.jsonl").read_text()

    run, taken = work / "one" / "a" / "2", elsewhere / "one" / "a" / "2"
    files = [path.relative_to(run) for path in run.rglob("*") if path.is_file()]
    assert files and all((taken / path).read_bytes() == (run / path).read_bytes() for path in files)
    assert sorted(elsewhere.glob("*/*/*")) == [taken]  # those that are finished are in the results

    before = contents(tmp_path)
    take(tmp_path / "out", elsewhere, results)
    assert contents(tmp_path) == before


def test_the_next_slice_adds_its_runs(work, tmp_path):
    packer(work).pack()
    results = tmp_path / "results"
    take(tmp_path / "out", work, results)
    assert sorted(path.name for path in (work / "one").glob("*/*")) == ["2"]
    run = work / "one" / "a" / "2"
    shutil.rmtree(run)
    write_run(run, 0.9, span=1)
    packer(work, "second").pack()
    take(tmp_path / "second", work, results)
    assert read_runs(results / "one").responses("a") == [0.7, 0.9]
    assert not list((work / "one").glob("*/*"))
    take(tmp_path / "out", work, results)  # the first slice again: its unfinished run is finished by now
    assert not list((work / "one").glob("*/*"))


def test_an_unfinished_run_that_is_further_stays(work, tmp_path):
    packer(work).pack()
    run = work / "one" / "a" / "2"
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 40, "epoch": 4.0, "split": "train", "name": "loss", "value": 1.0}) + "\n")
    before = contents(run)
    take(tmp_path / "out", work, tmp_path / "results")
    assert contents(run) == before


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"response": 0.5}, "has another run a/1, 0.7000: 0.5000"),
        ({"width": 9}, "cannot be compared: model.width is 64 and 9"),
        ({"question": "Another?"}, 'has another sweep, "Which[?]"'),
    ],
    ids=["run", "config", "plan"],
)
def test_what_does_not_belong_to_the_results_changes_nothing(work, tmp_path, changed, message):
    results = tmp_path / "results"
    packer(work).pack()
    take(tmp_path / "out", tmp_path / "elsewhere", results)
    before = contents(tmp_path / "results")
    seed = 1 if "response" in changed else 3
    run = work / "one" / "a" / str(seed)
    shutil.rmtree(run, ignore_errors=True)
    write_run(run, changed.get("response", 0.7), span=1, **({"width": 9} if "width" in changed else {}))
    if "width" in changed:
        for name in ("a", "b"):
            shutil.rmtree(work / "one" / name / "1")
    if "question" in changed:
        plan = Plan(changed["question"], PLAN.treatments, seeds=PLAN.seeds)
        write_plan(work / "one" / "sweep.json", plan, {})
    packer(work).pack()
    with pytest.raises(InputError, match=message):
        take(tmp_path / "out", tmp_path / "elsewhere", results)
    assert contents(tmp_path / "results") == before


def test_folders_that_are_no_slice(work, tmp_path):
    with pytest.raises(InputError, match=r"--take=.*work: expected the folder of a slice, with finished.tar.gz"):
        take(work, work, tmp_path / "results")
    packer(work).pack()
    path = tmp_path / "out" / "unfinished_0.tar.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"unfinished_0.tar.gz: cannot be read"):
        take(tmp_path / "out", work, tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_runs_stay_in_their_file_and_what_does_not_fit_is_told(work, tmp_path):
    """Each checkpoint takes more than half of a file."""
    for seed in (2, 3):
        for treatment in ("a", "b"):
            run = work / "one" / treatment / str(seed)
            if not run.exists():
                write_run(run, 0.5, finished=False, span={"a": 1, "b": 2}[treatment])
            write_checkpoint(run, 20, size=600_000)
    each = packer(work)
    told = each.pack()
    assert [line.split(": ")[0] for line in told] == ["one", "one/b/2", "one/b/3"]
    assert told[1].endswith("left out, its checkpoints of 0.6 MiB do not fit")
    assert each.places == {"one/a/2": 0, "one/a/3": 1}
    shutil.rmtree(work / "one" / "a" / "2")
    assert len(each.pack()) == 2
    assert each.places == {"one/a/3": 1, "one/b/2": 0}
    for part, run in enumerate(("b/2", "a/3")):
        with tarfile.open(tmp_path / "out" / f"unfinished_{part}.tar.gz") as archive:
            assert {"/".join(name.split("/")[:3]) for name in archive.getnames()} == {f"one/{run}"}
    assert all(path.stat().st_size <= 2**20 for path in (tmp_path / "out").glob("*.tar.gz"))


def test_a_checkpoint_that_is_deleted_meanwhile_is_no_end(work, tmp_path, monkeypatch):
    """A run saves, and deletes its oldest checkpoint, while it is packed."""
    run, read = work / "one" / "a" / "2", pathlib.Path.read_bytes

    def read_bytes(path):
        if path.is_relative_to(run / "checkpoints" / "10") and not (run / "checkpoints" / "20").exists():
            shutil.rmtree(run / "checkpoints" / "10")
            write_checkpoint(run, 20)
        return read(path)

    monkeypatch.setattr(pathlib.Path, "read_bytes", read_bytes)
    packer(work).pack()
    with tarfile.open(tmp_path / "out" / "unfinished_0.tar.gz") as archive:
        names = archive.getnames()
    assert "one/a/2/checkpoints/20/state/d" in names and not any("checkpoints/10" in name for name in names)
    assert names.index("one/a/2/checkpoints/20/state/d") < names.index("one/a/2/metrics.jsonl")


@pytest.mark.parametrize(
    "text, message",
    [
        ("# nothing\n", "has no sweep"),
        ("\n--config=a.py\n", "line 2: expected --config=FILE and --workdir=NAME"),
        ("--config=a.py --workdir=runs/a\n", "line 1: --workdir=runs/a: expected a name without folders"),
        ("--config=a.py --workdir=a --mode=train\n", "line 1: expected no --mode"),
        ("--config=a.py --workdir=a\n--config=b.py --workdir=a\n", "line 2: --workdir=a: expected other options, and"),
        ("--config=a.py --workdir=a\n--config=a.py --workdir=b\n", "line 2: --workdir=b: expected other options, and"),
        ("--config=a.py --workdir='a\n", "line 1: No closing quotation"),
    ],
)
def test_lists_that_cannot_be_run(tmp_path, text, message):
    (tmp_path / "list").write_text(text)
    with pytest.raises(InputError, match=message):
        read_list(tmp_path / "list")


QUEUE = read_list(ROOT / "launch" / "gpu_queue.txt")


@pytest.mark.parametrize("line", range(len(QUEUE)), ids=[sweep.name for sweep in QUEUE])
def test_every_line_of_the_queue_is_a_sweep(line):
    """With its treatments, and with fields that its config has."""
    sweep = QUEUE[line]
    given = {option.partition("=")[0]: option.partition("=")[2] for option in sweep.options}
    assert given.keys() <= {"--config", "--treatments", "--seeds", "--vmap_seeds", "--workers"} | {
        flag for flag in given if flag.startswith("--config.")
    }
    treatments, seeds = (given[flag].split(",") if flag in given else None for flag in ("--treatments", "--seeds"))
    plan = load_plan(given["--config"]).select(treatments, seeds and [int(seed) for seed in seeds])
    assert plan.treatments
    config = load_config(given["--config"])
    for flag in given:
        if flag.startswith("--config."):
            path = flag.removeprefix("--config.")
            assert isinstance(value_at(config.to_dict(), path), (str, int, float, type(None))), path
            assert not any(path in treatment.fields for treatment in plan.treatments)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--minutes=3", "--out=OUT"], "expected --minutes=11 --out=FOLDER LIST, or --take=FOLDER"),
        (["--minutes=3", "--out=OUT", "missing"], "missing: no such file"),
        (["--minutes=.5", "--out=OUT", "LIST"], "--minutes=0.5: expected more than 0.5"),
        (["--minutes=3", "--out=OUT", "LIST"], "--data=FOLDER is missing: one has --config.data.dir=DATA/digits"),
        (["--minutes=3", "--out=OUT", "--data=.", "--parts=0", "LIST"], "--parts=0: expected at least 1"),
        (["--take=OUT", "LIST"], "--take: expected no LIST, --minutes or --out beside it"),
    ],
)
def test_commands_that_cannot_be_run(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "LIST").write_text(" ".join(["--workdir=one", *SWEEP.options]) + "  # 4 minutes\n")
    with pytest.raises(InputError, match=message):
        slices.main(["slices", *arguments])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["LIST"]


def test_a_sweep_is_run_where_it_stands_and_without_what_is_finished(work, tmp_path):
    results = tmp_path / "results"
    command = slices._command(SWEEP, work, results, tmp_path / "data")
    same = [f"--workdir={work / 'one'}", "--config=configs/digits.py", f"--config.data.dir={tmp_path}/data/digits"]
    assert command[1:] == ["-m", "posattn_jax.main", "--mode=sweep", *same]
    packer(work).pack()
    take(tmp_path / "out", work, results)
    assert slices._command(SWEEP, work, results, tmp_path / "data") == [*command, f"--finished={results / 'one'}"]


# Notes that it starts, and saves when it is told to end.
PRETENDS = """
import pathlib, signal, sys, time
notes = pathlib.Path(sys.argv[1])
def stop(*_):
    time.sleep(0.3)
    notes.write_text("saved")
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
notes.write_text("started")
time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[3]))
"""


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """Sweeps that only pretend: a function that runs those of some seconds and exit codes until a time."""
    (tmp_path / "run.py").write_text(PRETENDS)

    def works(seconds, *sweeps, every=60.0):
        of = {f"sweep_{i}": each for i, each in enumerate(sweeps)}

        def command(sweep, *_):
            own = map(str, of[sweep.name])
            return [sys.executable, str(tmp_path / "run.py"), str(tmp_path / sweep.name), *own]

        monkeypatch.setattr(slices, "_command", command)
        named = [Sweep(name, ()) for name in of]
        own = packer(tmp_path / "work", sweeps=named)
        code = work_off(named, time.monotonic() + seconds, tmp_path / "work", tmp_path / "results", None, own, every)
        return code, [path.read_text() if (path := tmp_path / name).exists() else None for name in of]

    return works


def test_one_after_the_other_until_the_time_is_over(pretended, tmp_path, capfd):
    assert pretended(3, (0, 0), (0, 5), (60, 0), (0, 0)) == (1, ["started", "started", "saved", None])
    assert capfd.readouterr().err == "failed: sweep_1 (exit code 5)\n"
    assert (tmp_path / "out" / "finished.tar.gz").exists()


@pytest.mark.parametrize("signum, exit_code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_stops_it_after_saving(pretended, signum, exit_code):
    timer = threading.Timer(2, os.kill, (os.getpid(), signum))
    timer.start()
    assert pretended(60, (60, 0), (0, 0)) == (exit_code, ["saved", None])


def test_it_is_packed_while_a_sweep_runs(pretended, tmp_path, monkeypatch):
    times = []
    monkeypatch.setattr(Packer, "pack", lambda self: times.append(time.monotonic()) or [])
    pretended(60, (2, 0), every=0.5)
    assert len(times) >= 3


def test_a_sweep_whose_runs_are_all_finished_runs_none(tmp_path):
    code, out, err = run_forked(
        "--mode=sweep", f"--workdir={tmp_path / 'sweep'}", "--finished=docs/results/digits", config="configs/digits.py"
    )
    assert (code, out) == (0, "nothing is left to run: every run is in docs/results/digits\n"), err
    assert not (tmp_path / "sweep").exists()


def test_the_launcher_runs_from_anywhere(tmp_path):
    launcher, own = ROOT / "launch" / "gpu_slice.sh", environment() | {"PYTHON": sys.executable}
    result = subprocess.run([launcher, f"--take={tmp_path}"], cwd=tmp_path, env=own, capture_output=True, text=True)
    said = f"posattn_jax: error: --take={tmp_path}: expected the folder of a slice, with finished.tar.gz\n"
    assert (result.returncode, result.stderr) == (2, said)


@pytest.mark.slow
def test_runs_of_killed_slices_are_those_of_an_undisturbed_sweep(tmp_path):
    """Stopped by SIGTERM and by SIGKILL, taken each time, and continued where only what was packed is left."""
    options = ["--config=configs/digits.py:tiny", "--config.train.total_steps=3000"]
    options += ["--config.train.eval_steps=100", "--config.train.checkpoint_steps=100"]
    options += ["--treatments=siren_2d,span_2d", "--seeds=1,2", "--workers=2"]
    (tmp_path / "list").write_text(" ".join(["--workdir=tiny", *options]))
    python = [sys.executable, "-m"]
    places = [f"--work={tmp_path / 'work'}", f"--results={tmp_path / 'results'}"]

    def begin(out, minutes):
        command = [
            *python,
            "posattn_jax.sweeps.slices",
            f"--minutes={minutes}",
            f"--out={tmp_path / out}",
            "--every=3",
            *places,
        ]
        return subprocess.Popen([*command, str(tmp_path / "list")], cwd=ROOT, env=environment())

    def wait_for(process, out, pattern):
        while process.poll() is None and not list((tmp_path / out).glob(pattern)):
            time.sleep(0.1)

    def go_on(out):
        """On another machine: only what was packed is left."""
        shutil.rmtree(tmp_path / "work")
        take(tmp_path / out, tmp_path / "work", tmp_path / "results")

    process = begin("first", 10)
    wait_for(process, "work", "tiny/*/*/checkpoints/[0-9]*")
    process.terminate()
    assert process.wait() == 143
    go_on("first")
    assert list((tmp_path / "work").glob("tiny/*/*/checkpoints/[0-9]*"))

    process = begin("second", 10)
    wait_for(process, "second", "unfinished_0.tar.gz")
    process.kill()
    subprocess.run(["pkill", "-KILL", "-f", str(tmp_path / "work")], check=False)
    assert process.wait() == -signal.SIGKILL
    go_on("second")
    assert list((tmp_path / "work").glob("tiny/*/*/checkpoints/[0-9]*"))

    process = begin("third", 60)
    assert process.wait() == 0
    go_on("third")
    subprocess.run(
        [*python, "posattn_jax.main", "--mode=sweep", f"--workdir={tmp_path / 'whole'}", *options],
        cwd=ROOT,
        env=environment(),
        check=True,
    )
    found, expected = read_runs(tmp_path / "results" / "tiny"), read_runs(tmp_path / "whole")
    assert len(found.all) == 4
    assert [(run.treatment, run.seed, run.figures) for run in found.all] == [
        (run.treatment, run.seed, run.figures) for run in expected.all
    ]
