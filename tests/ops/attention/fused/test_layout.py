"""What the fused kernels share."""

import ast
import functools
import pathlib

import jax.numpy as jnp
import pytest

import posattn_jax
from posattn_jax.ops.attention import relative_attention
from posattn_jax.ops.attention.fused import layout


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def test_kernels_alone_import_pallas():
    """import-linter sees no submodules of libraries."""
    package = pathlib.Path(posattn_jax.__file__).parent
    users = {path for path in package.rglob("*.py") if any("pallas" in name for name in imported(path))}
    yardstick = package / "benchmarks" / "tpu_program.py"  # JAX's own kernel
    assert yardstick in users
    assert all(path.is_relative_to(package / "ops" / "attention" / "fused") for path in users - {yardstick})


@pytest.mark.parametrize("capability, needs", [(layout.HOPPER, "GPU_NEEDS"), ("8.9", "MMA_NEEDS")])
def test_a_jax_that_is_too_old_is_refused(monkeypatch, capability, needs):
    x = jnp.ones((1, 4, 2, 8))
    monkeypatch.setattr(layout, needs, (99, 1))
    monkeypatch.setitem(layout.KERNELS, "cpu", functools.partial(layout.for_gpu, capability=capability))
    told = rf"on a GPU of compute capability {capability} needs jax 99.1 or newer: \d+\.\d+[.\d]* is installed$"
    with pytest.raises(ValueError, match=told):
        relative_attention(x, x, x, grid_shape=(4,), implementation="fused")


def test_a_platform_without_kernels_is_refused():
    x = jnp.ones((1, 4, 2, 8))
    with pytest.raises(ValueError, match=r'no kernel for platform "cpu": expected one of gpu, tpu'):
        relative_attention(x, x, x, grid_shape=(4,), implementation="fused")
