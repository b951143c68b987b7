"""Slices of a list of sweeps: made run folders are packed and taken; runs that pretend are stopped on time."""

import io
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zlib

import numpy as np
import pytest

from posattn_jax.analysis import report
from posattn_jax.analysis.plan import Plan, Treatment, load_plan, write_plan
from posattn_jax.analysis.runs import runs_file
from posattn_jax.analysis.runs.run_folders import read_runs
from posattn_jax.sweeps import command, slices
from posattn_jax.sweeps.slices import Packer, Sweep, read_list, take, work_off
from posattn_jax.system.command_line import load_config
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import value_at
from tests.analysis.made_sweep import write_run
from tests.support.command import ROOT, environment, run_forked
from tests.support.slow import slow

PLAN = Plan("Which?", (Treatment("a", "a", {"model.span": 1}), Treatment("b", "b", {"model.span": 2})), seeds=(1, 2, 3))
SWEEP = Sweep("one", ("--config=configs/digits.py", "--config.data.dir=DATA/digits"))


@pytest.fixture(autouse=True)
def few_pictures(request, monkeypatch):
    """A report's pictures, which take most of its time, are drawn in one test."""
    if request.node.name != "test_what_is_packed_is_taken_once":
        monkeypatch.setattr(report, "draw_sweep", lambda runs, folder: {})


def write_checkpoint(run, step, size=100):
    folder = run / "checkpoints" / str(step)
    (folder / "state").mkdir(parents=True)
    (folder / "state" / "d").write_bytes(random.Random(step).randbytes(size))  # which cannot be compressed


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
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["finished_0.tar.gz", "unfinished_0.tar.gz"]
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


def finish(run, response):
    """The rest of an unfinished run."""
    span = json.loads((run / "config.json").read_text())["model"]["span"]
    shutil.rmtree(run)
    write_run(run, response, span=span)


def test_the_next_slice_adds_its_runs(work, tmp_path):
    """It goes on in the same folder, or in another one, and does not pack again what is in the results."""
    results = tmp_path / "results"
    packer(work).pack()
    elsewhere = tmp_path / "elsewhere"
    for folder in (work, elsewhere):
        take(tmp_path / "out", folder, results)
    assert len(list((work / "one").glob("*/*/config.json"))) == 3  # nothing is deleted
    assert (elsewhere / "one" / "sweep.json").exists()
    finish(elsewhere / "one" / "a" / "2", 0.9)
    known = slices._known([SWEEP], results)
    assert packer(elsewhere, "second", known=known).pack() == ["one: 1 runs finished, 0 not"]
    assert packer(work, "third", known=known).pack() == ["one: 0 runs finished, 1 not"]
    for out in ("second", "third", "out"):  # in the others the run is not finished
        take(tmp_path / out, tmp_path / "last", results)
    assert read_runs(results / "one").responses("a") == [0.7, 0.9]
    assert not (tmp_path / "last").exists()


