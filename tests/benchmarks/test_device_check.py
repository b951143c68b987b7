"""The check of attention on TPUs, on a CPU with tiny shapes, without the packages that such a machine may lack."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.device import check, measure, parity
from benchmarks.device.cases import Parity, Timing, cases, quick_cases
from benchmarks.device.exact import attend_exactly
from benchmarks.device.programs import make_function
from posattn_jax.benchmarks.roofline import PEAKS, Rates, work
from posattn_jax.benchmarks.shapes import Point, make_inputs
from posattn_jax.benchmarks.timing import one_pass
from posattn_jax.ops.attention.api import IMPLEMENTATIONS
from posattn_jax.ops.attention.xla.reference import reference_attention

ROOT = pathlib.Path(__file__).parents[2]
BLOCKED = ("tensorflow_datasets", "grain", "ml_collections", "matplotlib", "orbax", "optax")
BLOCKER = f"""
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED}:
            raise ModuleNotFoundError(name + " is blocked")


sys.meta_path.insert(0, Blocked())
"""
PATIENT = ("--quick", "--minutes=60", "--step_seconds=600")


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """The folder that the command fills on a machine without the packages."""
    folder = tmp_path_factory.mktemp("tpu")
    (folder / "sitecustomize.py").write_text(BLOCKER)
    environment = os.environ | {
        "PYTHON": sys.executable,
        "PYTHONPATH": str(folder),
        "JAX_COMPILATION_CACHE_DIR": os.environ["POSATTN_TEST_CACHE"],
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    command = [ROOT / "launch" / "tpu_check.sh", *PATIENT, f"--out={folder}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "cpu_quick", done.stdout


def read(folder):
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


@pytest.mark.slow
def test_everything_is_measured(checked):
    folder, printed = checked
    results = read(folder)
    names = [case.name for case in quick_cases()]
    assert results.keys() == {"summary", *names}
    assert results["summary"]["done"] == names
    assert results["summary"]["left_out"] == results["summary"]["disagree"] == []
    for name in names:
        assert results[name]["versions"].keys() >= {"jax", "jaxlib", "numpy", "python"}
        assert results[name]["device"] == {"kind": "cpu", "platform": "cpu"}
        assert results[name]["case"]["name"] == name
        assert len(results[name]["source"]) == 64 and "running" not in results[name]
    assert "| 2d8, 2, 2, 8 | bfloat16 |" in printed and "flash is absent from 4 passes: " in printed


@pytest.mark.slow
def test_times_floors_errors_and_ratios(checked):
    results = read(checked[0])
    for case in quick_cases():
        if not isinstance(case, Timing):
            continue
        result = results[case.name]
        assert list(result["passes"]) == ["forward", "forward_backward"]
        for name, section in result["passes"].items():
            found = section["implementations"]
            assert found.keys() == {*measure.TIMED, measure.PLAIN}
            assert found["fused"]["absent"] and found[measure.PLAIN]["absent"]
            assert section["floor_ms"] == max(section["floors_ms"].values()) > 0
            assert section["floors_ms"].keys() == {"arithmetic", "exp", "bandwidth"}
            arrays = {"query", "key", "value", "relative_encoding", "content_bias", "position_bias", "sigma"}
            gradients = {f"d {array}" for array in arrays} if name == "forward_backward" else set()
            for implementation in ("tiled", "dense"):
                values = found[implementation]
                assert values["errors"].keys() == {"outputs"} | gradients
                assert values["error"] == max(values["errors"].values())
                assert values["agrees"] and values["error"] < (2e-2 if case.dtype == "bfloat16" else 2e-6)
                assert values["quartiles_ms"][0] <= values["median_ms"] <= values["quartiles_ms"][1]
                assert min(values["calls"], values["repeats"], values["temp_mib"], values["compile_seconds"]) > 0
            ms = {implementation: found[implementation]["median_ms"] for implementation in ("tiled", "dense")}
            assert section["ratios"]["tiled/dense"] == pytest.approx(ms["tiled"] / ms["dense"])
            assert section["ratios"]["tiled/floor"] == pytest.approx(ms["tiled"] / section["floor_ms"])
            assert section["ratios"]["fused/tiled"] is None


@pytest.mark.slow
def test_every_implementation_is_compared_with_float64(checked):
    results = read(checked[0])
    for case in quick_cases():
        if isinstance(case, Parity):
            found = results[case.name]["passes"]["forward_backward"]["implementations"]
            assert found.keys() == set(parity.TIMED)
            for implementation in set(parity.TIMED) - {"fused"}:
                assert found[implementation]["agrees"] and len(found[implementation]["errors"]) == 8
                assert found[implementation]["error"] < (3e-2 if case.dtype == "bfloat16" else 3e-6)


@pytest.fixture
def in_process(checked, tmp_path, monkeypatch, capsys):
    """Runs the command again over a copy of the folder: its exit code, the files that changed, and what it printed."""
    folder = tmp_path / "cpu_quick"
    folder.mkdir()
    for path in checked[0].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    rates = Rates({"float32": 1e9, "bfloat16": 1e9}, 1e9, 1e9)
    monkeypatch.setattr(check, "measure_rates", lambda dtype: rates)
    monkeypatch.setattr(measure, "REPEATS", 3)

    def run(*arguments):
        before = read(folder)
        code = check.run(["check", *PATIENT, f"--out={tmp_path}", *arguments])
        after = read(folder)
        changed = {name for name in after if after[name] != before.get(name)}
        return code, changed, capsys.readouterr()

    return folder, run


def forget(path, name, implementation):
    values = json.loads(path.read_text())
    del values["passes"][name]["implementations"][implementation]
    path.write_text(json.dumps(values))


@pytest.mark.slow
def test_what_is_there_is_not_measured_again(in_process, monkeypatch):
    _, run = in_process
    monkeypatch.setattr(measure, "measure", None)
    monkeypatch.setattr(parity, "measure", None)
    code, changed, _ = run()
    assert code == 0 and not changed


@pytest.mark.slow
def test_it_goes_on_where_it_stopped(in_process, unchecked, monkeypatch):
    """An implementation that was not there before is measured, and nothing else of its case."""
    folder, run = in_process
    name = quick_cases()[-1].name
    forget(folder / f"{name}.json", "forward", "fused")
    before = read(folder)[name]["passes"]
    monkeypatch.setitem(IMPLEMENTATIONS, "fused", reference_attention)
    code, changed, printed = run(f"--only={name}")
    assert code == 0 and changed == {name, "summary"}, printed.err
    section = read(folder)[name]["passes"]["forward"]
    fused, tiled = (section["implementations"][implementation] for implementation in ("fused", "tiled"))
    assert fused["error"] < 2e-6 and tiled == before["forward"]["implementations"]["tiled"]
    for other, ms in (("tiled", tiled["median_ms"]), ("floor", section["floor_ms"])):
        assert section["ratios"][f"fused/{other}"] == pytest.approx(fused["median_ms"] / ms)
    assert read(folder)[name]["passes"]["forward_backward"]["implementations"]["fused"].keys() == {"absent"}


@pytest.mark.slow
def test_what_fails_as_a_whole_is_tried_twice(in_process, monkeypatch):
    folder, run = in_process
    name = quick_cases()[-1].name
    forget(folder / f"{name}.json", "forward", "tiled")

    def failing(*_):
        raise RuntimeError("lost\nat sea")

    monkeypatch.setattr(measure, "interleave", failing)
    run(f"--only={name}")
    summary = read(folder)["summary"]
    assert (summary["left_out"], summary["given_up"]) == ([name], [])
    _, _, printed = run(f"--only={name}")
    summary = read(folder)["summary"]
    assert (summary["left_out"], summary["given_up"]) == ([], [name])
    assert f"- {name} failed as a whole: RuntimeError: lost" in printed.out
    monkeypatch.setattr(measure, "measure", None)
    _, changed, _ = run(f"--only={name}")
    assert not changed


@pytest.mark.slow
def test_out_of_time_nothing_is_started_and_all_that_is_left_out_is_named(in_process, monkeypatch):
    folder, run = in_process
    kept, forgotten = quick_cases()[0].name, [case.name for case in quick_cases()[1:]]
    for name in forgotten:
        (folder / f"{name}.json").unlink()
    monkeypatch.setattr(measure, "measure", None)
    monkeypatch.setattr(parity, "measure", None)
    code, changed, printed = run("--minutes=0")
    summary = read(folder)["summary"]
    assert code == 0 and changed == {"summary"}
    assert summary["done"] == [kept] and summary["left_out"] == forgotten
    assert f"Not measured, or only in part: {', '.join(forgotten)}." in printed.out


@pytest.mark.slow
def test_an_implementation_that_computes_something_else_is_told(in_process, unchecked, monkeypatch):
    folder, run = in_process
    name = next(case.name for case in quick_cases() if isinstance(case, Parity) and case.dtype == "float32")
    (folder / f"{name}.json").unlink()
    wrong = lambda problem: reference_attention(dataclasses.replace(problem, scale=0.3))
    not_a_number = lambda problem: reference_attention(dataclasses.replace(problem, scale=np.nan))
    for implementation, function in {"fused": wrong, "tiled": not_a_number}.items():
        monkeypatch.setitem(IMPLEMENTATIONS, implementation, function)
    monkeypatch.setattr(parity, "TIMED", ("fused", "tiled", "reference", "none"))
    code, _, printed = run(f"--only={name}")
    found = read(folder)[name]["passes"]["forward_backward"]["implementations"]
    assert code == 1
    told = printed.err.strip().splitlines()
    assert told[0].startswith(f"disagrees with float64: {name}, forward_backward: fused, 0.") and len(told) == 2
    assert found["tiled"]["error"] is None and found["reference"]["agrees"]
    assert found["none"]["absent"].startswith('implementation="none": expected one of')


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((), "no TPU: JAX has cpu"),
        (("--quick", "--only=4d"), "--only=4d: no case has this in its name"),
        (("--quick", "--out=/dev/null/x"), "cpu_quick: Not a directory"),
        (("--minutes=-1",), "--minutes=-1"),
        (("stray",), 'unexpected argument "stray"'),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, message):
    assert check.run(["check", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and len(err.strip().splitlines()) == 1


def test_the_most_important_come_first():
    every = cases()
    names = [case.name for case in every]
    assert len(set(names)) == len(names)
    proof = {(case.shape, case.half, case.batch, case.heads, case.head_dim, case.dtype) for case in every[:4]}
    assert proof == {("2d64", 8, 8, 8, d, dtype) for d in (32, 64) for dtype in ("bfloat16", "float32")}
    assert all(isinstance(case, Parity) for case in every[4:12])
    timings = [case for case in every if isinstance(case, Timing)]
    assert {(case.shape, case.batch) for case in timings} >= {("2d32", 40), ("2d64", 8), ("2d256", 1), ("3d32", 1)}
    assert {case.head_dim for case in timings if case.shape == "1d65536"} == {8, 32, 64, 128}
    assert {case.shape for case in every[12:17]} == {"2d64", "2d32", "2d256", "3d32", "1d65536"}


@pytest.mark.parametrize("point", [Point("2d6x5", (6, 5), (2, 1)), Point("1d9", (9,), (3,))], ids=str)
def test_exact_values_are_those_of_the_reference(float64, point):
    arrays = make_inputs(point, 2, 2, 4, "float32")
    arrays = {name: jnp.asarray(np.asarray(array, np.float64)) for name, array in arrays.items()}
    exact = attend_exactly(arrays, point, positional=True)
    function = make_function("reference", point, backward=True)
    outputs, (gradients,) = jax.jit(function)(arrays, exact.cotangent)
    errors = exact.errors(outputs, gradients)
    assert len(errors) == 8 and max(errors.values()) < 1e-13
    assert min(np.abs(gradient).max() for gradient in exact.gradients.values()) > 1e-3
    errors = exact.errors(outputs, {**gradients, "sigma": 1.01 * gradients["sigma"]})
    assert errors["d sigma"] == pytest.approx(0.01, rel=1e-6)


def test_exact_values_without_positions(float64):
    point = Point("2d3x4", (3, 4), (1, 1))
    arrays = make_inputs(point, 2, 2, 4, "float32")
    exact = attend_exactly(arrays, point, positional=False)

    def attend(x):
        return jax.nn.dot_product_attention(x["query"], x["key"], x["value"])

    outputs, (gradients,) = jax.jit(one_pass(attend, backward=True))(arrays, exact.cotangent.astype(np.float32))
    errors = exact.errors(outputs, gradients)
    assert errors.keys() == {"outputs", "d query", "d key", "d value"} and max(errors.values()) < 1e-6


def test_floors_are_what_the_formula_says():
    point = Point("1d4", (4,), (1,))  # 10 pairs, 3 offsets in a span, 7 in all
    needed = work(point, 2, 3, 8, 2, backward=False)
    assert (needed.flops, needed.exps) == (6 * 8 * 60, 60)
    assert needed.bytes == 2 * (4 * 2 * 4 * 3 * 8 + 3 * 3 * 8)
    backward = work(point, 2, 3, 8, 2, backward=True)
    assert (backward.flops, backward.exps) == (22 * 8 * 60, 120)
    assert backward.bytes == 2 * needed.bytes + 2 * (3 * 2 * 4 * 3 * 8 + 7 * 3 * 8)
    peaks = PEAKS["NVIDIA H100 80GB HBM3"]
    seconds = needed.seconds(peaks, "bfloat16")
    assert seconds["arithmetic"] == pytest.approx(2880 / 989.4e12)
    assert seconds["bandwidth"] == pytest.approx(needed.bytes / 3.35e12)
    assert seconds["exp"] == pytest.approx(60 / (16 * 132 * 1.98e9))
