"""Trials of the fused kernel: every outcome, with kernels that are made for it."""

import json
import logging
import pathlib
import sys

import jax
import jax.numpy as jnp
import pytest

from posattn_jax.benchmarks import selfcheck
from posattn_jax.ops.attention import relative_attention, select
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.tpu import trial, verdict
from posattn_jax.ops.attention.xla.reference import reference_attention
from posattn_jax.system.errors import InputError
from tests.support import made_kernels
from tests.support.slow import slow

ARRAYS = ("key", "sigma")
ALL = (*ARRAYS, "relative_encoding", "content_bias", "position_bias", "relative_bias", "key_mask")
ROOT = pathlib.Path(__file__).parents[4]


def case(kernel, **changes):
    fields = {"grid_shape": (16,), "half": (2,), "num_heads": 2, "head_dim": 8, "dtype": "float32"}
    return verdict.Case(**(fields | {"arrays": ARRAYS, "kernel": f"tests.support.made_kernels:{kernel}"} | changes))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(verdict, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(selfcheck, "cache_folder", lambda: tmp_path)
    verdict._outcome.cache_clear()
    return tmp_path


def test_a_kernel_that_is_wrong_or_refuses():
    wrong = trial.judge(case("wrong"))
    assert wrong.outcome == "wrong" and "is off by" in wrong.reason and "outputs" not in wrong.reason
    refused = trial.judge(case("refusing"))
    assert refused == verdict.Verdict("refused", "ValueError: no such instruction")


@pytest.mark.slow
@pytest.mark.parametrize("arrays", [ARRAYS, pytest.param(ALL, marks=pytest.mark.slow)], ids=len)
def test_a_kernel_that_is_right_is_trusted_where_it_is_fast(monkeypatch, arrays):
    taken = iter((2.0, 3.0, 3.0, 2.0))  # the kernel, the other implementations; and again
    monkeypatch.setattr(trial, "_milliseconds", lambda each, implementation: next(taken))
    asked = case("right", grid_shape=(16, 16), half=(2, 2), arrays=arrays)
    assert trial.judge(asked) == verdict.Verdict("trusted", "2 ms, the other implementations 3", 2.0, 3.0)
    assert trial.judge(asked) == verdict.Verdict("slower", "3 ms, the other implementations 2", 3.0, 2.0)


def test_what_a_kernel_takes_is_timed():
    assert trial._milliseconds(case("slow"), made_kernels.slow) > 1e3 * made_kernels.SECONDS


def other_process(tmp_path, monkeypatch, program):
    """Another Python, which runs this program instead of the trial."""
    (tmp_path / "python").write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{program}")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(verdict.sys, "executable", str(tmp_path / "python"))
    return lambda seconds=60.0: verdict.tried(case("right"), verdict.machine(), seconds)


def begun(machine):
    return f"print({json.dumps(json.dumps({verdict.BEGUN: machine}))}, flush=True)\n"


@pytest.mark.parametrize(
    "program, reason",
    [
        ("sys.exit('ModuleNotFoundError: No module named jax')", "ModuleNotFoundError: No module named jax"),
        ("sys.exit(3)", "exit code 3"),
        ("os.kill(os.getpid(), 9)", "exit code -9"),
        ("os.kill(os.getpid(), 11)", "exit code -11"),
        ("time.sleep(60)", "no answer after 1 s, and no start"),
    ],
)
def test_a_process_that_does_not_start_is_no_verdict(tmp_path, monkeypatch, program, reason):
    trying = other_process(tmp_path, monkeypatch, program)
    assert trying(1.0 if "sleep" in program else 60.0) == verdict.Verdict(verdict.UNDECIDED, reason)


@pytest.mark.parametrize(
    "program, outcome, reason",
    [
        ("time.sleep(60)", "hung", "no answer after 1 s"),
        ("os.kill(os.getpid(), 11)", "refused", "exit code -11"),  # the kernel has ended its process
        ("os.kill(os.getpid(), 9)", verdict.UNDECIDED, "exit code -9"),  # somebody else has: too little memory
    ],
)
def test_a_kernel_that_hangs_or_ends_its_process(tmp_path, monkeypatch, program, outcome, reason):
    trying = other_process(tmp_path, monkeypatch, begun(verdict.machine()) + program)
    assert trying(1.0 if "sleep" in program else 60.0) == verdict.Verdict(outcome, reason)


def test_a_process_without_the_device_is_no_verdict(tmp_path, monkeypatch):
    """Another process has it, and jax takes the CPU instead."""
    program = begun(verdict.machine() | {"device": "another"}) + f'print(\'{{"{verdict.VERDICT}": ["refused", ""]}}\')'
    found = other_process(tmp_path, monkeypatch, program)()
    assert found == verdict.Verdict(verdict.UNDECIDED, "the other process has another, not cpu")


def test_there_is_no_other_process(monkeypatch):
    monkeypatch.setattr(verdict.sys, "executable", "/nowhere/python")
    found = verdict.tried(case("right"), verdict.machine())
    assert found.outcome == verdict.UNDECIDED and "/nowhere/python" in found.reason


@pytest.mark.parametrize(
    "message, outcome",
    [
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.", verdict.UNDECIDED),
        slow("INTERNAL: CUDA_ERROR_OUT_OF_MEMORY: out of memory", verdict.UNDECIDED),
        slow("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.", verdict.UNDECIDED),
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem.", "refused"),
        slow("RESOURCE_EXHAUSTED: Shared memory size limit exceeded", "refused"),
    ],
)
def test_a_full_device_is_no_verdict(monkeypatch, message, outcome):
    def kernel(problem):
        raise RuntimeError(message)

    monkeypatch.setattr(made_kernels, "refusing", kernel)
    assert trial.judge(case("refusing")) == verdict.Verdict(outcome, f"RuntimeError: {message}")


def test_what_fails_before_the_kernel_is_no_verdict(monkeypatch):
    begins = []
    found = trial.judge(case("right")._replace(kernel="tests.support.no_such_module:kernel"), lambda: begins.append(1))
    assert found.outcome == verdict.UNDECIDED and "ModuleNotFoundError" in found.reason

    def failing(problem):
        raise ValueError("of the other implementations")

    monkeypatch.setattr(trial, "_other_implementations", failing)
    assert trial.judge(case("right"), lambda: begins.append(1)).outcome == verdict.UNDECIDED
    assert not begins


@pytest.mark.slow
def test_a_process_of_its_own_gives_the_verdict(tmp_path, monkeypatch):
    """It imports what is importable here, though only `sys.path` says where it is."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "only_here.py").write_text("def kernel(problem):\n    raise ValueError('no such instruction')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert verdict.machine_apart() == verdict.machine()
    found = verdict.tried(case("refusing")._replace(kernel="only_here:kernel"), verdict.machine())
    assert found == verdict.Verdict("refused", "ValueError: no such instruction")


def test_what_is_undecided_is_not_kept(folder):
    undecided = verdict.Verdict(verdict.UNDECIDED, "exit code 3")
    assert verdict.save(case("right"), undecided, verdict.machine()) == undecided
    assert not list(folder.rglob("*.json"))


def test_a_verdict_is_kept_and_told_once(folder, caplog):
    assert verdict._outcome(case("right")) is None  # not tried: a second process cannot have the device
    verdict.save(case("right"), verdict.Verdict("slower", "3 ms, and 2"), verdict.machine())
    verdict._outcome.cache_clear()  # as in another process
    with caplog.at_level(logging.WARNING):
        assert [verdict._outcome(case("right")) for _ in range(2)] == ["slower"] * 2
    (told,) = caplog.messages
    assert "which is slower here (3 ms, and 2)" in told and str(folder) in told
    kept = json.loads(next(folder.rglob("*.json")).read_text())
    assert kept["case"]["grid_shape"] == [16] and kept["jax"] == jax.__version__
    next(folder.rglob("*.json")).write_text("{")  # half written
    verdict._outcome.cache_clear()
    assert verdict._outcome(case("right")) is None


def test_a_case_of_a_problem():
    x = jnp.ones((1, 5 * 12, 2, 8), jnp.bfloat16)
    problem = Problem(query=x, key=x, value=x, grid_shape=(5, 12), sigma=jnp.array([0.3, 0.1]), is_causal=True)
    found = verdict.case_of(problem)
    assert found == verdict.Case((8, 16), (4, 4), 2, 8, "bfloat16", ("key", "sigma"), False, "multiply", True)


@pytest.mark.parametrize("outcome", ["trusted", "wrong", None])
def test_auto_has_the_kernel_where_it_is_trusted(monkeypatch, outcome):
    """With another implementation in the kernel's place, of a platform that has one."""
    used = []
    monkeypatch.setattr(verdict, "PLATFORMS", ("cpu",))
    monkeypatch.setattr(verdict, "for_tpu", lambda problem: None)
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    monkeypatch.setattr(select, "is_native", lambda: False)
    monkeypatch.setattr(verdict, "_outcome", lambda case: outcome)
    monkeypatch.setattr(select, "fused_attention", lambda problem: used.append(1) or reference_attention(problem))
    x = jnp.ones((1, 8, 2, 8))
    jax.eval_shape(lambda x: relative_attention(x, x, x, grid_shape=(8,), sigma=jnp.array([0.1])), x)
    assert bool(used) == (outcome == "trusted")
    monkeypatch.setenv(verdict.VARIABLE, "0")
    used.clear()
    jax.eval_shape(lambda x: relative_attention(x, x, x, grid_shape=(8,), sigma=jnp.array([0.2])), x)
    assert not used


def test_several_devices_have_it_each_for_its_own(monkeypatch):
    """The compiler cannot share out a kernel: where it would have to, "auto" does without."""
    monkeypatch.setattr(verdict, "PLATFORMS", ("cpu",))
    monkeypatch.setattr(verdict, "for_tpu", lambda problem: None)
    x, found = jnp.ones((8, 8, 2, 8)), []

    def attend(x):
        found.append(verdict.supports(Problem(query=x, key=x, value=x, grid_shape=(8,), sigma=jnp.array([0.1]))))
        return x

    by_example = jax.sharding.PartitionSpec("data")
    for axes, cut, expected in (("data",), {"data"}, None), (("data", "model"), {"data"}, "several devices"):
        kinds = (jax.sharding.AxisType.Auto,) * len(axes)
        mesh = jax.make_mesh((4, 2)[: len(axes)], axes, axis_types=kinds, devices=jax.devices()[: 4 * len(axes)])
        options = {"in_specs": by_example, "out_specs": by_example, "axis_names": cut, "check_vma": False}
        with jax.set_mesh(mesh):
            jax.eval_shape(jax.shard_map(attend, **options), x)
            jax.eval_shape(attend, x)
        assert found == [expected, "several devices"]
        found.clear()


def test_the_command(monkeypatch, capsys):
    argv = ["selfcheck", "--shapes=1d16", "--half=2", "--heads=1", "--head_dims=8", "--dtypes=float32"]
    verdicts = iter([verdict.Verdict("slower", "3 ms, and 2"), verdict.Verdict("trusted", "1 ms, and 2", 1.0, 2.0)])
    monkeypatch.setattr(verdict, "tried", lambda case, machine, seconds: next(verdicts))
    monkeypatch.setattr(verdict, "machine_apart", verdict.machine)
    for renew, outcome in (((), "slower"), ((), "slower"), (("--renew",), "trusted")):
        assert selfcheck.main([*argv, *renew], platforms=("cpu",)) == 0
        assert f"16, half-span 2, 1 heads of 8, float32:\n  {outcome} (" in capsys.readouterr().out
    with pytest.raises(InputError, match="no fused kernel for platform cpu"):
        selfcheck.main(argv)
    with pytest.raises(InputError, match="--dtypes=int8"):
        selfcheck.main([*argv, "--dtypes=int8"])