def test_a_run_that_was_trained_twice_stays_as_it_is(work, tmp_path, capsys):
    """On a GPU the last digits may differ. The other runs of the slice are joined."""
    results = tmp_path / "results"
    packer(work).pack()
    take(tmp_path / "out", tmp_path / "elsewhere", results)
    finish(work / "one" / "a" / "1", 0.5)
    finish(work / "one" / "a" / "2", 0.9)
    packer(work, "second").pack()
    take(tmp_path / "second", tmp_path / "elsewhere", results)
    assert capsys.readouterr().err == f"{results / 'one'}: a/1 stays 0.7000, the slice's is 0.5000\n"
    assert read_runs(results / "one").responses("a") == [0.7, 0.9]


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"width": 9}, "model.width is 64 and 9"),
        slow({"question": "Another?"}, 'has another sweep, "Which[?]"'),
        slow({"seeds": (1, 2)}, "the slice's a/3 cannot be read"),
    ],
    ids=["config", "plan", "seeds"],
)
def test_what_does_not_belong_to_the_results_changes_nothing(work, tmp_path, changed, message):
    """Other sweeps of the slice are taken."""
    results = tmp_path / "results"
    packer(work).pack()
    take(tmp_path / "out", tmp_path / "elsewhere", results)
    before = contents(results)
    write_run(work / "one" / "a" / "3", 0.7, span=1, **({"width": 9} if "width" in changed else {}))
    if "width" in changed:
        for name in ("a", "b"):
            shutil.rmtree(work / "one" / name / "1")
    plan = Plan(changed.get("question", PLAN.question), PLAN.treatments, seeds=changed.get("seeds", PLAN.seeds))
    write_plan(work / "one" / "sweep.json", plan, {})
    shutil.copytree(work / "one", work / "two")
    write_plan(work / "two" / "sweep.json", PLAN, {})
    packer(work, "second", sweeps=[SWEEP, Sweep("two", ())]).pack()
    with pytest.raises(InputError, match=message):
        take(tmp_path / "second", tmp_path / "elsewhere", results)
    assert {path: each for path, each in contents(results).items() if "two" not in path.parts} == before
    assert (results / "two" / "runs.jsonl").exists()


