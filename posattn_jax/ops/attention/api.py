"""`relative_attention`, the entry point of attention with relative positions."""

import math
from typing import Any

import jax.numpy as jnp

from posattn_jax.axes import (
    Array,
    Causal,
    HeadVector,
    KeyMask,
    Lengths,
    Listed,
    PairBias,
    PairMask,
    Query,
    RelativeBias,
    RelativeEncoding,
    SegmentIds,
    Shape,
    SharedKey,
    Sigma,
    Weights,
)
from posattn_jax.ops import grid, scores
from posattn_jax.ops.attention.arguments import check_pairs
from posattn_jax.ops.attention.dilation import coarse
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.select import IMPLEMENTATIONS, Implementation
from posattn_jax.ops.attention.support import TWO_GRIDS, refuse, supports
from posattn_jax.ops.precision import as_array
from posattn_jax.ops.span import SpanMode

GENERAL = tuple(name for name in IMPLEMENTATIONS if name != "factorised")  # any encoding, not only sinusoids


def attend(problem: Problem, implementation: str = "auto") -> tuple[Any, Any]:
    """Outputs and weights of the given implementation, or of "reference" where the problem needs all pairs at once.

    Outputs are None for a problem without values. Weights are None where the implementation does not return them.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f'implementation="{implementation}": expected one of {", ".join(sorted(IMPLEMENTATIONS))}')
    if problem.query_grid_shape is not None:
        grids = f"query_grid_shape={problem.query_grid_shape}, which is not grid_shape={problem.grid_shape},"
        refuse(grids, None if implementation in ("auto", "reference") else f'implementation="{implementation}"')
        refuse(grids, supports(TWO_GRIDS, problem))
    if problem.dilation is not None:
        problem, join = coarse(problem)
        return join(attend(problem, implementation)[0]), None
    if problem.query.shape[0] == 0:
        return nothing(problem)
    if problem.is_pairwise and implementation != "factorised":  # which raises an error of its own
        implementation = "reference"
    return IMPLEMENTATIONS[implementation](problem.settled())


def relative_attention(
    query: Query | Listed,
    key: SharedKey | Listed | None,
    value: SharedKey | Listed,
    *,
    grid_shape: Shape,
    query_grid_shape: Shape | None = None,
    relative_encoding: RelativeEncoding | Listed | None = None,
    content_bias: HeadVector | Listed | None = None,
    position_bias: HeadVector | Listed | None = None,
    relative_bias: RelativeBias | Listed | None = None,
    sigma: Sigma | Listed | None = None,
    threshold: float = 0.1,
    span_mode: SpanMode = "multiply",
    reference_shape: Shape | None = None,
    span_bound: Shape | None = None,
    key_mask: KeyMask | Listed | None = None,
    mask: PairMask | Listed | None = None,
    bias: PairBias | Listed | None = None,
    segment_ids: SegmentIds | Listed | None = None,
    query_seq_lengths: Lengths | Listed | None = None,
    key_value_seq_lengths: Lengths | Listed | None = None,
    is_causal: Causal = False,
    dilation: Shape | None = None,
    scale: float | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: Array | None = None,
    implementation: Implementation = "auto",
    return_weights: bool = False,
) -> Query | tuple[Query, Weights]:
    """Attention on an n-D grid, within a learned span; its scores depend on the offset s - t between key and query.

      logits_ts = G_{s-t} * (scale * [(q_t + u) . k_s + (q_t + v) . E_{s-t}] + beta_{s-t} + bias_ts)
      outputs_t = sum_s softmax_s(logits_ts) value_s

    The conventions are those of `jax.nn.dot_product_attention`. Every implementation gives the same outputs, and the
    same gradients of every array. A query that may attend to no key has outputs 0. Arrays may be lists, numbers or
    NumPy arrays. In an exported program the batch may have a symbolic size; an empty batch gives empty outputs.

    Args:
      query: [b t h d], the positions of its grid in row-major order.
      key: [b s k d]. Each of the k heads serves h / k heads of queries, in order. None leaves out the content term.
      value: [b s k d].
      grid_shape: S, one to three sizes whose product is t = s.
      query_grid_shape: T, the grid of the queries, if it differs from S. Both grids cover the same extent; t = prod(T).
        Query t is then at position (t + 1/2) S / T - 1/2 of S, in each dimension, and E and beta are given at the
        real-valued offsets of `ops.grid.relative_offsets`. Only "reference" and "auto" support it, and compute every
        pair.
      relative_encoding: E [*R, h, d] with R = 2 S - 1 and offset 0 in the centre; None leaves out the positional term.
      content_bias: u [h d], needs `key`.
      position_bias: v [h d], needs `relative_encoding`.
      relative_bias: beta [*R, h], not scaled. If E is given too, beta is rounded to the dtype of E, float16 to float32.
        An entry as low as one of `bias` that hides its pair hides all pairs of its offset.
      sigma: [p], or one number for all dimensions, or [h p] with one per head, in units of S - 1. None means no span.
        Only `|sigma|` matters. Concrete values must be finite and not 0. For a traced sigma, 0 means "the query alone"
        and NaN propagates. Instead of sigma, the factor L of a full covariance L L^T: [1 p p], or [h p p] with one per
        head. The rules for sigma apply to its diagonal; entries above the diagonal are ignored.
      threshold: keys outside the bounding box of G >= threshold are masked. 0 or less: G modulates, and masks no key.
      span_mode: "multiply" as above; or "log_add": logits = scale * [...] + beta + ln G; or "box": G only decides which
        keys are masked, and sigma has no gradient.
      reference_shape: the grid whose S - 1 is the unit of sigma; default: `grid_shape`.
      span_bound: half-spans, one per dimension, that the span of `sigma` must not exceed. Implementations of a static
        size are compiled for this size if sigma is traced. A larger span raises ValueError if sigma is concrete, and
        gives NaN outputs if it is traced.
      key_mask: [b s], True = keep.
      mask: [b|1 h|1 t s], True = keep. With `mask` or `bias` every pair is computed, so implementations that compute
        only a part of the pairs refuse them.
      bias: [b|1 h|1 t s], not scaled. An entry that is -inf, at most -5e8, or at most a quarter of the lowest number of
        its dtype hides its pair exactly as `mask` does, whatever G is.
      segment_ids: [b t]: tokens attend only to tokens of their own segment. If segments are packed one after the other,
        "native" skips pairs of different segments. "factorised", and "fused" on a TPU, do not support segments. The
        other implementations compute such pairs and mask them.
      query_seq_lengths: [b], or one for all; outputs from this position on are 0.
      key_value_seq_lengths: [b], or one for all; keys from this position on are not attended to.
      is_causal: True: query t attends to keys s <= t in row-major order. Or one bool per dimension: a query attends
        only to keys that do not lie after it in any causal dimension.
      dilation: steps D, one per dimension: a query attends only to keys at offsets that are multiples of D, at most
        ceil(half-span / D) steps away. None: every key.
      scale: default 1 / sqrt(d).
      dropout_rate: of the attention weights; needs `dropout_rng`. Every implementation drops the same pairs.
      implementation: how it is computed. "reference" (V1, Appendix A.1) computes all pairs at once, with N x N x d
        encodings. "dense" loops over rows of queries. "patch" (V2, A.2) and "window" (V3, A.3) gather the keys of every
        query; their size is static, so that a traced sigma needs `span_bound`. "tiled" loops over windows of keys
        within the span, known at run time. "native" is that loop in C++, for CPUs, and needs a compiler. "fused" has
        that loop inside of kernels for GPUs (which need a C++ compiler too) and TPUs. "factorised" works only through a
        layer, which knows the factors of E. "auto" takes the implementation that is expected to be the fastest; see
        `ops/attention/select.py`. Only "reference", "dense" and "auto" support weights and dropout. The outputs of
        "dense", "tiled", "native", "fused" and "auto" have no forward-mode derivatives (`jax.jvp`). Their gradients
        have derivatives in both modes: "dense" computes them, for every pair, whatever the span. They are tested to the
        second order, of "fused" only its kernels for GPUs, on a CPU. The kernels of cuDNN or of JAX for TPUs that
        "auto" may take for content scores alone have only first-order gradients. The other implementations have
        derivatives of any order.
      return_weights: whether to return the weights too.

    Returns:
      The outputs [b t h d] in the dtype of `value`; with `return_weights` also the weights [b h t s]. Scores and
      softmax are computed in float32 or better.

    Raises:
      ValueError: arguments that do not fit together, named in the message.

    Source: Alfons 2022, formula 1, Algorithm 8 and Appendix A; beta as in T5 (Raffel 2020) and Chang 2021, equation 4.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import relative_attention
      >>> query, key, value = jax.random.normal(jax.random.key(0), (3, 1, 3 * 4, 2, 8))  # each [b t h d]
      >>> encoding = jax.random.normal(jax.random.key(1), (5, 7, 2, 8))  # [*R h d], R = 2 S - 1
      >>> sigma = jnp.array([0.2, 0.5])  # a narrow span over rows, a wide one over columns
      >>> relative_attention(query, key, value, grid_shape=(3, 4), relative_encoding=encoding, sigma=sigma).shape
      (1, 12, 2, 8)
    """
    query, value = as_array(query, floating=True), as_array(value, floating=True)
    if key_value_seq_lengths is not None:
        within = within_lengths("key_value_seq_lengths", as_array(key_value_seq_lengths), value)
        key_mask = within if key_mask is None else within & as_array(key_mask)
    problem = Problem.of(
        query=query,
        key=key,
        value=value,
        grid_shape=grid_shape,
        query_grid_shape=query_grid_shape,
        relative_encoding=relative_encoding,
        content_bias=content_bias,
        position_bias=position_bias,
        relative_bias=relative_bias,
        sigma=sigma,
        threshold=threshold,
        span_mode=span_mode,
        reference_shape=reference_shape,
        span_bound=span_bound,
        key_mask=key_mask,
        mask=mask,
        pair_scores=None if bias is None else scores_of(as_array(bias, floating=True), query, value.shape[1], scale),
        segment_ids=segment_ids,
        is_causal=is_causal,
        dilation=dilation,
        scale=scale,
        dropout_rate=dropout_rate,
        dropout_rng=dropout_rng,
        return_weights=return_weights,
    )
    outputs, weights = attend(problem, implementation)
    if query_seq_lengths is not None:
        within = within_lengths("query_seq_lengths", as_array(query_seq_lengths), query)
        outputs = jnp.where(within[..., None, None], outputs, 0)
        weights = jnp.where(within[:, None, :, None], weights, 0) if return_weights else weights
    return (outputs, weights) if return_weights else outputs


def nothing(problem: Problem) -> tuple[Any, Weights]:
    """Outputs and weights of an empty batch."""
    _, t, h, d = problem.query.shape
    s = problem.num_class_tokens + grid.num_positions(problem.grid_shape)
    outputs = None if problem.value is None else jnp.zeros((0, t, h, d), problem.value.dtype)
    return outputs, jnp.zeros((0, h, t, s), problem.dtype)


def within_lengths(name: str, lengths: Lengths, tokens: Query) -> KeyMask:
    """Whether each of the tokens [b t h d] comes before its example's length: [b t]; one length may serve all."""
    if lengths.shape not in ((), tokens.shape[:1]):
        raise ValueError(f"{name} has shape {lengths.shape}: expected {tokens.shape[:1]}, one length per example")
    within = jnp.arange(tokens.shape[1])[None] < lengths.reshape(-1, 1)
    return jnp.broadcast_to(within, tokens.shape[:2])


def scores_of(bias: PairBias, query: Query, num_keys: int, scale: float | None) -> Weights:
    """A = bias / scale, broadcast to [b h t s]: a bias, which is not scaled, as scores that will be scaled.

    A is -inf where the bias hides its pair, and nowhere else because of the division.
    """
    b, t, h, d = query.shape
    sizes = (b, h, t, num_keys)
    check_pairs("bias", bias, sizes)
    if scale is not None and scale <= 0:
        raise ValueError(f"scale={scale:g} is given with bias, which is not scaled: expected more than 0")
    scaling = 1 / math.sqrt(d) if scale is None else scale
    of_hidden = jnp.where(scores.hides(bias), -jnp.inf, scores.of_wide_range(bias) / scaling)
    return jnp.broadcast_to(of_hidden, sizes)
