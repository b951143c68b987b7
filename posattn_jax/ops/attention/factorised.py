"""Attention with sinusoidal relative encodings and no span, as dot-product attention with more features a head.

Sinusoids of s - t are those of s, rotated by t. So what query t scores with the encoding of an offset is what its
features, rotated by t, score with the sinusoids of the key's position:

  q_t . E_{s-t} = (W q_t) . S(s - t) + q_t . b = (rotate_t W q_t) . S(s) + q_t . b

The last term is the same for every key: a softmax does not see it. This is no layout of `relative_attention`, which
is given E and not what E is made of. Source: ours; the rotation is that of rotary encodings (Su 2021).
"""

import math

import jax
import jax.numpy as jnp

from posattn_jax.axes import Array, Float, HeadVector, Key, KeyMask, Query, Shape, Value
from posattn_jax.ops import grid, scores
from posattn_jax.ops.attention.api import relative_attention
from posattn_jax.ops.attention.budget import ACCELERATOR_SCORE_BYTES
from posattn_jax.ops.encodings import Combine, features_per_dimension, frequencies


def factorised_pays(query: Query) -> bool:
    """Whether `sinusoidal_attention` is to be preferred to "dense" on the device at hand.

    Not on a CPU, where "dense" is faster and needs a fraction of the memory (h = d = 8 at 1024 positions). On an
    accelerator, not measured yet, where all scores may be held at once, as "dense" would.
    """
    b, n, h, _ = query.shape
    score_bytes = b * h * n * n * jnp.promote_types(jnp.float32, query.dtype).itemsize
    return jax.default_backend() != "cpu" and score_bytes <= ACCELERATOR_SCORE_BYTES


def sinusoidal_attention(
    query: Query,
    key: Key | None,
    value: Value,
    *,
    grid_shape: Shape,
    kernel: Float[Array, "c h d"],
    content_bias: HeadVector | None = None,
    position_bias: HeadVector | None = None,
    combine: Combine = "concat",
    reference_shape: Shape | None = None,
    key_mask: KeyMask | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Query:
    """`relative_attention` without a span, with relative_encoding = `relative_sinusoids` times `kernel`, plus any bias.

      query' = [q_t + u; rotate_t W (q_t + v)],  key' = [k_s; S(s)]
      outputs_t = sum_s softmax_s(scale query'_t . key'_s) value_s

    It makes neither E nor any tensor of [N, N, d]; what is made of [b h N N] is up to `jax.nn.dot_product_attention`.

    Args:
      query: [b t h d], the positions of the grid in row-major order.
      key: [b s h d]; None leaves out the content term.
      value: [b s h d].
      grid_shape: S, one to three sizes whose product is t = s.
      kernel: W, from the c sinusoids to the features of each head.
      content_bias: u [h d], needs `key`.
      position_bias: v [h d].
      combine: how the sinusoids of several dimensions meet: see `relative_sinusoids`.
      reference_shape: the grid that offsets are counted on, where it is not `grid_shape`.
      key_mask: [b s], True = keep.
      is_causal: query t attends to keys s <= t in row-major order.
      scale: default 1 / sqrt(d).

    Returns:
      The outputs [b t h d] in the dtype of `value`; 0 for a query that may attend to nothing.

    Raises:
      ValueError: arguments that do not fit together, named in the message.
    """
    shape = grid.check_grid(grid_shape)
    b, n, h, d = query.shape
    _check(query, key, value, shape, kernel, content_bias, position_bias, key_mask)
    each = features_per_dimension(len(kernel), len(shape), combine)
    kernel = kernel.reshape(-1, each, h, d)  # one for every dimension, or one for them all
    kernel = jnp.pad(kernel, ((0, 0), (0, each % 2), (0, 0), (0, 0)))  # an odd number ends with a sine alone
    position_queries = query if position_bias is None else query + position_bias
    features = jnp.einsum("bthd,pfhd->bthpf", position_queries, kernel)
    sines, cosines = features[..., ::2], features[..., 1::2]

    positions = jnp.asarray(grid.positions(shape), jnp.result_type(float))
    origin = jnp.asarray(grid.check_reference(shape, reference_shape)) - 1
    rotation = ((positions - origin)[..., None] * frequencies(each))[:, None]  # [t 1 p f]
    sin, cos = jnp.sin(rotation), jnp.cos(rotation)
    rotated = jnp.stack([sines * cos + cosines * sin, cosines * cos - sines * sin], axis=-1)
    angles = positions[..., None] * frequencies(each)
    sinusoids = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)

    queries = [rotated.reshape(b, n, h, -1)]
    keys = [jnp.broadcast_to(sinusoids.reshape(n, 1, -1), queries[0].shape)]
    if key is not None:
        queries.append(query if content_bias is None else query + content_bias)
        keys.append(key)
    size = max(d, sum(x.shape[-1] for x in keys))  # one for queries, keys and values

    def joined(parts):
        parts = jnp.concatenate([part.astype(value.dtype) for part in parts], axis=-1)
        return jnp.pad(parts, ((0, 0), (0, 0), (0, 0), (0, size - parts.shape[-1])))

    arrays = (joined(queries), joined(keys), joined([value]))
    options = {"scale": 1 / math.sqrt(d) if scale is None else scale, "is_causal": is_causal}
    if value.dtype == jnp.float64:  # JAX's own softmax is float32's
        return relative_attention(*arrays, grid_shape=shape, key_mask=key_mask, **options)[..., :d]
    mask = None if key_mask is None else key_mask[:, None, None]
    outputs = jax.nn.dot_product_attention(*arrays, mask=mask, **options)[..., :d]
    if key_mask is None:
        return outputs
    # JAX's averages over all keys where none may be attended to.
    attended = jnp.cumsum(key_mask, axis=1) > 0 if is_causal else key_mask.any(axis=1, keepdims=True)
    return jnp.where(attended[..., None, None], outputs, 0)


def _check(query, key, value, shape, kernel, content_bias, position_bias, key_mask):
    """ValueError where shapes do not fit together."""
    b, n, h, d = *query.shape[:1], grid.num_positions(shape), *query.shape[2:]
    for name, array, expected in (
        ("query", query, (b, n, h, d)),
        ("key", key, (b, n, h, d)),
        ("value", value, (b, n, h, d)),
        ("kernel", kernel, (len(kernel), h, d)),
        ("content_bias", content_bias, (h, d)),
        ("position_bias", position_bias, (h, d)),
        ("key_mask", key_mask, (b, n)),
    ):
        if array is not None and array.shape != expected:
            raise ValueError(f"{name} has shape {array.shape}: expected {expected} for grid_shape={shape}")
    scores.check_key_mask(key_mask)
    if content_bias is not None and key is None:
        raise ValueError("content_bias is given without key, which it is multiplied with")