def test_a_report_that_was_not_finished_is_made_again(work, tmp_path, monkeypatch):
    packer(work).pack()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(slices, "write_text", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        take(tmp_path / "out", tmp_path / "elsewhere", tmp_path / "results")
    assert not (tmp_path / "results" / "one" / "runs.jsonl").exists()
    take(tmp_path / "out", tmp_path / "elsewhere", tmp_path / "results")
    assert len(read_runs(tmp_path / "results" / "one").all) == 2
    assert (tmp_path / "results" / "one" / "report.md").exists()


@pytest.mark.parametrize("step, config", [(20, {}), (10, {}), (5, {"width": 9})], ids=["further", "as far", "another"])
def test_an_unfinished_run_may_stay(work, tmp_path, step, config):
    packer(work).pack()
    run = tmp_path / "elsewhere" / "one" / "a" / "2"
    write_run(run, 0.3, finished=False, span=1, **config)
    write_checkpoint(run, step)
    before = contents(run)
    take(tmp_path / "out", tmp_path / "elsewhere", tmp_path / "results")
    assert contents(run) == before


def test_an_unfinished_run_that_is_behind_is_replaced(work, tmp_path):
    write_checkpoint(work / "one" / "a" / "2", 20)
    packer(work).pack()
    run = tmp_path / "elsewhere" / "one" / "a" / "2"
    write_run(run, 0.3, finished=False, span=1)
    write_checkpoint(run, 10)
    (run / "metrics.jsonl").write_text('{"step": 90, "epoch": 9.0, "split": "train", "name": "loss", "value": 1.0}\n')
    take(tmp_path / "out", tmp_path / "elsewhere", tmp_path / "results")
    assert contents(run).keys() == {
        run / path.relative_to(work / "one" / "a" / "2") for path in contents(work / "one" / "a" / "2")
    }
    assert (run / "metrics.jsonl").read_text() == (work / "one" / "a" / "2" / "metrics.jsonl").read_text()
    assert not list((tmp_path / "elsewhere").glob(".*"))


def test_a_run_that_is_not_evaluated_is_not_finished(work):
    """Of a sweep that evaluates its runs; nor is one that is to be trained for longer."""
    plan = Plan("Which?", PLAN.treatments, seeds=PLAN.seeds, evaluate={"data.pool": 2})
    write_plan(work / "one" / "sweep.json", plan, {})
    assert packer(work).pack() == ["one: 0 runs finished, 3 not"]
    write_plan(work / "one" / "sweep.json", PLAN, {})
    path = work / "one" / "a" / "1" / "config.json"
    config = json.loads(path.read_text())
    config["train"]["total_steps"] = 60
    path.write_text(json.dumps(config))
    assert packer(work).pack() == ["one: 1 runs finished, 2 not"]


def inflated(content):
    """What is in a file of gzip, whatever its checksums say; None if nothing can be read."""
    found = b""
    while content:
        member = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            found += member.decompress(content[10:])
        except zlib.error:
            return None
        content = member.unused_data[8:]
    return found


@pytest.mark.parametrize("name", ["finished_0", "unfinished_0"])
def test_folders_that_are_no_slice(work, tmp_path, name):
    """Every file has a checksum: one bit that has changed is told, and so is an end that is missing."""
    with pytest.raises(InputError, match=r"--take=.*work: .*finished_0.tar.gz"):
        take(work, work, tmp_path / "results")
    packer(work).pack()
    path = tmp_path / "out" / f"{name}.tar.gz"
    whole = path.read_bytes()
    flipped = [whole[:i] + bytes([whole[i] ^ 16]) + whole[i + 1 :] for i in range(20, len(whole), len(whole) // 50)]
    flipped = [each for each in flipped if inflated(each) != inflated(whole)]  # not so where zeros repeat
    assert len(flipped) > 30
    for damaged in (whole[: -len(slices.END)], whole[:-20], whole[:-3], whole[:-8] + bytes(8), *flipped):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=rf"{name}.tar.gz: cannot be read"):
            take(tmp_path / "out", tmp_path / "elsewhere", tmp_path / "results")
        assert not (tmp_path / "results").exists() and not (tmp_path / "elsewhere").exists()


def names(path):
    """The runs in a file."""
    with tarfile.open(path) as archive:
        return {"/".join(name.split("/")[1:3]) for name in archive.getnames()}


def test_no_file_is_too_large(work, tmp_path):
    """Each run takes more than half of a file, and grows."""
    for seed in (2, 3):
        for treatment in ("a", "b"):
            run = work / "one" / treatment / str(seed)
            if not run.exists():
                write_run(run, 0.5, finished=False, span={"a": 1, "b": 2}[treatment])
            write_checkpoint(run, 20, size=600_000 if (treatment, seed) != ("b", 3) else 300_000)
    each = packer(work, parts=3)  # one of them has the finished runs
    told = each.pack()
    assert told[1:] == ["one/b/2: left out, its 0.6 MiB do not fit"]
    assert each.places["unfinished"] == {"one/a/2": 0, "one/a/3": 1, "one/b/3": 0}
    write_checkpoint(work / "one" / "a" / "2", 30, size=300_000)  # a/2 and b/3 no longer fit into one file
    assert each.pack()[1:] == told[1:]
    assert each.places["unfinished"] == {"one/a/2": 0, "one/a/3": 1, "one/b/3": 1}
    out = tmp_path / "out"
    assert names(out / "unfinished_0.tar.gz") == {"a/2"} and names(out / "unfinished_1.tar.gz") == {"a/3", "b/3"}
    shutil.rmtree(work / "one" / "a")
    assert len(each.pack()) == 1
    assert each.places["unfinished"] == {"one/b/2": 0, "one/b/3": 1}
    assert max(path.stat().st_size for path in out.glob("*.tar.gz")) <= 2**20


def test_finished_runs_come_first_in_several_files(work, tmp_path):
    """What does not fit into --parts is named. Without one of the files the slice is not taken for whole."""
    for name in ("a", "b"):
        path = work / "one" / name / "1" / "translations" / "text"
        path.parent.mkdir()
        path.write_bytes(random.Random(name).randbytes(600_000))
    assert packer(work).pack()[1:] == ["one/a/2: left out, its 0.0 MiB do not fit"]
    out = tmp_path / "out"
    assert {path.name: names(path) for path in out.iterdir()} == {
        "finished_0.tar.gz": {"sweep.json", "a/1"},
        "finished_1.tar.gz": {"b/1"},
    }
    assert packer(work, "one_part", parts=1).pack()[1:] == [
        "one/b/1: left out, its 0.6 MiB do not fit",
        "one/a/2: left out, its 0.0 MiB do not fit",
    ]
    (out / "finished_0.tar.gz").rename(out / "finished.tar.gz")  # its name when there was only one
    take(out, tmp_path / "elsewhere", tmp_path / "results")
    assert len(read_runs(tmp_path / "results" / "one").all) == 2
    (out / "finished.tar.gz").unlink()
    with pytest.raises(InputError, match="out: .*sweep.json"):
        take(out, tmp_path / "elsewhere", tmp_path / "results")


def test_compiled_programs_go_along(work, tmp_path):
    """The newest that fit, and only they; they are written anew only when there are others."""
    for i, (name, size) in enumerate({"old": 600_000, "small": 100_000, "new": 700_000}.items()):
        path = work / ".programs" / f"jit_{name}-cache"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes([i]) * size)
        os.utime(path, (i, i))
    (work / ".programs" / "jit_new-atime").write_text("no program")
    (work / ".programs" / "jit_young-cache").write_text("perhaps only a part")
    each, path = packer(work), tmp_path / "out" / "programs.tar.gz"
    each.pack()
    written = path.stat().st_mtime_ns
    each.pack()
    assert path.stat().st_mtime_ns == written
    for _ in range(2):
        take(tmp_path / "out", tmp_path / "elsewhere", tmp_path / "results")
        there = {path.name: path.read_bytes() for path in (tmp_path / "elsewhere" / ".programs").iterdir()}
        assert there == {"jit_small-cache": bytes([1]) * 100_000, "jit_new-cache": bytes([2]) * 700_000}
        ages = {path.name: path.stat().st_mtime for path in (tmp_path / "elsewhere" / ".programs").iterdir()}
        assert ages == {"jit_small-cache": 1, "jit_new-cache": 2}
    (work / ".programs" / "jit_new-cache").write_bytes(b"whole now")  # of the same name
    os.utime(work / ".programs" / "jit_new-cache", (2, 2))
    each.pack()
    assert path.stat().st_mtime_ns != written


def test_a_run_that_moves_is_in_its_new_file_first(work, tmp_path, monkeypatch):
    """Whenever a process is killed, every run is in a file."""
    for treatment, seed in (("a", 3), ("b", 3)):
        write_run(work / "one" / treatment / str(seed), 0.5, finished=False, span={"a": 1, "b": 2}[treatment])
        write_checkpoint(work / "one" / treatment / str(seed), 20, size=200_000)
    each, seen = packer(work, parts=3), []
    each.pack()
    assert set(each.places["unfinished"].values()) == {0}
    original = slices.write_atomically

    def write_atomically(path, write):
        original(path, write)
        seen.append(set().union(*map(names, (tmp_path / "out").glob("un*.tar.gz"))))

    monkeypatch.setattr(slices, "write_atomically", write_atomically)
    write_checkpoint(work / "one" / "a" / "3", 30, size=700_000)
    each.pack()
    assert set(each.places["unfinished"].values()) == {0, 1}
    assert len(seen) == 3 and all(there == {"a/2", "a/3", "b/3"} for there in seen)


@pytest.mark.parametrize("moment", ["first read", "first file"])
def test_a_checkpoint_that_is_deleted_meanwhile_is_no_end(work, tmp_path, monkeypatch, moment):
    """A run saves, and deletes its oldest checkpoint, while it is packed."""
    run, read = work / "one" / "a" / "2", pathlib.Path.read_bytes
    (run / "checkpoints" / "10" / "a").write_text("first")

    def read_bytes(path):
        found = read(path) if moment == "first file" else None
        if path.is_relative_to(run / "checkpoints" / "10") and not (run / "checkpoints" / "20").exists():
            write_checkpoint(run, 20)
            shutil.rmtree(run / "checkpoints" / "10")
        return read(path) if found is None else found

    monkeypatch.setattr(pathlib.Path, "read_bytes", read_bytes)
    packer(work).pack()
    with tarfile.open(tmp_path / "out" / "unfinished_0.tar.gz") as archive:
        inside = archive.getnames()
    assert "one/a/2/checkpoints/20/state/d" in inside and not any("checkpoints/10" in name for name in inside)
    assert inside.index("one/a/2/checkpoints/20/state/d") < inside.index("one/a/2/metrics.jsonl")


def test_a_run_that_never_stands_still_is_told(work, monkeypatch):
    steps = iter(range(99))
    monkeypatch.setattr(slices, "checkpoint_steps", lambda _: [next(steps)])
    assert packer(work).pack()[0] == "one/a/2: left out, it changes all the time"


def test_where_the_data_are_is_not_told(work, tmp_path):
    config = {
        "data": {"dir": f"{tmp_path}/data/x", "validation_dir": f"{tmp_path}/data/y", "name": "digits", "no": None}
    }
    told = json.loads(packer(work)._for_a_report("config.json", json.dumps(config).encode()))
    assert told == {"data": {"dir": "DATA/x", "validation_dir": "DATA/y", "name": "digits", "no": None}}


def test_of_the_positions_only_spans_go_along(work):
    """A report reads no others, and they make most of a run's size."""
    arrays = {"block_0/sigma": np.ones(2), "block_0/relative_encoding": np.ones((99, 64)), "image": np.zeros((4, 4))}
    np.savez(buffer := io.BytesIO(), **arrays)
    packed = np.load(io.BytesIO(packer(work)._for_a_report("positions.npz", buffer.getvalue())))
    assert packed.files == ["block_0/sigma", "image"]
    np.testing.assert_array_equal(packed["block_0/sigma"], arrays["block_0/sigma"])


@pytest.mark.parametrize(
    "text, message",
    [
        ("# nothing\n", "has no sweep"),
        ("\n--config=a.py\n", "line 2: .*--config=FILE"),
        ("--config=a.py --workdir=runs/a\n", "line 1: --workdir=runs/a: .*folders"),
        ("--config=a.py --workdir=a --mode=train\n", "line 1: expected no --mode"),
        ("--config=a.py --workdir=a\n--config=b.py --workdir=a\n", "line 2: --workdir=a: .*config"),
        ("--config=a.py --workdir=a\n--config=a.py --workdir=a --config.seed=1\n", "line 2: --workdir=a: "),
        ("--config=a.py --workdir=a\n--config=a.py --workdir=b\n", "line 2: --workdir=b: .*options"),
        ("--config=a.py --workdir a\n", "line 1: --workdir: expected --name=value"),
        ("--config=a.py -workdir=a\n", "line 1: -workdir=a: "),
        ("--config=a.py --workdir='a\n", "line 1: No closing quotation"),
    ],
)
def test_lists_that_cannot_be_run(tmp_path, text, message):
    (tmp_path / "list").write_text(text)
    with pytest.raises(InputError, match=message):
        read_list(tmp_path / "list")


def test_a_comment_begins_after_white_space(tmp_path):
    (tmp_path / "list").write_text("# it's one\n--config=a.py --workdir=a --config.data.dir=DATA/c#  # isn't this?\n")
    assert read_list(tmp_path / "list") == [Sweep("a", ("--config=a.py", "--config.data.dir=DATA/c#"))]


def test_a_comment_does_not_begin_in_quotes(tmp_path):
    (tmp_path / "list").write_text("--config=a.py --workdir=a --config.data.dir='DATA/c # d'  # isn't this?\n")
    assert read_list(tmp_path / "list") == [Sweep("a", ("--config=a.py", "--config.data.dir=DATA/c # d"))]


def test_files_that_are_no_lists(tmp_path):
    (tmp_path / "list").write_bytes(b"\xff\xfe")
    for path in ("list", "missing"):
        with pytest.raises(InputError, match=f"{path}: cannot be read"):
            read_list(tmp_path / path)


QUEUE = [sweep for name in ("gpu_queue", "cifar_queue") for sweep in read_list(ROOT / "launch" / f"{name}.txt")]


@pytest.mark.parametrize("line", range(len(QUEUE)), ids=[sweep.name for sweep in QUEUE])
def test_every_line_of_a_queue_is_a_sweep(line):
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
        (["--minutes=3", "--out=OUT"], "expected --minutes=11 --out=FOLDER LIST"),
        (["--minutes=3", "--out=OUT", "missing"], "missing: cannot be read"),
        (["--minutes=.5", "--out=OUT", "LIST"], "--minutes=0.5"),
        (["--minutes=3", "--out=OUT", "LIST"], "--data=FOLDER is missing"),
        (["--minutes=3", "--out=OUT", "--data=.", "--parts=0", "LIST"], "--parts=0"),
        (["--take=OUT", "LIST"], "--take: expected no LIST"),
    ],
)
def test_commands_that_cannot_be_run(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "LIST").write_text(" ".join(["--workdir=one", *SWEEP.options]) + "  # 4 minutes\n")
    with pytest.raises(InputError, match=message):
        slices.main(["slices", *arguments])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["LIST"]


