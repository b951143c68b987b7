"""The check and the timing of the kernels for GPUs, on the lanes of a CPU."""

import json
import math
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.cpu import rivals
from benchmarks.device import gpu_kernels, gpu_problems
from benchmarks.device.gpu_kernels import CASES, Case
from posattn_jax.benchmarks.timing import Skipped
from posattn_jax.ops import span
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import cache_folder

ROOT = pathlib.Path(__file__).parents[2]
FIRST = {"init_s": 1.0, "first_call_s": 2.0, "first_gradient_s": 3.0, "kernels": True}
QUICK = ("gpu_kernels", "--quick")


@pytest.fixture
def small(monkeypatch):
    """One problem and one case, of one rival, and no layer."""
    monkeypatch.setattr(gpu_kernels, "first_calls", lambda shape: FIRST)
    monkeypatch.setattr(
        gpu_kernels, "QUICK", {"one": gpu_problems.Problem("1d9", 2, 5, "bfloat16", gpu_problems.CONTENT)}
    )
    monkeypatch.setattr(gpu_kernels, "QUICK_CASES", (Case("1d9", 2, 1, 5, "float32", ("cudnn",)),))
    return monkeypatch


def test_what_is_measured(small, tmp_path, capsys):
    assert gpu_kernels.run([*QUICK, f"--out={tmp_path}"]) == 0
    found = json.loads((tmp_path / "cpu_quick" / "kernels.json").read_text())
    assert found["device"] == "cpu" and found["versions"]["jax"] == jax.__version__ and found["first"] == FIRST
    problem = found["problems"]["one"]
    assert problem["errors"].keys() == {"outputs", "query", "key", "value", "content_bias", "sigma"}
    assert problem["agrees"] and 0 < problem["error"] == max(problem["errors"].values()) < 2e-2
    (row,) = found["times"]
    assert 0 < row["forward_ms"] < row["forward_backward_ms"] and row["temporary_mib"] > 0
    assert row["rivals"]["cudnn"]["absent"] and not found["left_out"]
    printed = capsys.readouterr().out
    assert "init 1.0 s, first_call 2.0 s, first_gradient 3.0 s, with a compiled kernel" in printed
    assert "| one | " in printed and "- cudnn is absent from 1d9: " in printed
    assert gpu_kernels.run(["gpu_kernels", f"--show={tmp_path / 'cpu_quick' / 'kernels.json'}"]) == 0
    assert capsys.readouterr().out.strip() in printed


def test_what_disagrees_and_what_is_left_out(small, tmp_path, capsys):
    def compare(problem, implementation):
        if implementation == "window":
            raise ValueError("not this one\nat all")
        return {"outputs": 1e-4, "key": math.nan}

    small.setattr(gpu_problems, "compare", compare)
    for implementation, told in (
        ("fused", "| one | **no number** | key |"),
        ("window", "| one | **not this one** | - |"),
    ):
        options = (f"--implementation={implementation}", "--minutes=0", f"--out={tmp_path}")
        assert gpu_kernels.run([*QUICK, *options]) == 1
        printed = capsys.readouterr()
        assert told in printed.out and "no time was left for 1d9, half-span 2" in printed.out
        assert printed.err == "disagrees with reference: one\n"


@pytest.mark.slow
def test_the_launcher(tmp_path):
    """All of it, on tiny shapes."""
    command = [ROOT / "launch" / "gpu_check.sh", "--quick", f"--out={tmp_path}"]
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "cpu_quick" / "kernels.json").read_text())
    assert found["problems"].keys() == gpu_problems.QUICK.keys() and min(map(bool, found["first"].values())) == 0
    assert found["times"][0]["rivals"]["dense"]["forward_ms"] > 0


