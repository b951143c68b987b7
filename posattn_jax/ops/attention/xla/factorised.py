"""Attention by "factorised": sinusoidal relative encodings without a span, as dot products with more features per head.

Sinusoids of s - t are those of s, rotated by t. So the score of query t with the encoding of an offset equals the score
of its features, rotated by t, with the sinusoids of the key's position:

  q_t . E_{s-t} = (W q_t) . S(s - t) + q_t . b = (rotate_t W q_t) . S(s) + q_t . b

The last term is the same for every key, so the softmax cancels it. The implementation needs the `Factors` of E.
Source: ours; the rotation is that of rotary encodings (Su 2021).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from posattn_jax.axes import Query
from posattn_jax.ops import grid
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.support import CAUSAL_AXES, CUT, LOCAL
from posattn_jax.ops.attention.xla.loop import ACCELERATOR_SCORE_BYTES
from posattn_jax.ops.encodings import features_per_dimension, frequencies
from posattn_jax.ops.precision import einsum, float32_or_better, minus, plus, same_dtype, times

UNSUPPORTED = (
    "a span",
    "terms without one sinusoidal encoding",
    "a relative bias",
    *LOCAL,
    CAUSAL_AXES,
    "segment_ids",
    CUT,
)


def factorised_pays(query: Query) -> bool:
    """Whether to prefer "factorised" to "dense" on this device.

    On a CPU: no, "dense" is faster there and needs a fraction of the memory (h = d = 8 at 1024 positions). On an
    accelerator: yes, if all scores are few enough for "dense" to compute them at once. That is not measured yet.
    """
    b, n, h, _ = query.shape
    score_bytes = b * h * n * n * float32_or_better(query.dtype).itemsize
    return jax.default_backend() != "cpu" and score_bytes <= ACCELERATOR_SCORE_BYTES


def factorised_attention(problem: Problem, otherwise: Callable) -> tuple[Query, None]:
    """Outputs [b t h d] of a problem with `factors`, without the bias of E, which does not change them.

      query' = [q_t + u; rotate_t W (q_t + v)],  key' = [k_s; S(s)]
      outputs_t = sum_s softmax_s(scale query'_t . key'_s) value_s

    It computes neither E nor any tensor [N, N, d]. Whether scores [b h N N] are in memory is up to
    `jax.nn.dot_product_attention`; float64, for which that has no exact softmax, is left to the attention `otherwise`.
    """
    assert problem.factors is not None
    query, key, value = problem.query, problem.repeated_key, problem.repeated_value
    key_mask = problem.key_mask
    (_, n, h, d), shape = query.shape, problem.grid_shape
    kernel, combine = problem.factors.kernel, problem.factors.combine
    each = features_per_dimension(len(kernel), len(shape), combine)
    kernel = kernel.reshape(-1, each, h, d)  # one per dimension, or one for all
    kernel = jnp.pad(kernel, ((0, 0), (0, each % 2), (0, 0), (0, 0)))  # the last sine of an odd number lacks a cosine
    position_queries = query if problem.position_bias is None else plus(query, problem.position_bias)
    features = einsum("bthd,pfhd->bthpf", position_queries, kernel)
    sines, cosines = features[..., ::2], features[..., 1::2]

    positions = jnp.asarray(grid.positions(shape), jnp.result_type(float))
    origin = jnp.asarray(problem.reference_shape) - 1
    rotation = times(minus(positions, origin)[..., None], frequencies(each))[None, :, None]  # [t 1 p f]
    sin, cos = jnp.sin(rotation), jnp.cos(rotation)
    sines, cosines, sin, cos = same_dtype(sines, cosines, sin, cos)
    rotated = jnp.stack([sines * cos + cosines * sin, cosines * cos - sines * sin], axis=-1)
    angles = times(positions[..., None], frequencies(each))
    sinusoids = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)

    queries = [lax.collapse(rotated, 3)]
    keys = [jnp.broadcast_to(sinusoids.reshape(n, 1, -1), queries[0].shape)]
    if key is not None:
        queries.append(problem.content_queries(query))
        keys.append(key)
    size = max(d, sum(x.shape[-1] for x in keys))  # the same for queries, keys and values

    def joined(parts):
        parts = jnp.concatenate([part.astype(value.dtype) for part in parts], axis=-1)
        return jnp.pad(parts, ((0, 0), (0, 0), (0, 0), (0, size - parts.shape[-1])))

    arrays = {"query": joined(queries), "key": joined(keys), "value": joined([value])}
    if value.dtype == jnp.float64:
        options = {"key_mask": key_mask, "is_causal": problem.is_causal, "scale": problem.scaling}
        return otherwise(Problem(**arrays, grid_shape=shape, **options))[0][..., :d], None
    mask = None if key_mask is None else key_mask[:, None, None]
    options = {"mask": mask, "is_causal": problem.is_causal, "scale": problem.scaling}
    with jax.numpy_dtype_promotion("standard"):  # which JAX's own function needs for bfloat16
        outputs = jax.nn.dot_product_attention(**arrays, **options)[..., :d]
    if key_mask is None:
        return outputs, None
    # JAX averages over all keys if a query may attend to none; here its outputs are 0.
    attended = jnp.cumsum(key_mask, axis=1) > 0 if problem.is_causal else key_mask.any(axis=1, keepdims=True)
    return jnp.where(attended[..., None, None], outputs, 0), None