def test_a_slice_that_was_not_taken_is_not_overwritten(work, tmp_path):
    packer(work).pack()
    (tmp_path / "LIST").write_text("--workdir=one --config=configs/digits.py\n")
    with pytest.raises(InputError, match=r"--out=.*out: has .*finished"):
        slices.main(["slices", "--minutes=3", f"--out={tmp_path / 'out'}", str(tmp_path / "LIST")])


def test_a_sweep_is_run_where_it_stands_and_without_what_is_finished(work, tmp_path):
    results = tmp_path / "results"
    command = slices._command(SWEEP, work, results, tmp_path / "data")
    same = [f"--workdir={work / 'one'}", "--config=configs/digits.py", f"--config.data.dir={tmp_path}/data/digits"]
    assert command[1:] == ["-m", "posattn_jax.main", "--mode=sweep", *same]
    packer(work).pack()
    take(tmp_path / "out", work, results)
    assert slices._command(SWEEP, work, results, tmp_path / "data") == [*command, f"--finished={results / 'one'}"]


def test_a_list_is_checked_by_its_sweeps(tmp_path, monkeypatch):
    """With the data's folder as the list names it. The last line of each that fails is told."""
    sweeps = [SWEEP, Sweep("two", ()), Sweep("three", ())]
    command = slices._command(SWEEP, tmp_path, tmp_path, pathlib.Path(slices.DATA))
    assert "--config.data.dir=DATA/digits" in command
    script = "import sys; sys.exit(sys.argv[1:] != ['one', '--check'] and 'a warning\\nposattn_jax: error: not so')"
    monkeypatch.setattr(slices, "_command", lambda sweep, *_: [sys.executable, "-ISc", script, sweep.name])
    slices.check(sweeps[:1], tmp_path, tmp_path)
    with pytest.raises(InputError, match="^two: not so; three: not so$"):
        slices.check(sweeps, tmp_path, tmp_path)


