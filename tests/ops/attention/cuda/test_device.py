"""The instructions of the GPU kernels on a CPU: what they compute, and which mistakes of a kernel they find."""

import pathlib
import re
import signal
import subprocess

import numpy as np
import pytest

from posattn_jax.ops.attention.cuda import library
from posattn_jax.system.compiler import find_compiler

SOURCE = pathlib.Path(__file__).parent / "device_check.cc"
ORDERS = ("forwards", "backwards")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    try:
        compiler = find_compiler()
    except RuntimeError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("device")
    options = ("-std=c++17", "-O1", "-pthread", "-DLANES", f"-I{library.SOURCES}")
    subprocess.run([compiler, *options, str(SOURCE), "-o", str(folder / "check")], check=True)

    def call(name, order):
        command = [str(folder / "check"), name, order]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)

    return call


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["product", "matrices", "messages", "copies", "numbers"])
def test_computes(run, name, order):
    done = run(name, order)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("order", ORDERS)
def test_barriers_and_sums_of_blocks(run, order):
    done = run("barriers", order)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(numbers(done)[:14], [256, 64] * 6 + [0, 0])


def numbers(done):
    return np.array(done.stdout.split(), float)


@pytest.mark.parametrize("name", ["no barrier", "no warp barrier"])
def test_a_missing_barrier_shows_in_one_order(run, name):
    right = [(numbers(run(name, order)) == 1).all() for order in ORDERS]
    assert not all(right)


@pytest.mark.parametrize(
    "name, message",
    [
        ("lines", r"lane 0 of warp 0 .*sync_warp, .*; lane 9 of warp 0 .*sync_warp"),
        ("names", r"lane 0 of warp 0 .*shuffle_xor, .*; lane 9 of warp 0 .*ballot"),
        ("lane ends", r"lane 0 of warp 2 .*sync_warp, .*; lane 9 of warp 2 .*its end"),
        ("warp ends", r"warp 0 .*sync_block, .*; lane 31 of warp 2 .*its end"),
        ("warp in a loop", r"lane 0 of warp 0 .*warp, .*; lane 8 of warp 0 .*its end"),
        ("block or warp", r"lane 0 of warp 2 .*sync_block, .*; lane 3 of warp 2 .*sync_warp"),
        ("beyond", "behind the shared memory"),
        ("copy beyond", "copy_async .*byte 4096 of 4096"),
        ("number beyond", "copy_number_async .*byte 4096 of 4096"),
        ("skewed", "add2 of .*aligned to 8"),
    ],
)
def test_aborts(run, name, message):
    done = run(name, "forwards")
    assert done.returncode == -signal.SIGABRT
    assert re.search(message, done.stderr), done.stderr
