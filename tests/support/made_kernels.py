"""Kernels that a trial has to see through: each is called with a `Problem`, as `fused_attention` is."""

import time

import jax

from posattn_jax.ops.attention.select import native_attention
from posattn_jax.ops.attention.xla.dense import RowLoop
from posattn_jax.ops.attention.xla.loop import run_loops
from posattn_jax.ops.attention.xla.tiled import window_loops

SECONDS = 0.05  # that the slow one waits


def right(problem):
    """Faster than the implementations that it is timed against."""
    return native_attention(problem)


def wrong(problem):
    """Right forward, and the gradient of the values is half of what it is."""
    outputs, weights = right(problem)
    return outputs + 0.5 * (jax.lax.stop_gradient(outputs) - outputs), weights


def slow(problem):
    outputs, weights = run_loops(problem, window_loops(problem), RowLoop)
    one = jax.lax.stop_gradient(outputs[0, 0, 0, 0])
    waits = jax.pure_callback(_wait, jax.ShapeDtypeStruct((), one.dtype), one)
    return outputs + waits, weights


def _wait(x):
    time.sleep(SECONDS)
    return 0 * x


def refusing(problem):
    raise ValueError("no such instruction")


def hanging(problem):
    time.sleep(600)
