"""The attention layer: one operation with replaceable parts."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import FrozenDict
from jax import lax
from jax.lax import PrecisionLike
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import (
    Array,
    Causal,
    Features,
    GridFeatures,
    GridIds,
    GridMask,
    PairBias,
    PairMask,
    PointPositions,
    Query,
    Shape,
    SharedKey,
)
from posattn_jax.nn.attending import Attention
from posattn_jax.nn.checks import check_needs, check_parts, check_rates, check_sizes, check_terms
from posattn_jax.nn.composite import Composite
from posattn_jax.nn.layers import from_heads
from posattn_jax.nn.parts import PARTS, ExtraHeads, Gate, Part, Projections, Span, Terms, Values
from posattn_jax.nn.projections import LinearProjections
from posattn_jax.nn.scores import Scores
from posattn_jax.nn.terms import Content, by_name
from posattn_jax.nn.tokens import Tokens, flattened
from posattn_jax.ops.attention import Cache, Implementation, of_all_heads, table_shape
from posattn_jax.ops.initial import XAVIER
from posattn_jax.ops.precision import as_array


class PositionalSelfAttention(Composite):
    """Multi-head self-attention on an n-D grid (Alfons 2022, Figure 4 and Algorithm 1), in replaceable parts.

      y = o(gate(attend(projections(x)))), where attend is `relative_attention`

    Each part implements a protocol of `nn/parts.py`; docs/importing.md has examples. The terms define the scores. With
    the default `(Content(),)` the layer ignores positions. A layer with positions and a learned span:

      PositionalSelfAttention(
          num_heads=8,
          terms=(Content(), Positional(SirenEncoding()), ContentBias(), PositionalBias()),
          span=GaussianSpan(threshold=0.1),
      )

    Attributes:
      num_heads: h.
      head_dim: d; None: the width of the inputs divided by h.
      num_kv_heads: k, the heads of keys and values; each serves h / k query heads, in order (Ainslie 2023). None: h.
      terms: the score terms, which are summed. Several encodings or biases may be given, but only one content term. The
        parameters of a tuple's are terms_0, ...; those of a mapping have its names, {"content": Content()}.
      span: the learned span, or a fixed window; None: every key is attended.
      values: the part that averages, such as `Translution()`, `PlusDepthwise(...)`, `PlusRelative(...)`; None: a plain
        average of the values.
      gate: a function or module (x [b t c], outputs [b t h d]) -> outputs, before the output projection; None: no gate.
      extra_heads: heads that do not attend: a module (query, tokens, deterministic) -> outputs [b t h' d], such as
        `SpanConvolution`. They are concatenated to the attention heads before the output projection. None: none.
      projections: a module (tokens, parts) -> query, key, value that computes the needed `parts`; None:
        `LinearProjections()`.
      normalize_qk: whether queries and keys go through a layer norm without biases, each over d, before the terms.
      dilation: steps, one per dimension: only keys at whole multiples of them are attended; see `relative_attention`.
      use_output: whether there is an output projection o. Without it the heads' outputs are concatenated, and h d must
        equal c.
      dropout_rate: the dropout rate of the attention weights (the paper has none).
      scale: the scale of the terms; None: 1 / sqrt(d).
      implementation: that of `relative_attention`; or "factorised", for sinusoids without a span. "auto"
        chooses "factorised" where it pays off.
      grid_axis: the mesh axis that the grid's first dimension is split over, if the current mesh (`jax.set_mesh`) has
        this axis. `halo_attention` then computes the attention; the compiler distributes the rest. None: no axis.
      kernel_init: the initialiser of the output projection, as a matrix [h d, c].
      bias_init: the initialiser of the output projection's bias.
      use_bias, precision, dot_general, dtype, param_dtype: of the output projection, and of the default `projections`;
        as in `flax.linen.Dense`. With a dtype of None the inputs decide it. Positions and the span are computed in
        float32 or better. Each other part has its own param_dtype.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Content, GaussianSpan, Positional, PositionalSelfAttention, SirenEncoding
      >>> terms = (Content(), Positional(SirenEncoding()))
      >>> layer = PositionalSelfAttention(num_heads=2, terms=terms, span=GaussianSpan())
      >>> pixels = jnp.ones((1, 3 * 4, 8))
      >>> variables = layer.init(jax.random.key(0), pixels, (3, 4))
      >>> outputs, intermediates = layer.apply(variables, pixels, (3, 4), return_intermediates=True)
      >>> outputs.shape, intermediates["relative_encoding"].shape
      ((1, 12, 8), (5, 7, 2, 4))
    """

    num_heads: int
    _: dataclasses.KW_ONLY
    head_dim: int | None = None
    num_kv_heads: int | None = None
    terms: Terms = (Content(),)
    span: Span | None = None
    values: Values | None = None
    gate: Gate | None = None
    extra_heads: ExtraHeads | None = None
    projections: Projections | None = None
    normalize_qk: bool = False
    dilation: Shape | None = None
    use_output: bool = True
    dropout_rate: float = 0.0
    scale: float | None = None
    implementation: Implementation = "auto"
    grid_axis: str | None = None
    kernel_init: Initializer = XAVIER
    bias_init: Initializer = nn.initializers.zeros
    use_bias: bool = True
    precision: PrecisionLike = None
    dot_general: Callable | None = None
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        check_sizes(self, "num_heads", "head_dim", "num_kv_heads")
        check_rates(self, "dropout_rate")
        check_terms(self.terms)
        self.terms = FrozenDict(self.terms) if isinstance(self.terms, Mapping) else tuple(self.terms)  # it is hashed
        check_parts(self, "span", "values", "gate", "extra_heads", "projections")
        if self.values is not None:
            check_needs("values", self.values)
        super().__post_init__()

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
        positions: PointPositions | None = None,
        cache: Cache | None = None,
        deterministic: bool = True,
        return_intermediates: bool = False,
        return_weights: bool = False,
    ) -> GridFeatures | tuple[GridFeatures, dict[str, Any]]:
        """Attends over the grid.

        The weights of all pairs are computed, whatever the implementation, if there are class tokens or if a part needs
        the score or the weight of every pair.

        Args:
          inputs: [b t c]: class tokens, if there are any, then the positions of the grid in row-major order. Without
            class tokens also [b *S c].
          grid_shape: S, one to three sizes whose product is t minus the class tokens; (n,) for n points. None: taken
            from the inputs; [b t c] is one sequence.
          key_mask: [b t] or [b *S], True = keep.
          mask, bias: for every pair, [b|1 h|1 t t], True = keep; the bias is added to the scores, not scaled. With them
            all pairs are computed.
          segment_ids: [b t] or [b *S]: tokens attend to those of their own segment.
          is_causal: query t attends to keys s <= t in row-major order; or one bool per dimension: to keys that do not
            lie after it in any causal one. Class tokens come before the grid. Parts that convolve are causal likewise.
          reference_shape: the grid that distances are measured in, if it is not `grid_shape`. A model trained on it
            keeps its meaning of distance on a larger grid.
          span_bound: half-spans that the span does not exceed, for implementations of a static size; see
            `relative_attention`.
          num_class_tokens: how many tokens precede the grid. They have no position: no positional term and no span
            applies to a pair with one of them.
          positions: [b n p], the positions of points that lie on no grid. Only the `values` part can use them.
          cache: for one step of causal decoding. The inputs are then the next position alone, [b 1 c], which attends to
            the positions in the cache (see `cache_length`). The updated cache is the intermediate "cache".
          deterministic: whether dropout is off; otherwise an rng "dropout" is needed.
          return_intermediates: whether to return the intermediates too.
          return_weights: whether to return the intermediates with the attention weights among them.

        Returns:
          The outputs, in the shape of the inputs. If asked for, also a dict of the intermediates that the parts
          compute: "relative_encoding" [*R, h, d] (SIRENs and sinusoids may be 0 beyond the span) and "relative_bias"
          [*R, h], both limited to offsets within `span_bound` if the grid is split; "sigma" as `relative_attention`
          takes it; "log_window" [*R, h] of a `LearnedWindow`; "depthwise_kernel" [*K, c]; "weights" [b h t s]; "cache".

        Raises:
          ValueError: the number of heads does not divide the width, the grid does not match the inputs, the
            implementation is unknown or does not support this layer, or a part that needs the whole grid is called with
            a cache.
        """
        if cache is not None and grid_shape is None:
            raise ValueError("cache: expected grid_shape with it, of which the inputs are one place")
        inputs = as_array(inputs)
        shape = inputs.shape
        inputs, grid_shape, key_mask = flattened(inputs, grid_shape, key_mask, num_class_tokens)
        if segment_ids is not None:
            segment_ids = lax.collapse(as_array(segment_ids), 1)
        tokens = Tokens(
            inputs=self._cast(inputs),
            grid_shape=grid_shape,
            num_heads=self.num_heads,
            head_dim=self.head_dim or 0,
            reference_shape=reference_shape or (),
            key_mask=key_mask,
            segment_ids=segment_ids,
            is_causal=is_causal,
            num_kv_heads=self.num_kv_heads or 0,
            num_class_tokens=num_class_tokens,
            positions=positions,
            step=None if cache is None else cache.step,
            table_shape=() if cache is None else table_shape(grid_shape, cache.length),
        )
        asked = {"mask": mask, "bias": bias, "span_bound": span_bound}
        asked |= {"dilation": self.dilation, "extra_heads": self.extra_heads}
        tokens.check_step(**{name: each is not None for name, each in asked.items()})
        given = {"mask": mask, "bias": bias, "span_bound": span_bound, "cache": cache}
        outputs, intermediates = self._attend(tokens, deterministic, return_weights=return_weights, **given)
        outputs = outputs.reshape(shape)
        return (outputs, intermediates) if return_intermediates or return_weights else outputs

    def _linear_fields(self) -> dict[str, Any]:
        """The fields that the linear maps share."""
        names = ("use_bias", "precision", "dot_general", "dtype", "param_dtype")
        return {name: getattr(self, name) for name in names}

    def _cast(self, features: Array) -> Array:
        return features if self.dtype is None else features.astype(self.dtype)

    @nn.compact
    def _attend(self, tokens: Tokens, deterministic: bool, **of_call: Any) -> tuple[Features, dict[str, Any]]:
        """The outputs [b t c] and the intermediates; `of_call` are fields of `Attention`."""
        self._check(tokens)
        is_cut = jax.sharding.get_abstract_mesh().shape.get(self.grid_axis, 1) > 1
        is_step, bound = of_call.get("cache") is not None, of_call.get("span_bound")
        if is_cut and not is_step:
            tokens = tokens.cut_within(bound)  # before the span, whose window is a table too
        span = None if self.span is None else self.span(tokens)
        if not (is_cut or is_step):
            tokens = tokens.seen_within(span, bound)

        projections = self.projections
        if projections is None:
            projections = LinearProjections(**self._linear_fields(), name="projections")
        query, key, value = self._of_all_heads(*projections(tokens, self.needed()))
        scores = sum((term(query, key, tokens) for term in by_name(self.terms).values()), Scores())
        attention = Attention(
            query,
            scores,
            span,
            tokens,
            scale=self.scale,
            dilation=self.dilation,
            implementation=self.implementation,
            grid_axis=self.grid_axis,
            is_cut=is_cut,
            dropout_rate=self.dropout_rate,
            dropout_rng=self._dropout_rng(deterministic),
            **of_call,
        )
        outputs = attention.average(value) if self.values is None else self.values(attention, value, tokens)
        if attention.return_weights and "weights" not in attention.intermediates:
            attention.weights()

        if self.gate is not None:
            outputs = self.gate(tokens.inputs, outputs)
        if self.extra_heads is not None:
            outputs = jnp.concatenate([outputs, self.extra_heads(query, tokens, deterministic)], 2)
        width = tokens.inputs.shape[-1]
        if not self.use_output:
            return outputs.reshape(*outputs.shape[:2], width), attention.intermediates
        fields = {"bias_init": self.bias_init, "name": "output", **self._linear_fields()}
        output = from_heads(width, self.kernel_init, **fields)
        return output(outputs), attention.intermediates

    def _of_all_heads(
        self, query: Query | None, key: SharedKey | None, value: SharedKey | None
    ) -> tuple[Any, Any, Any]:
        """Query, key and value for every head; None for what is not needed. `normalize_qk` normalises the first two."""
        for name, features in (("key", key), ("value", value)):
            if self.num_kv_heads and features is not None and features.shape[2] != self.num_kv_heads:
                raise ValueError(f"projections give {name} {features.shape[2]} heads: num_kv_heads={self.num_kv_heads}")
        if self.normalize_qk:
            norm = functools.partial(nn.LayerNorm, use_bias=False, dtype=self.dtype, param_dtype=self.param_dtype)
            query = None if query is None else norm(name="query_norm")(query)
            key = None if key is None else norm(name="key_norm")(key)
        return query, of_all_heads(key, self.num_heads), of_all_heads(value, self.num_heads)

    def _dropout_rng(self, deterministic: bool) -> Array | None:
        """The key of dropout; None: no dropout."""
        if deterministic or not self.dropout_rate:
            return None
        if not self.has_rng("dropout"):
            raise ValueError(
                f"dropout_rate={self.dropout_rate} with deterministic=False: expected an rng, "
                'apply(..., rngs={"dropout": key})'
            )
        return self.make_rng("dropout")

    def _check(self, tokens: Tokens) -> None:
        """ValueError for outputs that are not as wide as the inputs."""
        width, joined = tokens.inputs.shape[-1], self.num_heads * tokens.head_dim
        if not self.use_output and (self.extra_heads is not None or joined != width):
            needed = f"num_heads={self.num_heads} x head_dim={tokens.head_dim} to be {width}, and no extra heads"
            raise ValueError(f"use_output=False needs {needed}")

    def needed(self) -> tuple[Part, ...]:
        """The projections that the other parts need."""
        needed = {part for term in by_name(self.terms).values() for part in term.needs}
        needed.update(("value",) if self.values is None else self.values.needs)
        if self.extra_heads is not None:
            needed.add("query")
        return tuple(part for part in PARTS if part in needed)
