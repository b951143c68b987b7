"""The benchmark as a user runs it, small."""

import json

import jax
import numpy as np
import pytest

from posattn_jax.benchmarks import attention, timing
from posattn_jax.benchmarks.roofline import Rates
from posattn_jax.benchmarks.shapes import Point
from posattn_jax.benchmarks.table import number
from posattn_jax.ops.attention.api import IMPLEMENTATIONS

SMALL = ("--repeats=3", "--batch=1", "--heads=2", "--head_dim=2")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("benchmark")
    arguments = ("--shapes=1d16,2d4,1d8", "--spans=.2", "--window=3", "--implementations=dense,reference")
    assert attention.run(["attention", *SMALL, *arguments, "--backward", f"--out={out}"]) == 0
    return out, json.loads((out / "results.json").read_text())


@pytest.mark.slow
def test_every_point_is_measured(measured):
    _, results = measured
    halves = [(point["shape"], tuple(point["half"])) for point in results["points"]]
    expected = {"1d16": [(3,)], "2d4": [(1, 1), (3, 3)], "1d8": [(1,), (3,)]}
    assert halves == [(shape, half) for shape, of_shape in expected.items() for half in of_shape]
    assert set(results["versions"]) == {"jax", "jaxlib", "numpy", "python"}
    assert results["options"]["spans"] == [".2"]
    assert min(results["rates"]["flops_per_second"].values()) > 0


@pytest.mark.slow
def test_figures_add_up(measured):
    _, results = measured
    for point in results["points"]:
        assert list(point["passes"]) == ["forward", "forward_backward"]
        for passed in point["passes"].values():
            times = {name: values["median_ms"] for name, values in passed["implementations"].items()}
            assert passed["roofline_ms"] > 0
            best = min(times["dense"], times["reference"])
            for name, values in passed["implementations"].items():
                assert values["repeats"] == 3
                assert values["quartiles_ms"][0] <= times[name] <= values["quartiles_ms"][1]
                assert min(times[name], values["compile_seconds"], values["temp_mib"]) > 0
                assert values["speed_up"] == pytest.approx(best / times[name])
                fewer = point["pairs"] / point["num_positions"] ** 2
                assert values["efficiency"] == pytest.approx(best / times[name] * fewer)
                assert values["ns_per_pair"] == pytest.approx(times[name] * 1e6 / (2 * point["pairs"]))
        roofline = [passed["roofline_ms"] for passed in point["passes"].values()]
        assert roofline[1] > 2 * roofline[0]


@pytest.mark.slow
def test_figures_are_drawn(tmp_path, monkeypatch, roughly_drawn):
    monkeypatch.setattr(attention, "measure_rates", lambda dtype: Rates({dtype: 1.0}, 1.0, 1.0))
    arguments = ("--shapes=1d16,1d8", "--spans=.2", "--window=3", "--layouts=dense,reference")
    assert attention.run(["attention", *SMALL, *arguments, f"--out={tmp_path}"]) == 0
    names = {"time", "memory", "size_1d_half_3"}
    assert {path.name for path in tmp_path.iterdir()} == {"results.json"} | {
        f"{name}.{suffix}" for name in names for suffix in ("png", "svg")
    }


def test_an_implementation_that_fails_is_skipped_with_its_reason(capsys, monkeypatch):
    def failing(problem):
        raise ValueError('implementation="reference" does not support anything')

    monkeypatch.setitem(IMPLEMENTATIONS, "reference", failing)
    monkeypatch.setattr(attention, "measure_rates", lambda dtype: Rates({dtype: 1.0}, 1.0, 1.0))
    arguments = ("--shapes=1d4", "--spans=1", "--implementations=reference,dense", "--static")
    assert attention.run(["attention", *SMALL, *arguments]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:] if line}
    assert rows["reference"] == '  reference skipped: implementation="reference" does not support anything'
    assert rows["dense"].split()[4] == "1.00"


@pytest.mark.parametrize("static", [False, True])
def test_gradients_are_those_of_all_arrays(static):
    point = Point("1d4", (4,), (2,))
    arrays = attention.make_inputs(point, 1, 2, 2, "float32")
    traced = {name: array for name, array in arrays.items() if name != "sigma" or not static}
    function = attention.make_function("dense", point, arrays, backward=True, static=static)
    outputs, (gradients,) = jax.eval_shape(function, traced, arrays["query"])
    assert outputs.shape == arrays["query"].shape
    assert {name: gradient.shape for name, gradient in gradients.items()} == {
        name: array.shape for name, array in traced.items()
    }


def test_what_needs_too_much_memory_is_skipped():
    with pytest.raises(timing.Skipped, match=r"3.*e-05 GiB, .*--memory_limit_gib=1e-05"):
        timing.prepare(lambda x: (x @ x) @ x, (np.ones((100, 100), np.float32),), 1e-5)


def test_long_runs_are_repeated_less():
    programs = [timing.Program(lambda: None, 0.0, 0, warm_up_seconds) for warm_up_seconds in (2.0, 0.5)]
    assert [len(times) for times in timing.interleave(programs, 15, 20.0)] == [8, 8]
    assert [len(times) for times in timing.interleave(programs, 15, 1.0)] == [3, 3]
    assert [len(times) for times in timing.interleave(programs, 15, 100.0)] == [15, 15]
    assert timing.interleave([], 15, 100.0) == []


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--shapes=2d", "--shapes=2d"),
        ("--shapes=4d2", "--shapes=4d2: "),
        ("--shapes=3d4x4", "--shapes=3d4x4: 2 sizes for 3 dimensions"),
        ("--shapes=2d1", "--shapes=2d1"),
        ("--shapes=2d0", "--shapes=2d0"),
        ("--shapes=", "--shapes is empty"),
        ("--spans=wide", "--spans=wide"),
        ("--spans=.5,0", "--spans=0: expected half-spans"),
        ("--spans=nan", "--spans=nan: expected half-spans"),
        ("--spans=1.1", "--spans=1.1: expected half-spans"),
        ("--layouts=dense,dance", "--implementations=dance: expected some of auto, "),
        ("--window=0", "--window=0"),
        ("--batch=0", "--batch=0"),
        ("--dtype=int8", "--dtype=int8"),
        ("--seconds=-1", "flag --seconds=-1: "),
        ("--seconds=inf", "--seconds=inf: expected a finite number"),
        ("--memory_limit_gib=nan", "--memory_limit_gib=nan: expected a finite number"),
        ("--shape=1d4", "Unknown command line flag 'shape'"),
        ("stray", 'unexpected argument "stray"'),
        ("--out=/dev/null/x", "--out=/dev/null/x: Not a directory"),
    ],
)
def test_bad_input_is_one_line(capsys, argument, message):
    assert attention.run(["attention", argument]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.strip().splitlines()) == 1, err


def test_help(capsys):
    with pytest.raises(SystemExit) as ended:
        attention.run(["attention", "--help"])
    assert ended.value.code == 0
    assert "--memory_limit_gib" in capsys.readouterr().out


@pytest.mark.parametrize(
    "value, text",
    [(None, "-"), (0.0, "0"), (0.01234, "0.0123"), (1.0, "1.00"), (98.76, "98.8"), (12345.6, "12,346")],
)
def test_number(value, text):
    assert number(value) == text
