"""The attention layer: one operation with replaceable parts."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Features, KeyMask, PointPositions, Query, Shape, Value, Weights
from posattn_jax.nn.checks import check_rates, check_sizes
from posattn_jax.nn.displacements import OverDisplacements
from posattn_jax.nn.linear import XAVIER
from posattn_jax.nn.projections import PARTS, LinearProjections, Part
from posattn_jax.nn.reach import Reach
from posattn_jax.nn.span import GaussianSpan, WindowSpan
from posattn_jax.nn.terms import Content
from posattn_jax.nn.tokens import Tokens
from posattn_jax.nn.translution import PairValues
from posattn_jax.nn.values import PlusDepthwise, PlusRelative
from posattn_jax.ops.attention import (
    CUT_LAYOUTS,
    LAYOUTS,
    Implementation,
    attention_weights,
    factorised_pays,
    halo_attention,
    relative_attention,
    sinusoidal_attention,
)
from posattn_jax.ops.span import half_span

# What several terms may give: the scores are sums.
SUMMED = {"relative_encoding", "relative_bias", "content_bias", "position_bias", "pair_scores"}


class PositionalSelfAttention(nn.Module):
    """Multi-head self-attention on an n-D grid (Alfons 2022, Figure 4 and Algorithm 1), in replaceable parts.

      y = o(gate(attend(projections(x)))), attend as `relative_attention`

    The terms decide what the scores are made of; with `(Content(),)` alone the layer knows no positions:

      PositionalSelfAttention(
          num_heads=8,
          terms=(Content(), Positional(SirenEncoding()), ContentBias(), PositionalBias()),
          span=GaussianSpan(threshold=0.1),
      )

    Attributes:
      num_heads: h.
      head_dim: d; None: the width of the inputs divided by h.
      terms: the summed score terms. Encodings and biases add up, several of a kind too; there is one content term.
      span: the learned span, or a given window; None: everything is attended.
      values: a function or module applied to the values [b s h d] before they are averaged; or one that makes them from
        the inputs for every pair and averages them itself, such as `Translution()`; or `PlusDepthwise` and
        `PlusRelative`, which add to their averages; None: plain values.
      gate: a function or module (x [b t c], outputs [b t h d]) -> outputs, before the output projection; None: no gate.
      beside: heads that do not attend: a module (query, tokens, deterministic) -> outputs [b t h' d], joined to those
        of the others before the output projection, such as `SpanConvolution`; None: no more heads.
      projections: a module (tokens, parts) -> query, key, value, of which `parts` are needed; None:
        `LinearProjections()`.
      use_output: whether there is an output projection o; without it the heads' outputs are joined, and h d must be c.
      dropout_rate: of the attention weights (the paper has none).
      scale: of the terms; None: 1 / sqrt(d).
      implementation: the layout of `relative_attention`; or "factorised", `sinusoidal_attention`, for sinusoids without
        a span, which "auto" chooses where it pays.
      grid_axis: the axis of the mesh in scope (`jax.set_mesh`), if it has one, that the grid's first dimension is cut
        over: see `halo_attention`, which then attends. Everything else is left to the compiler. None: no axis.
      kernel_init: of the output projection, as a matrix [h d, c].
      bias_init: of the output projection.
      dtype: of the computation; None follows the inputs. Positions and the span are computed in float32 or better.
      param_dtype: of the projections; each other part has its own.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Content, GaussianSpan, Positional, PositionalSelfAttention, SirenEncoding
      >>> terms = (Content(), Positional(SirenEncoding()))
      >>> layer = PositionalSelfAttention(num_heads=2, terms=terms, span=GaussianSpan())
      >>> pixels = jnp.ones((1, 3 * 4, 8))
      >>> (outputs, made), variables = layer.init_with_output(jax.random.key(0), pixels, (3, 4))
      >>> outputs.shape, made["relative_encoding"].shape
      ((1, 12, 8), (5, 7, 2, 4))
    """

    num_heads: int
    head_dim: int | None = None
    terms: tuple[nn.Module, ...] = (Content(),)
    span: GaussianSpan | WindowSpan | None = None
    values: Callable | None = None
    gate: Callable | None = None
    beside: nn.Module | None = None
    projections: nn.Module | None = None
    use_output: bool = True
    dropout_rate: float = 0.0
    scale: float | None = None
    implementation: Implementation | Literal["factorised"] = "auto"
    grid_axis: str | None = None
    kernel_init: Initializer = XAVIER
    bias_init: Initializer = nn.initializers.zeros
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        check_sizes(self, "num_heads", "head_dim")
        check_rates(self, "dropout_rate")
        super().__post_init__()

    @nn.compact
    def __call__(
        self,
        inputs: Features,
        grid_shape: Shape,
        *,
        key_mask: KeyMask | None = None,
        is_causal: bool = False,
        reference_shape: Shape | None = None,
        span_bound: Shape | None = None,
        num_class_tokens: int = 0,
        positions: PointPositions | None = None,
        deterministic: bool = True,
        return_weights: bool = False,
    ) -> tuple[Features, dict[str, Any]]:
        """Attends over the grid.

        With class tokens, or terms or values that are `by_pair`, the weights are laid out for every pair, whatever the
        implementation: see `attention_weights`.

        Args:
          inputs: [b t c], class tokens, if there are any, and the positions of the grid in row-major order.
          grid_shape: S, one to three sizes whose product is t less the class tokens; (n,) of n points.
          key_mask: [b t], True = keep.
          is_causal: query t attends to keys s <= t in row-major order.
          reference_shape: the grid that distances are measured in, where it is not `grid_shape`: a model trained on
            it keeps its meaning of distance on a larger grid.
          span_bound: half-spans that the span does not exceed, for layouts of a static size; see `relative_attention`.
          num_class_tokens: how many tokens stand before the grid. They have no place on it: no term of position, and
            no span, holds for a pair with one of them.
          positions: [b n p], where points lie that are on no grid; for layers of which only the values ask for it.
          deterministic: whether dropout is off; otherwise an rng "dropout" is needed.
          return_weights: whether the second result has the attention weights too.

        Returns:
          The outputs [b t c] and a dict of what the layer made on the way, as far as its parts make it:
          "relative_encoding" [*R, h, d] (0 where the span does not reach), "relative_bias" [*R, h], both without what
          lies beyond `span_bound` where the grid is cut; "sigma" as `relative_attention` takes it, "depthwise_kernel"
          [*K, c], "weights" [b h t s].

        Raises:
          ValueError: a number of heads that does not divide the width, a grid that does not match the inputs, or an
            implementation that there is not, or not for this layer.
        """
        width = inputs.shape[-1]
        if self.head_dim is None and width % self.num_heads:
            raise ValueError(f"num_heads={self.num_heads} does not divide the width {width}")
        head_dim = self.head_dim or width // self.num_heads
        if not self.use_output and (self.beside is not None or self.num_heads * head_dim != width):
            needed = f"num_heads={self.num_heads} x head_dim={head_dim} to be {width}, and no heads beside"
            raise ValueError(f"use_output=False needs {needed}")
        if positions is not None and self.span is not None:
            raise ValueError("positions is given: points have no span on a grid")
        projections = self.projections
        if projections is None:
            projections = LinearProjections(dtype=self.dtype, param_dtype=self.param_dtype, name="projections")
        by_pair = num_class_tokens > 0 or any(getattr(part, "by_pair", False) for part in (*self.terms, self.values))
        span = {} if self.span is None else self.span(self.num_heads, reference_shape or grid_shape)
        tokens = Tokens(
            inputs=inputs if self.dtype is None else inputs.astype(self.dtype),
            grid_shape=grid_shape,
            num_heads=self.num_heads,
            head_dim=head_dim,
            reference_shape=reference_shape,
            reach=_reach(span, grid_shape, reference_shape, None if by_pair else span_bound),
            key_mask=key_mask,
            num_class_tokens=num_class_tokens,
            positions=positions,
        )
        query, key, value = projections(tokens, self._needed())
        is_cut, met = self._is_cut(by_pair, return_weights), tokens
        if is_cut:  # terms are asked for the offsets within the bound alone: all those of a smaller grid
            near = tuple(min(b + 1, s) for b, s in zip(span_bound or grid_shape, grid_shape, strict=True))
            unit = reference_shape or grid_shape
            met = dataclasses.replace(tokens, grid_shape=near, reference_shape=unit, reach=None)
        arguments = {}
        for term in self.terms:
            added = term(query, key, tokens if getattr(term, "by_place", False) else met)
            both = arguments.keys() & added.keys()
            if alone := both - {"factors", *SUMMED}:
                raise ValueError(f"terms has {type(term).__name__} and another that gives {min(alone)}: expected one")
            arguments |= added | {name: arguments[name] + added[name] for name in both & SUMMED}
            if "relative_encoding" in both:
                arguments["factors"] = None  # no one W makes the sum of two encodings
        if positions is not None and arguments.keys() & {"relative_encoding", "relative_bias"}:
            raise ValueError("positions is given: points have no relative encoding or bias of a grid")
        if "query" in arguments and (beside := arguments.keys() & {"relative_encoding", "content_bias"}):
            raise ValueError(f"terms has RotaryContent, whose queries and keys meet no others, and {min(beside)}")
        arguments.setdefault("key", None)
        factors, plain_query, query = arguments.pop("factors", None), query, arguments.pop("query", query)
        if query is None:  # nothing asks for it, but for its shape
            query = jnp.zeros((*inputs.shape[:2], self.num_heads, head_dim), self.dtype or inputs.dtype)
        factorised = self._is_factorised(query, factors, return_weights, by_pair, "relative_bias" in arguments)
        made = {name: arguments[name] for name in ("relative_encoding", "relative_bias") if name in arguments}
        scores = {"pair_scores": arguments.pop("pair_scores")} if "pair_scores" in arguments else {}  # not rounded
        arguments = {name: array if array is None else array.astype(query.dtype) for name, array in arguments.items()}
        if self.span is not None:
            arguments |= span
            made["sigma"] = arguments["sigma"]
        drops = self.dropout_rate > 0 and not deterministic
        dropout = {
            "dropout_rate": self.dropout_rate if drops else 0.0,
            "dropout_rng": self.make_rng("dropout") if drops else None,
        }
        arguments |= {
            "grid_shape": grid_shape,
            "reference_shape": reference_shape,
            "key_mask": key_mask,
            "is_causal": is_causal,
            "scale": self.scale,
        }
        added = None
        if isinstance(self.values, PlusDepthwise):
            added, made["depthwise_kernel"] = self.values(value, tokens), self.values.kernel
        elif self.values is not None and not isinstance(self.values, PairValues | PlusRelative):
            value = self.values(value)
        if by_pair:
            outputs, made["weights"] = self._by_pair(query, value, tokens, arguments | scores | dropout)
        else:
            if factorised:
                del arguments["relative_encoding"]
                attended = sinusoidal_attention(query, value=value, **arguments, **factors)
            elif is_cut:
                arguments |= {"span_bound": span_bound, "implementation": self.implementation}
                attended = halo_attention(query, value=value, **arguments, axis_name=self.grid_axis)
            else:
                arguments |= dropout | {"span_bound": span_bound if span else None}
                attended: Any = relative_attention(
                    query, value=value, **arguments, implementation=self.implementation, return_weights=return_weights
                )
            outputs, made["weights"] = attended if return_weights else (attended, None)
        if not return_weights:
            del made["weights"]
        if added is not None:
            outputs += added
        if self.gate is not None:
            outputs = self.gate(inputs, outputs)
        if self.beside is not None:
            outputs = jnp.concatenate([outputs, self.beside(plain_query, tokens, deterministic)], 2)
        if not self.use_output:
            return outputs.reshape(*outputs.shape[:2], width), made
        outputs = nn.DenseGeneral(
            width,
            axis=(-2, -1),
            kernel_init=self.kernel_init,
            bias_init=self.bias_init,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name="output",
        )(outputs)
        return outputs, made

    def _needed(self) -> tuple[Part, ...]:
        """What the other parts need of the projections."""
        needed = {part for term in self.terms for part in getattr(term, "needs", ("query", "key"))}
        if self.beside is not None:
            needed.add("query")
        if not isinstance(self.values, PairValues):
            needed.add("value")
        return tuple(part for part in PARTS if part in needed)

    def _by_pair(
        self, query: Query, value: Value | None, tokens: Tokens, arguments: dict[str, Any]
    ) -> tuple[Query, Weights]:
        """Outputs and weights, by way of the weights."""
        limits = [part.limit(tokens) for part in (*self.terms, self.values) if isinstance(part, OverDisplacements)]
        limits = np.array([limit for limit in limits if limit is not None])
        weights = attention_weights(
            query,
            num_class_tokens=tokens.num_class_tokens,
            half_span=limits.min(0).tolist() if len(limits) else None,
            **arguments,
        )
        if isinstance(self.values, PairValues):
            return self.values(weights.astype(tokens.inputs.dtype), tokens), weights
        outputs = jnp.einsum("bhts,bshd->bthd", weights, value, preferred_element_type=weights.dtype)
        if isinstance(self.values, PlusRelative):
            outputs += self.values(weights, tokens)
        return outputs.astype(value.dtype), weights

    def _is_cut(self, by_pair: bool, return_weights: bool) -> bool:
        """Whether the grid is cut over devices; ValueError where it is to be and cannot be."""
        if self.grid_axis is None:
            return False
        obstacles = {
            "attention without a span": self.span is None,
            f'implementation="{self.implementation}"': self.implementation not in CUT_LAYOUTS,
            "class tokens, or parts that are by pair": by_pair,
            "return_weights": return_weights,
            "attention dropout": self.dropout_rate > 0,
        }
        obstacle = next((name for name, found in obstacles.items() if found), None)
        if obstacle is not None:
            raise ValueError(f'grid_axis="{self.grid_axis}" does not support {obstacle}')
        return jax.sharding.get_abstract_mesh().shape.get(self.grid_axis, 1) > 1

    def _is_factorised(
        self, query: Query, factors: dict[str, Any] | None, return_weights: bool, by_pair: bool, biased: bool
    ) -> bool:
        """Whether E is left to the sinusoids it is made of; ValueError where that is asked for and cannot be."""
        if self.implementation not in (*LAYOUTS, "factorised"):
            known = ", ".join(sorted((*LAYOUTS, "factorised")))
            raise ValueError(f'implementation="{self.implementation}": expected one of {known}')
        obstacles = {
            "a span": self.span is not None,
            "terms without one sinusoidal encoding": factors is None,
            "a relative bias": biased,
            "return_weights": return_weights,
            "class tokens, or parts that are by pair": by_pair,
            "attention dropout": self.dropout_rate > 0,
        }
        obstacle = next((name for name, found in obstacles.items() if found), None)
        if self.implementation == "factorised" and obstacle is not None:
            raise ValueError(f'implementation="factorised" does not support {obstacle}: "auto" does')
        return obstacle is None and (
            self.implementation == "factorised" or (self.implementation == "auto" and factorised_pays(query))
        )


def _reach(span: dict[str, Any], grid_shape: Shape, reference_shape: Shape | None, span_bound: Shape | None) -> Reach:
    """How far any query sees: `span_bound` where it is given, else the span's size at run time; None: everywhere."""
    if not span or span_bound is not None:
        return span_bound if span else None
    half = half_span(span["sigma"], span["threshold"], grid_shape, reference_shape)
    half = half.reshape(-1, len(grid_shape)).max(0)
    return jnp.where(jnp.isnan(half), np.subtract(grid_shape, 1), half).astype(jnp.int32)