# Notes that it starts, and saves when it is told to end.
PRETENDS = """
import os, pathlib, signal, sys, time
notes = pathlib.Path(sys.argv[1])
notes.with_name("programs").write_text(os.environ["JAX_COMPILATION_CACHE_DIR"])
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
            return [sys.executable, "-IS", str(tmp_path / "run.py"), str(tmp_path / sweep.name), *own]

        monkeypatch.setattr(slices, "_command", command)
        named = [Sweep(name, ()) for name in of]
        own = packer(tmp_path / "work", sweeps=named)
        code = work_off(named, time.monotonic() + seconds, tmp_path / "work", tmp_path / "results", None, own, every)
        return code, [path.read_text() if (path := tmp_path / name).exists() else None for name in of]

    return works


def test_what_cannot_be_packed_ends_no_run(pretended, tmp_path, monkeypatch, capfd):
    def pack(self):
        raise OSError(28, "No space left on device", "out")

    monkeypatch.setattr(Packer, "pack", pack)
    with pytest.raises(OSError, match="No space"):
        pretended(60, (1, 0), every=0.1)
    assert (tmp_path / "sweep_0").read_text() == "started"
    assert capfd.readouterr().err.count("not packed: [Errno 28]") >= 2


def test_a_run_that_does_not_save_in_time_is_left(pretended, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(slices, "SECONDS_TO_SAVE", 0.1)
    assert pretended(1, (60, 0)) == (0, ["started"])
    assert capfd.readouterr().err == "sweep_0: is still saving, and goes on alone\n"
    assert (tmp_path / "out" / "finished_0.tar.gz").exists()


def test_one_after_the_other_until_the_time_is_over(pretended, tmp_path, monkeypatch, capfd):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    assert pretended(2, (0, 0), (0, 5), (60, 0), (0, 0)) == (1, ["started", "started", "saved", None])
    assert capfd.readouterr().err == "failed: sweep_1 (exit code 5)\n"
    assert (tmp_path / "programs").read_text() == str(tmp_path / "work" / ".programs")
    assert (tmp_path / "out" / "finished_0.tar.gz").exists()


@pytest.mark.parametrize("signum, exit_code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_stops_it_after_saving(pretended, tmp_path, signum, exit_code):
    def send():
        while not (tmp_path / "sweep_0").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signum)

    threading.Thread(target=send).start()
    assert pretended(60, (60, 0), (0, 0)) == (exit_code, ["saved", None])


def test_it_is_packed_while_a_sweep_runs(pretended, tmp_path, monkeypatch):
    times = []
    monkeypatch.setattr(Packer, "pack", lambda self: times.append(time.monotonic()) or [])
    pretended(60, (1, 0), every=0.1)
    assert len(times) >= 3


@pytest.mark.slow
def test_a_sweep_whose_runs_are_all_finished_runs_none(tmp_path):
    """Nor does one whose runs are not there. Nothing is left behind."""
    arguments = ["--mode=sweep", f"--workdir={tmp_path / 'sweep'}"]
    code, out, err = run_forked(*arguments, "--finished=docs/results/digits", config="configs/digits.py")
    assert (code, out) == (0, "nothing is left to run: every run is in docs/results/digits\n"), err
    code, _, err = run_forked(*arguments, "--finished=docs", config="configs/digits.py")
    assert code == 2 and err.startswith("posattn_jax: error: --finished=docs: "), err
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    "folder, epochs, message",
    [
        ("docs/results/compare", 15.0, 'docs/results/compare .*"Which way'),
        ("docs/results/digits", 2.0, ".*train.total_epochs is 15.0 and 2"),
    ],
)
def test_finished_runs_of_another_sweep_are_refused(folder, epochs, message):
    config = load_config("configs/digits.py")
    config.train.total_epochs = epochs
    with pytest.raises(InputError, match=f"^--finished={message}"):
        command._finished(pathlib.Path(folder), load_plan("configs/digits.py"), config)


@pytest.mark.slow
def test_the_launcher_runs_from_anywhere(tmp_path):
    launcher, own = ROOT / "launch" / "gpu_slice.sh", environment() | {"PYTHON": sys.executable}
    result = subprocess.run([launcher, f"--take={tmp_path}"], cwd=tmp_path, env=own, capture_output=True, text=True)
    said = f"posattn_jax: error: --take={tmp_path}: expected the folder of a slice, with finished_0.tar.gz\n"
    assert (result.returncode, result.stderr) == (2, said)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", ["--workers=2", "--vmap_seeds=2"])
def test_runs_of_killed_slices_are_those_of_an_undisturbed_sweep(tmp_path, at_once):
    """Stopped by SIGTERM and by SIGKILL, taken each time, and continued where only what was packed is left."""
    options = ["--config=configs/digits.py:tiny", "--config.train.total_steps=3000"]
    options += ["--config.train.eval_steps=100", "--config.train.checkpoint_steps=100"]
    options += ["--treatments=siren_2d,span_2d", "--seeds=1,2", at_once]
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
