"""What the fused kernels share."""

import ast
import pathlib

import jax.numpy as jnp
import pytest

import posattn_jax
from posattn_jax.ops.attention import relative_attention


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
    attention = package / "ops" / "attention"
    ours = users - {attention / "platform.py"}  # which has JAX's own for content scores
    assert ours and all(path.is_relative_to(attention / "tpu") for path in ours)


def test_a_platform_without_kernels_is_refused():
    x = jnp.ones((1, 4, 2, 8))
    with pytest.raises(ValueError, match=r'platform "cpu": .*gpu, tpu'):
        relative_attention(x, x, x, grid_shape=(4,), implementation="fused")
