"""Attention with content scores alone, or with a relative bias, by the platform's own kernel if it supports the case.

  GPU  cuDNN's flash attention, by `jax.nn.dot_product_attention`
  TPU  the flash attention that comes with JAX

The first ran on an H100, without masks. The second was not run on a device here: tests check that programs are lowered
to it.
"""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from posattn_jax.axes import Query
from posattn_jax.ops import grid, scores
from posattn_jax.ops.attention import support
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.xla.loop import ACCELERATOR_SCORE_BYTES

# The block of queries, and of keys, of the kernel for TPUs.
TPU_BLOCK = 128
UNSUPPORTED = (
    "no contents",
    "relative vectors",
    "a span",
    *support.LOCAL,
    support.CUT,
    support.CAUSAL_AXES,
    "segment_ids",
)


def supports(problem: Problem) -> str | None:
    """The reason why the platform's kernel cannot compute a problem; None if it can."""
    backend, bias = jax.default_backend(), problem.relative_bias
    b, n, h, _ = problem.query.shape
    by_pair = (0 if bias is None else h) + (0 if problem.key_mask is None else b)  # cuDNN reads bias and mask by pair
    of_platform = {
        f"the platform {backend}": backend not in ("gpu", "tpu"),
        "several devices": backend == "tpu" and is_shared_out(),
        f"{n} positions, no whole blocks": backend == "tpu" and n % TPU_BLOCK != 0,
        "a number for every offset": backend == "tpu" and bias is not None,
        "memory": backend == "gpu" and by_pair * n * n * 2 > ACCELERATOR_SCORE_BYTES,
    }
    found = support.supports(UNSUPPORTED, problem) or next((name for name, found in of_platform.items() if found), None)
    if found is None and backend == "gpu":
        try:
            jax.eval_shape(jax.grad(lambda query: _on_gpu(problem, query).sum().astype(float)), problem.query)
        except (NotImplementedError, RuntimeError, ValueError) as error:  # dtypes and sizes that cuDNN does not take
            found = str(error)
    return found


def is_shared_out() -> bool:
    """Whether the compiler would partition the traced program over several devices; it cannot partition a kernel.

    That is not so inside a `jax.shard_map` over all axes of the mesh.
    """
    kinds = jax.sharding.get_abstract_mesh().axis_types
    return jax.device_count() > 1 and not (kinds and all(kind == AxisType.Manual for kind in kinds))


def platform_attention(problem: Problem) -> tuple[Query, None]:
    """Outputs [b t h d] of a problem that is supported."""
    assert problem.key is not None
    mask, bias = problem.key_mask, problem.relative_bias
    query = problem.content_queries(problem.query).astype(problem.key.dtype)
    attend = _on_tpu if jax.default_backend() == "tpu" else _on_gpu
    outputs = attend(problem, query)
    # A query that may attend to no key has outputs 0.
    if bias is not None:
        attended = scores.shown(_bias_of_pairs(problem))
        attended = attended if mask is None else attended & mask[:, None, None]
        attended = jnp.tril(attended) if problem.is_causal else attended
        outputs = jnp.where(attended.any(-1).swapaxes(1, 2)[..., None], outputs, 0)
    elif mask is not None:
        attended = jnp.cumsum(mask, axis=1) > 0 if problem.is_causal else mask.any(axis=1, keepdims=True)
        outputs = jnp.where(attended[:, :, None, None], outputs, 0)
    return outputs.astype(problem.value.dtype), None


def _bias_of_pairs(problem):
    """beta of every pair: [1 h t s]."""
    return jnp.moveaxis(grid.toeplitz(problem.relative_bias, problem.grid_shape), -1, 0)[None]


def _on_gpu(problem, query):
    b, n, mask = *query.shape[:2], problem.key_mask
    bias = None
    if problem.relative_bias is not None:
        lowest = float(jnp.finfo(query.dtype).min)  # float16 has no room for the scores that hide
        bias = jnp.maximum(_bias_of_pairs(problem), lowest).astype(query.dtype)
    if mask is not None:
        mask = jnp.broadcast_to(mask[:, None, None, :], (b, 1, n, n))
    options = {"bias": bias, "mask": mask, "is_causal": problem.is_causal, "scale": problem.scaling}
    return jax.nn.dot_product_attention(query, problem.key, problem.value, **options, implementation="cudnn")


def _on_tpu(problem, query):
    from jax.experimental.pallas.ops.tpu import flash_attention as tpu

    mask, heads_first = (
        problem.key_mask,
        (x.swapaxes(1, 2) for x in (query, problem.repeated_key, problem.repeated_value)),
    )
    segments = None if mask is None else tpu.SegmentIds(jnp.ones_like(mask, jnp.int32), mask.astype(jnp.int32))
    options = {"segment_ids": segments, "causal": problem.is_causal, "sm_scale": problem.scaling}
    return tpu.flash_attention(*heads_first, **options).swapaxes(1, 2)
