"""`Attention`: the object with which a layer's `values` part averages values."""

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp

from posattn_jax.axes import Array, PairBias, PairMask, Query, Shape, Value, Weights
from posattn_jax.nn.scores import Extent, Scores
from posattn_jax.nn.sharding import each_its_own, example_axes
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops.attention import (
    CUT_IMPLEMENTATIONS,
    Cache,
    Problem,
    attend,
    attend_cut,
    average,
    decode,
    scores_of,
    whole_block,
)
from posattn_jax.ops.attention.support import GRID_AXIS, refuse, supports
from posattn_jax.ops.precision import as_array

# What a term's scores are multiplied with: the argument, its partner, and for each a term that gives it.
PARTNERS = (
    ("position_bias", "relative_encoding", "PositionalBias", "Positional(SirenEncoding())"),
    ("content_bias", "key", "ContentBias", "Content()"),
)
# The fields of tokens that are arguments of attention as they are, next to the shapes.
OF_TOKENS = ("key_mask", "segment_ids", "is_causal", "num_class_tokens", "query_grid_shape")


@dataclasses.dataclass(frozen=True)
class Attention:
    """The attention of one call: `average` by the layer's implementation, `weights` of every pair.

    Attributes:
      query: [b t h d]; None if no term needs it.
      scores: the sum of the terms' `Scores`.
      span: how far queries see; None: everywhere.
      tokens: the layer's tokens.
      mask, bias, span_bound, dilation, scale, implementation, grid_axis, dropout_rate, return_weights: as in
        `PositionalSelfAttention`.
      is_cut: whether the grid is split over the devices of `grid_axis`.
      dropout_rng: the key of dropout; None: no dropout.
      cache: the cache of a decoding step; None: no decoding.
      intermediates: intermediate results by name, with `return_weights` also the weights that were computed last; the
        `values` part may add some.
    """

    query: Query | None
    scores: Scores
    span: Extent | None
    tokens: Tokens
    mask: PairMask | None = None
    bias: PairBias | None = None
    span_bound: Shape | None = None
    dilation: Shape | None = None
    scale: float | None = None
    implementation: str = "auto"
    grid_axis: str | None = None
    is_cut: bool = False
    dropout_rate: float = 0.0
    dropout_rng: Array | None = None
    return_weights: bool = False
    cache: Cache | None = None
    intermediates: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        for name in ("mask", "bias"):
            object.__setattr__(self, name, as_array(getattr(self, name)))
        names = ("relative_encoding", "relative_bias")
        given = {name: getattr(self.scores, name) for name in names if getattr(self.scores, name) is not None}
        if self.tokens.positions is not None and given:
            raise ValueError(
                f"positions: expected None with {next(iter(given))}, which supports only grids, not points"
            )
        for name, other, term, needed in PARTNERS:
            if getattr(self.scores, name) is not None and getattr(self.scores, other) is None:
                expected = f"terms=(..., {needed}, {term}())"
                raise ValueError(f"terms: {term} needs {needed.partition('(')[0]}: expected {expected}")
        self.intermediates.update(given)
        if self.span is not None:
            self.intermediates["sigma"] = self.span.sigma
            if self.span.log_window is not None:
                self.intermediates["log_window"] = self.span.log_window

    def average(self, value: Value) -> Query:
        """sum_s alpha_ts value_s, [b t h d]; by the `weights` without a limit, if these were computed before."""
        return average(self._weights, value) if "_weights" in vars(self) else self._attend(value)[0]

    def weights(self, limit: Shape | None = None) -> Weights:
        """The weights alpha [b h t s] of all pairs, after dropout.

        Args:
          limit: half-spans: keys further away are not attended. `average` knows no limit.
        """
        return (self if limit is None else dataclasses.replace(self, scores=self.scores + Scores(limit=limit)))._weights

    @functools.cached_property
    def _weights(self) -> Weights:
        return self._attend(None)[1]

    def _attend(self, value: Value | None) -> tuple[Any, Any]:
        """The outputs if `value` is given, and the weights if the implementation computes them; None for the others."""
        scores, tokens, query = self.scores, self.tokens, self.query
        if scores.query is not None:
            query = scores.query
        if query is None:  # no term needs the query: only its shape is used
            query = jnp.zeros((*tokens.inputs.shape[:2], tokens.num_heads, tokens.head_dim), tokens.inputs.dtype)
        if self.span is not None and self.span.log_window is not None:
            scores = scores + Scores(relative_bias=self.span.log_window)
        rounded = ("key", "relative_encoding", "content_bias", "position_bias", "relative_bias")
        arrays = {name: getattr(scores, name) for name in rounded}
        arguments: dict[str, Any] = {
            "query": query,
            "value": value,
            "grid_shape": tokens.grid_shape,
            "reference_shape": tokens.reference_shape,
            "scale": self.scale,
            **{name: array if array is None else array.astype(query.dtype) for name, array in arrays.items()},
        }
        if self.span is not None:
            arguments |= {"sigma": self.span.sigma, "threshold": self.span.threshold, "span_mode": self.span.mode}
        if self.cache is not None:
            return self._step(self.cache, arguments), None
        if self.span is not None and tokens.query_grid_shape is None:
            bound = whole_block(tokens.grid_shape, self.span_bound) if self.is_cut else {"span_bound": self.span_bound}
            arguments |= bound
        if self.dropout_rng is not None:
            arguments |= {"dropout_rate": self.dropout_rate, "dropout_rng": self.dropout_rng}
        problem = Problem(
            **arguments,
            **{name: getattr(tokens, name) for name in OF_TOKENS},
            **{name: getattr(self, name) for name in ("mask", "dilation", "return_weights")},
            **{name: getattr(scores, name) for name in ("limit", "factors")},
            pair_scores=self._pair_scores(query, tokens.keyed.shape[1]),
        )
        if self.grid_axis is not None:
            self._check_axis(problem)
            if self.is_cut:
                return attend_cut(problem, self.implementation, self.grid_axis, example_axes(query.shape[0])), None
        outputs, weights = each_its_own(lambda own: attend(own, self.implementation), problem)
        if self.return_weights:
            self.intermediates["weights"] = weights
        return outputs, weights

    def _pair_scores(self, query: Query, num_tokens: int) -> Weights | None:
        """The pair scores of the terms, plus the `bias` that the layer was given."""
        scores, bias = self.scores.pair_scores, self.bias
        if bias is None:
            return scores
        given = scores_of(bias, query, num_tokens, self.scale)
        return given if scores is None else scores + given

    def _step(self, cache: Cache, arguments: dict[str, Any]) -> Query:
        """The outputs of the next position. The updated cache becomes an intermediate."""
        if arguments["value"] is None or self.dropout_rng is not None:
            raise ValueError("cache: expected no attention weights and no attention dropout")
        if self.scores.is_pairwise:
            raise ValueError("cache: expected no pair_scores and no limit among the terms' scores")
        heads, expected = cache.value.shape[2], self.tokens.num_kv_heads
        if heads != expected:
            raise ValueError(f"cache of {heads} heads: expected {expected}, those of keys and values")
        outputs, self.intermediates["cache"] = decode(cache=cache, **arguments)
        return outputs

    def _check_axis(self, problem: Problem) -> None:
        """ValueError if what is asked for cannot be split over devices, even if there is one device only."""
        if self.implementation not in CUT_IMPLEMENTATIONS:
            reason = f'implementation="{self.implementation}"'
        else:
            reason = "dropout" if self.dropout_rate > 0 else supports(GRID_AXIS, problem)
        refuse(f'grid_axis="{self.grid_axis}"', reason)
