"""The attention layer: one operation with replaceable parts."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.lax import PrecisionLike
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Causal, GridFeatures, GridIds, GridMask, PairBias, PairMask, Shape
from posattn_jax.nn.attending import Attention
from posattn_jax.nn.checks import check_nnx, check_parts, check_rates, check_sizes, check_terms
from posattn_jax.nn.parts import PARTS, Part, Projections, Span, Term
from posattn_jax.nn.scores import Scores
from posattn_jax.nn.tokens import Tokens, flattened
from posattn_jax.nnx.projections import LinearProjections
from posattn_jax.nnx.terms import Content
from posattn_jax.ops.attention import Implementation, of_all_heads
from posattn_jax.ops.initial import XAVIER
from posattn_jax.ops.precision import as_array


class PositionalSelfAttention(nnx.Module):
    """Multi-head self-attention on an n-D grid (Alfons 2022, Figure 4 and Algorithm 1), in replaceable parts.

      y = o(attend(projections(x))), where attend is `relative_attention`

    The Linen layer of the same name has more: other values (Translution, depthwise convolutions), gates, extra heads,
    points, decoding with a cache, and grids that are split over devices. `nnx.bridge.ToNNX` turns those into NNX
    modules.

    Args:
      in_features: c, the width of the inputs and outputs.
      num_heads: h.
      head_dim: d; None: c / h.
      num_kv_heads: k, the heads of keys and values; each serves h / k query heads, in order (Ainslie 2023). None: h.
      terms: the score terms, which are summed; kept as `terms_0`, `terms_1`, ...
      span: the learned span, or a fixed window; None: every key is attended.
      projections: a module (tokens, parts) -> query, key, value; None: `LinearProjections`.
      normalize_qk: whether queries and keys go through a layer norm without biases, each over d, before the terms.
      dilation: steps, one per dimension: only keys at whole multiples of them are attended.
      use_output: whether there is an output projection o; without it h d must equal c.
      dropout_rate: the dropout rate of the attention weights.
      deterministic: whether dropout is off by default; a call can override it. NNX's `eval()` and `train()` set it.
      scale: the scale of the terms; None: 1 / sqrt(d).
      implementation: the layout of `relative_attention`, or "factorised".
      kernel_init: the initialiser of the output projection, as a matrix [h d, c].
      bias_init: the initialiser of the output projection's bias.
      use_bias, precision, dot_general, dtype, param_dtype: of the output projection, and of the default `projections`;
        as in `flax.nnx.LinearGeneral`. With a dtype of None the inputs decide it. Each other part has its own
        param_dtype.
      rngs: the rngs: "params", and with dropout also "dropout", of which the layer keeps a fork.

    Raises:
      ValueError: numbers of heads that do not divide the width or each other, invalid parts, or no rng for dropout.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posattn_jax.nnx import Content, GaussianSpan, Positional, PositionalSelfAttention, SirenEncoding
      >>> rngs = nnx.Rngs(0)
      >>> terms = (Content(), Positional(SirenEncoding(2, num_heads=2, head_dim=4, rngs=rngs)))
      >>> layer = PositionalSelfAttention(8, num_heads=2, terms=terms, span=GaussianSpan(2), rngs=rngs)
      >>> layer(jnp.ones((1, 3, 4, 8))).shape
      (1, 3, 4, 8)
    """

    def __init__(
        self,
        in_features: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        terms: tuple[Term, ...] | None = None,
        span: Span | None = None,
        projections: Projections | None = None,
        normalize_qk: bool = False,
        dilation: Shape | None = None,
        use_output: bool = True,
        dropout_rate: float = 0.0,
        deterministic: bool = False,
        scale: float | None = None,
        implementation: Implementation = "auto",
        kernel_init: Initializer = XAVIER,
        bias_init: Initializer = nnx.initializers.zeros,
        use_bias: bool = True,
        precision: PrecisionLike = None,
        dot_general: Callable | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.in_features, self.num_heads, self.num_kv_heads = in_features, num_heads, num_kv_heads
        self.head_dim = head_dim
        check_sizes(self, "in_features", "num_heads", "head_dim", "num_kv_heads")
        self.dropout_rate, self.deterministic = dropout_rate, deterministic
        check_rates(self, "dropout_rate")
        if head_dim is None and in_features % num_heads:
            raise ValueError(f"num_heads={num_heads} does not divide the width {in_features}")
        if num_kv_heads and num_heads % num_kv_heads:
            raise ValueError(f"num_kv_heads={num_kv_heads} does not divide num_heads={num_heads}")
        self.head_dim = d = head_dim or in_features // num_heads
        self.dilation = None if dilation is None else tuple(dilation)
        self.scale, self.implementation, self.dtype = scale, implementation, dtype

        terms = (Content(),) if terms is None else terms
        check_nnx(terms=terms, span=span, projections=projections)
        check_terms(terms)
        self.num_terms = len(terms)
        self.span = span
        check_parts(self, "span")
        for i, term in enumerate(terms):
            setattr(self, f"terms_{i}", term)
        dtypes: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype}
        linear = {"use_bias": use_bias, "precision": precision, "dot_general": dot_general, **dtypes}
        if projections is None:
            fields = {"num_kv_heads": num_kv_heads, "parts": self._needed(), **linear}
            projections = LinearProjections(in_features, num_heads, d, **fields, rngs=rngs)
        self.projections = projections
        check_parts(self, "projections")
        for part in ("query", "key"):
            normalised = normalize_qk and part in self._needed()
            norm = nnx.LayerNorm(d, use_bias=False, **dtypes, rngs=rngs) if normalised else None
            setattr(self, f"{part}_norm", norm)
        if not use_output and num_heads * d != in_features:
            raise ValueError(f"use_output=False needs num_heads={num_heads} x head_dim={d} to be {in_features}")
        fields = {"axis": (-2, -1), "kernel_init": kernel_init, "bias_init": bias_init, **linear}
        self.output = nnx.LinearGeneral((num_heads, d), in_features, **fields, rngs=rngs) if use_output else None
        self.rngs = _stream(rngs).fork() if dropout_rate else nnx.data(None)

    def __call__(
        self,
        inputs: GridFeatures,
        grid_shape: Shape | None = None,
        *,
        key_mask: GridMask | None = None,
        mask: PairMask | None = None,
        bias: PairBias | None = None,
        segment_ids: GridIds | None = None,
        is_causal: Causal = False,
        reference_shape: Shape | None = None,
        span_bound: Shape | None = None,
        num_class_tokens: int = 0,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | None = None,
        return_intermediates: bool = False,
        return_weights: bool = False,
    ) -> GridFeatures | tuple[GridFeatures, dict[str, Any]]:
        """Attends over the grid.

        Args:
          inputs: [b t c]: class tokens, if there are any, then the positions of the grid in row-major order. Without
            class tokens also [b *S c].
          grid_shape: S, one to three sizes; None: taken from the inputs; [b t c] is one sequence.
          key_mask: [b t] or [b *S], True = keep.
          mask, bias: for every pair, [b|1 h|1 t t], True = keep; the bias is added to the scores, not scaled.
          segment_ids: [b t] or [b *S]: tokens attend to those of their own segment.
          is_causal: query t attends to keys s <= t in row-major order; or one bool per dimension: to keys that do not
            lie after it in any causal one. Class tokens come before the grid.
          reference_shape: the grid that distances are measured in, if it is not `grid_shape`.
          span_bound: half-spans that the span does not exceed, for layouts of a static size.
          num_class_tokens: how many tokens precede the grid.
          deterministic: whether dropout is off; None: as set in the layer.
          rngs: has "dropout", which replaces the layer's own.
          return_intermediates: whether to return the intermediates too.
          return_weights: whether to return the intermediates with the attention weights among them.

        Returns:
          The outputs, in the shape of the inputs. If asked for, also a dict: "relative_encoding" [*R, h, d],
          "relative_bias" [*R, h], "sigma", "weights" [b h t s].

        Raises:
          ValueError: inputs, a grid or a mask of another shape, parts for other heads or dimensions, or a layout
            that does not support what is asked for.
        """
        inputs = as_array(inputs)
        shape = inputs.shape
        if shape[-1] != self.in_features:
            raise ValueError(f"inputs has shape {shape}: expected a width of in_features={self.in_features}")
        inputs, grid_shape, key_mask = flattened(inputs, grid_shape, key_mask, num_class_tokens)
        tokens = Tokens(
            inputs=inputs if self.dtype is None else inputs.astype(self.dtype),
            grid_shape=grid_shape,
            num_heads=self.num_heads,
            head_dim=self.head_dim or 0,
            reference_shape=reference_shape or (),
            span_bound=span_bound,
            key_mask=key_mask,
            mask=mask,
            bias=bias,
            segment_ids=None if segment_ids is None else lax.collapse(as_array(segment_ids), 1),
            is_causal=is_causal,
            dilation=self.dilation,
            num_kv_heads=self.num_kv_heads or 0,
            num_class_tokens=num_class_tokens,
        )
        span = None if self.span is None else self.span(tokens)
        tokens = tokens.seen_within(span, is_cut=False)
        query, key, value = self.projections(tokens, self._needed())
        query = query if query is None or self.query_norm is None else self.query_norm(query)
        key = key if key is None or self.key_norm is None else self.key_norm(key)
        key, value = of_all_heads(key, self.num_heads), of_all_heads(value, self.num_heads)
        attention = Attention(
            query,
            sum((term(query, key, tokens) for term in self.terms), Scores()),
            span,
            tokens,
            scale=self.scale,
            implementation=self.implementation,
            dropout_rate=self.dropout_rate,
            dropout_rng=self._dropout_rng(deterministic, rngs),
            return_weights=return_weights,
        )
        outputs = attention.average(value)
        if return_weights:
            attention.intermediates["weights"] = attention.weights()
        outputs = (outputs if self.output is None else self.output(outputs)).reshape(shape)
        return (outputs, attention.intermediates) if return_intermediates or return_weights else outputs

    @property
    def terms(self) -> tuple[Term, ...]:
        return tuple(getattr(self, f"terms_{i}") for i in range(self.num_terms))

    def _needed(self) -> tuple[Part, ...]:
        """The projections that the terms and the values need."""
        needed = {part for term in self.terms for part in term.needs} | {"value"}
        return tuple(part for part in PARTS if part in needed)

    def _dropout_rng(self, deterministic: bool | None, rngs: nnx.Rngs | None) -> Array | None:
        """The key of dropout; None: no dropout."""
        if not self.dropout_rate or (self.deterministic if deterministic is None else deterministic):
            return None
        stream = self.rngs if rngs is None else _stream(rngs)
        assert stream is not None, "a layer with dropout has a stream"
        return stream()


def _stream(rngs: nnx.Rngs) -> nnx.RngStream:
    """The stream of dropout; ValueError if there is none."""
    try:
        return rngs["dropout"]
    except (AttributeError, KeyError, ValueError) as error:
        raise ValueError("dropout_rate: expected an rng, nnx.Rngs(params=..., dropout=...)") from error
