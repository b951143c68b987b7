"""The attention weights themselves, for values that differ from pair to pair, and for tokens that lie on no grid."""

import math

import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import (
    Array,
    HeadVector,
    Key,
    KeyMask,
    Query,
    RelativeBias,
    RelativeEncoding,
    Shape,
    Sigma,
    Weights,
)
from posattn_jax.ops import grid, scores, span
from posattn_jax.ops.attention.reference import span_by_pair, unfold
from posattn_jax.ops.span import SpanMode


def attention_weights(
    query: Query,
    key: Key | None,
    *,
    grid_shape: Shape,
    num_class_tokens: int = 0,
    half_span: Shape | None = None,
    pair_scores: Weights | None = None,
    relative_encoding: RelativeEncoding | None = None,
    content_bias: HeadVector | None = None,
    position_bias: HeadVector | None = None,
    relative_bias: RelativeBias | None = None,
    sigma: Sigma | None = None,
    threshold: float = 0.1,
    span_mode: SpanMode = "multiply",
    reference_shape: Shape | None = None,
    key_mask: KeyMask | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: Array | None = None,
) -> Weights:
    """alpha_ts = softmax_s(logits_ts) with the logits of `relative_attention` and scale * A_ts added to them.

    Class tokens stand before the grid. A pair with one of them has no offset: its logit has no positional term, its G
    is 1 and no span leaves it out. Positions are laid out for every pair, N x N x d, as in the layout "reference".

    Args:
      query: [b t h d], class tokens and then the positions of the grid.
      key: [b s h d]; None leaves out the content term.
      grid_shape: S.
      num_class_tokens: how many tokens stand before the grid.
      half_span: keys further away than this in any dimension are not attended; None: no such limit.
      pair_scores: A [b h t s], of all tokens.
      relative_encoding, content_bias, position_bias, relative_bias, sigma, threshold, span_mode, reference_shape,
        key_mask, is_causal, scale, dropout_rate, dropout_rng: as for `relative_attention`; key mask and causal order
        are of all tokens.

    Returns:
      alpha [b h t s] in float32 or better; rows that may attend to nothing are 0.

    Raises:
      ValueError: arguments that do not fit together, named in the message.
    """
    shape, cls = grid.check_grid(grid_shape), num_class_tokens
    b, n, h, d = query.shape
    _check_shapes(
        shape, n, cls, half_span,
        key=(key, query.shape),
        pair_scores=(pair_scores, (b, h, n, n)),
        relative_encoding=(relative_encoding, (*grid.relative_shape(shape), h, d)),
        content_bias=(content_bias, (h, d)),
        position_bias=(position_bias, (h, d)),
        relative_bias=(relative_bias, (*grid.relative_shape(shape), h)),
        key_mask=(key_mask, (b, n)),
    )  # fmt: skip
    scores.check_key_mask(key_mask)
    given = [x for x in (key, pair_scores, relative_encoding, relative_bias) if x is not None]
    if not given:
        raise ValueError(
            "key, pair_scores, relative_encoding and relative_bias are all None: there is nothing to attend by"
        )
    dtype = jnp.result_type(jnp.float32, query, *given, *([] if sigma is None else [sigma]))

    def of_all(pairs, fill):
        """[... t s] of the grid with `fill` for pairs with class tokens."""
        return jnp.pad(pairs, [(0, 0)] * (pairs.ndim - 2) + [(cls, 0)] * 2, constant_values=fill)

    terms = jnp.zeros((b, h, n, n), dtype) if pair_scores is None else pair_scores.astype(dtype)
    if key is not None:
        content = query if content_bias is None else query + content_bias
        terms += jnp.einsum("bthd,bshd->bhts", content, key, preferred_element_type=dtype)
    if relative_encoding is not None:
        positional = query[:, cls:] if position_bias is None else query[:, cls:] + position_bias
        p = unfold(relative_encoding, shape)
        terms += of_all(jnp.einsum("bthd,tshd->bhts", positional, p, preferred_element_type=dtype), 0)
    logits, masks = terms * (1 / math.sqrt(d) if scale is None else scale), []
    if relative_bias is not None:
        logits += of_all(jnp.moveaxis(unfold(relative_bias, shape), -1, 0), 0)
    if sigma is not None:
        span.check_span(sigma, threshold, span_mode, h, len(shape))
        log_g, inside = span_by_pair(sigma, threshold, shape, reference_shape)
        logits = scores.modulate(logits, of_all(log_g, 0).astype(dtype), span_mode)
        masks.append(of_all(inside, True))
    if half_span is not None and any(reach < size - 1 for reach, size in zip(half_span, shape, strict=True)):
        offsets = grid.positions(shape) - grid.positions(shape)[:, None]
        masks.append(of_all(jnp.asarray((np.abs(offsets) <= np.array(half_span)).all(-1)), True))
    if is_causal:
        masks.append(scores.causal_mask(jnp.arange(n), jnp.arange(n)))
    if key_mask is not None:
        masks.append(key_mask[:, None, None, :])
    weights = scores.masked_softmax(logits, masks)
    if dropout_rate > 0:
        if dropout_rng is None:
            raise ValueError(f"dropout_rate={dropout_rate} needs dropout_rng")
        weights = scores.dropout(weights, jnp.arange(n), dropout_rate, dropout_rng)
    return weights


def _check_shapes(
    grid_shape: tuple[int, ...], num_tokens: int, num_class_tokens: int, half_span: Shape | None, **arrays
):
    """ValueError where the tokens are not those of the grid, or an array (array, expected shape) is another."""
    expected = num_class_tokens + grid.num_positions(grid_shape)
    if num_class_tokens < 0 or num_tokens != expected:
        raise ValueError(
            f"query has {num_tokens} tokens: expected {expected} for grid_shape={grid_shape} "
            f"and num_class_tokens={num_class_tokens}"
        )
    if half_span is not None and (len(half_span) != len(grid_shape) or min(half_span) < 0):
        raise ValueError(f"half_span={tuple(half_span)}: expected {len(grid_shape)} numbers of at least 0")
    for name, (array, shape) in arrays.items():
        if array is not None and array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}: expected {shape}")