@pytest.mark.parametrize("name", ["2-D, a covariance", "2-D, beta, masks", "1-D, causal, no span"])
def test_the_problems_are_what_their_names_say(name):
    problem = gpu_problems.PROBLEMS[name]
    arrays, options = gpu_problems.make_arrays(problem)
    shape = options["grid_shape"]
    assert arrays.keys() == {"query", "value", *problem.parts, *(() if problem.half is None else ("sigma",))}
    assert {x.dtype for field, x in arrays.items() if field != "sigma"} == {jnp.dtype(problem.dtype)}
    given = {field: jnp.asarray(x) if isinstance(x, np.ndarray) else x for field, x in options.items()}
    del given["threshold"]
    bound = given.pop("span_bound", tuple(size - 1 for size in shape))
    made = Problem(**{"key": None} | arrays, **given)
    assert made.static_half == bound
    assert f"{len(shape)}-D" in name


def test_the_problems_cover_what_a_user_may_ask():
    problems = gpu_problems.PROBLEMS.values()
    assert {each.d for each in problems} == {5, 8, 32, 64, 128, 256}
    assert {each.dtype for each in problems} == {"float32", "bfloat16"}


@pytest.mark.parametrize("case", [CASES[0], CASES[-1]], ids=str)
def test_a_case(case, monkeypatch):
    monkeypatch.setattr(gpu_kernels, "HEADS", 2)
    small = case._replace(batch=1, head_dim=1)
    arrays = gpu_kernels.make_arrays(small)
    shapes = gpu_kernels.shapes_of(small)
    assert {name: (x.shape, x.dtype) for name, x in shapes.items()} == {
        name: (x.shape, x.dtype) for name, x in arrays.items()
    }
    if case.half is None:
        assert "sigma" not in arrays and case.window is None
    else:
        half = span.half_span(arrays["sigma"], gpu_kernels.THRESHOLD, case.point.grid_shape)
        assert (np.asarray(half) == case.window).all() and half.shape == (2, len(case.window))
    assert all(each.computed >= each.batch * 2 * each.point.pairs for each in CASES)


def test_a_fresh_machine(monkeypatch):
    for before in ("/before", None):
        monkeypatch.setenv("XDG_CACHE_HOME", before) if before else monkeypatch.delenv("XDG_CACHE_HOME")
        with gpu_kernels.fresh_machine():
            folder = cache_folder().parent
            assert folder.is_dir() and not list(folder.iterdir()) and not jax.config.jax_enable_compilation_cache
        assert os.environ.get("XDG_CACHE_HOME") == before and jax.config.jax_enable_compilation_cache
        assert not folder.exists()


def test_without_pytorch(tmp_path):
    (tmp_path / "python").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    python, told = str(tmp_path / "python"), "no PyTorch with a GPU"
    with gpu_kernels.with_torch(python) as torch, pytest.raises(Skipped, match=told):
        gpu_kernels.run_flex(CASES[0], torch)
    with pytest.raises(InputError, match="--torch=/no/python: it cannot be run"), gpu_kernels.with_torch("/no/python"):
        pass


def test_time_of_a_call(monkeypatch):
    calls = []
    assert gpu_kernels.milliseconds(lambda: calls.append(1) or jnp.ones(()), most=3) >= 0
    assert len(calls) == 1 + 2 + 5 * 3


def test_flex_attention_is_asked_for_the_window():
    asked = []

    class Torch(rivals.Torch):
        def __init__(self):
            pass

        def ask(self, what, case):
            asked.append((what, case["backward"], case["half"], case["positions"]))
            return {"seconds": 0.25}

    assert gpu_kernels.run_flex(CASES[0], Torch()) == {"forward_ms": 250, "forward_backward_ms": 250}
    assert asked[0] == ("prepare", False, (8, 8), False) and asked[-1] == ("run", True, (8, 8), False)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((), "no GPU: JAX has cpu"),
        (("--quick", "--only=4d"), "--only=4d"),
        (("--minutes=-1",), "--minutes=-1"),
        (("--show=/no/such",), "--show=/no/such: no such file"),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, message):
    assert gpu_kernels.run(["gpu_kernels", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and len(err.strip().splitlines()) == 1
