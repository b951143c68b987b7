"""The arguments that every implementation receives, their checks, and the steps that all implementations share."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import (
    Array,
    Causal,
    Float,
    HeadVector,
    KeyMask,
    PairMask,
    Query,
    RelativeBias,
    RelativeEncoding,
    SegmentIds,
    SharedKey,
    Sigma,
    Sizes,
    Weights,
)
from posattn_jax.ops import grid, scores, span
from posattn_jax.ops.attention.arguments import (
    Block,
    Factors,
    array,
    arrays_of,
    axes_of,
    check_pairs,
    of_all_heads,
    shape_of,
    tree,
)
from posattn_jax.ops.precision import aligned, as_array, float32_or_better, plus, same_dtype, times
from posattn_jax.system.compat import Tracer


@tree
class Problem:
    """The arguments of attention, as `relative_attention` explains them; ValueError where they do not fit together.

    Every implementation receives a `Problem`, and only this class lists and checks arguments. It is a pytree: of
    arrays alone, all else is static. It differs from `relative_attention` in:

    Attributes:
      key, value: [b s k d], where k divides h. An implementation that knows no groups of heads reads `repeated_key` and
        `repeated_value`.
      value: None if only the weights are needed.
      query_grid_shape: None if the queries are on the grid of the keys.
      factors: the parts that E is computed from; with E, or in place of E for an implementation that needs only them.
      num_class_tokens: the number of tokens before the grid. A pair with a class token has no offset: it gets no
        positional term and no G, and no span masks it.
      pair_scores: A [b h t s] of all tokens, added to the content scores and scaled with them; scale A is a `bias`. An
        entry of -inf hides its pair.
      limit: half-spans. Keys further away in any dimension are masked.
      encoded_bound: the largest offset, in each dimension, that E and beta hold, if it is not S - 1.
      block: the rows of one device, if the grid is cut over devices. `grid_shape` is then the grid of the keys.
    """

    query: Query = array("b t h d")
    _: dataclasses.KW_ONLY
    key: SharedKey | None = array("b s k d", default=None)
    value: Any = array("b s k d", default=None)
    relative_encoding: RelativeEncoding | None = array("*r h d", default=None)
    content_bias: HeadVector | None = array("h d", default=None)
    position_bias: HeadVector | None = array("h d", default=None)
    relative_bias: RelativeBias | None = array("*r h", default=None)
    sigma: Sigma | None = array("#h p *p", default=None)
    key_mask: KeyMask | None = array("b s", floating=False, default=None)
    mask: PairMask | None = array("#b #h t s", floating=False, default=None)
    segment_ids: SegmentIds | None = array("b s", floating=False, default=None)
    pair_scores: Weights | None = array("b h t s", default=None)
    dropout_rng: Array | None = array("*_", floating=False, default=None)
    factors: Factors | None = array("", default=None)
    block: Block | None = array("", default=None)
    grid_shape: Sizes
    query_grid_shape: Sizes | None = None
    threshold: float = 0.1
    span_mode: str = "multiply"
    reference_shape: Sizes | None = None
    span_bound: Sizes | None = None
    encoded_bound: Sizes | None = None
    is_causal: Causal = False
    scale: float | None = None
    dropout_rate: float = 0.0
    return_weights: bool = False
    dilation: Sizes | None = None
    num_class_tokens: int = 0
    limit: Sizes | None = None

    @classmethod
    def of(cls, **arguments: Any) -> "Problem":
        """A problem whose arrays may be lists, numbers or NumPy arrays, and sigma one number for all dimensions."""
        for name in ARRAYS.keys() & arguments.keys() - {"factors", "block"}:
            arguments[name] = as_array(arguments[name], ARRAYS[name].metadata["floating"])
        if getattr(arguments.get("sigma"), "ndim", 1) == 0:
            arguments["sigma"] = as_array([arguments["sigma"]] * len(grid.check_grid(arguments["grid_shape"])))
        return cls(**arguments)

    def __post_init__(self):
        shape = grid.check_grid(self.grid_shape)
        queries = grid.check_query_grid(shape, self.query_grid_shape)
        if self.dilation is not None:
            grid.check_dilation(self.dilation, shape)
        changed: dict[str, Any] = {
            "grid_shape": shape,
            "query_grid_shape": None if queries == shape else queries,
            "reference_shape": grid.check_reference(shape, self.reference_shape),
            "is_causal": grid.check_causal(self.is_causal, len(shape)),
        }
        for name in ("span_bound", "encoded_bound", "dilation", "limit"):
            sizes = getattr(self, name)
            changed[name] = None if sizes is None else tuple(int(size) for size in sizes)
        if isinstance(self.scale, np.generic):  # 1 / np.sqrt(d) would decide the dtype of scores
            changed["scale"] = self.scale.item()
        for name, plain in changed.items():
            object.__setattr__(self, name, plain)
        self._check_arrays()
        self._check_parts()

    def _check_arrays(self):
        """ValueError for arrays of other shapes than the query and the grids say."""
        if self.query.ndim != 4:
            raise ValueError(f"query has shape {self.query.shape}: expected [b t h d], the grid's places in one axis")
        b, _, h, d = self.query.shape
        if self.sigma is not None:
            span.check_span(self.sigma, self.threshold, self.span_mode, h, len(self.grid_shape))
        if self.span_bound is not None:
            self._check_bound(self.span_bound)
        cls, shape = self.num_class_tokens, self.grid_shape
        t, s = (cls + grid.num_positions(each) for each in (self.query_shape, shape))
        sizes = {"b": b, "t": t, "s": s, "h": h, "k": self._check_key_heads(), "d": d, "r": self.relative_shape}
        expected = {name: ARRAYS[name].metadata["axes"] for name in self.given}
        expected = {name: shape_of(axes, sizes) for name, axes in expected.items() if name not in ("sigma", "mask")}
        found = {name: getattr(self, name).shape for name in expected}
        if self.factors is not None:
            found["kernel"] = self.factors.kernel.shape
            expected["kernel"] = (*found["kernel"][:1], h, d)
        for name, wanted in expected.items():
            if found[name] != wanted:
                tokens = f" and num_class_tokens={cls}" if cls else ""
                tokens += f" and query_grid_shape={self.query_grid_shape}" if self.query_grid_shape else ""
                raise ValueError(f"{name} has shape {found[name]}: expected {wanted} for grid_shape={shape}{tokens}")
        scores.check_bool("key_mask", self.key_mask)
        scores.check_bool("mask", self.mask)
        check_pairs("mask", self.mask, (b, h, t, s))

    def _check_parts(self):
        """ValueError for parts that do not go together, and for numbers out of their bounds."""
        for bias, sides in (("content_bias", ("key",)), ("position_bias", ("relative_encoding", "factors"))):
            if getattr(self, bias) is not None and all(getattr(self, side) is None for side in sides):
                raise ValueError(f"{bias}: expected {sides[0]} too, which it is multiplied with")
        given = ("key", "relative_encoding", "relative_bias")
        if all(getattr(self, name) is None for name in (*given, "factors", "pair_scores")):
            raise ValueError(f"{', '.join(given[:2])} and {given[2]} are all None: expected at least one")
        if isinstance(self.scale, str) or (isinstance(self.scale, (int, float)) and not math.isfinite(self.scale)):
            raise ValueError(f"scale={self.scale!r}: expected a finite number")
        if self.relative_bias is not None and self.scaling <= 0:
            given = f"scale={self.scaling:g} is given with relative_bias"
            raise ValueError(f"{given}, which is not scaled: expected more than 0")
        if not 0 <= self.dropout_rate < 1:
            raise ValueError(f"dropout_rate={self.dropout_rate}: expected at least 0 and less than 1")
        if self.dropout_rate > 0 and self.dropout_rng is None:
            raise ValueError(f"dropout_rate={self.dropout_rate} needs dropout_rng")
        if self.limit is not None and (len(self.limit) != len(self.grid_shape) or min(self.limit) < 0):
            raise ValueError(f"limit={self.limit}: expected {len(self.grid_shape)} half-spans of at least 0")

    @property
    def given(self) -> dict[str, Any]:
        """The arrays, by name, that are not None; but for keys of random numbers, which have no axes to check."""
        names = (name for name in ARRAYS if name not in ("dropout_rng", "factors", "block"))
        return {name: x for name in names if (x := getattr(self, name)) is not None}

    @property
    def axes(self) -> "Problem":
        """In place of each array the names of its axes, such as "b t h d"; 1 for what all examples or heads share."""
        sizes = dict(zip("bth", self.query.shape, strict=False))
        return jax.tree_util.tree_map_with_path(lambda path, x: axes_of(AXES[path[-1].name], x, sizes), self)

    def _check_key_heads(self) -> int:
        """k, which key and value share; ValueError if it does not divide h."""
        h = self.query.shape[2]
        given = {name: x.shape[2] for name in ("key", "value") if getattr(x := getattr(self, name), "ndim", 0) == 4}
        for name, k in given.items():
            if k == 0 or h % k:
                raise ValueError(f"{name} has {k} heads: expected a divisor of query's {h}")
        if len(set(given.values())) > 1:
            raise ValueError(f"value has {given['value']} heads: expected {given['key']}, as key")
        return next(iter(given.values()), h)

    def _check_bound(self, bound: Sizes):
        if self.sigma is None:
            raise ValueError(f"span_bound={bound} is given without sigma, which it bounds")
        if len(bound) != len(self.grid_shape) or min(bound) < 0:
            raise ValueError(
                f"span_bound={bound}: expected {len(self.grid_shape)} half-spans of at least 0, "
                f"one per dimension of grid_shape={self.grid_shape}"
            )
        half = self.concrete_half
        if half is not None and any(reach > most for reach, most in zip(half, bound, strict=True)):
            raise ValueError(f"span_bound={bound}: smaller than the half-span {half} of sigma and threshold")

    @property
    def is_pairwise(self) -> bool:
        """Whether only "reference", which computes all pairs at once, supports the problem."""
        apart = self.num_class_tokens > 0 or self.query_grid_shape is not None
        return self.value is None or self.limit is not None or apart

    @property
    def is_by_pair(self) -> bool:
        """Whether every pair has a score or a mask of its own, so that no pair can be skipped."""
        return self.mask is not None or self.pair_scores is not None

    @property
    def query_shape(self) -> tuple[int, ...]:
        """The grid of the queries."""
        own = self.query_grid_shape or self.grid_shape
        return own if self.block is None else (self.block.rows, *own[1:])

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The grid that limits the spans: the keys' grid, or the one before it was cut over devices."""
        return self.grid_shape if self.block is None else self.block.whole

    @property
    def encoded_half(self) -> tuple[int, ...]:
        """The largest offset, in each dimension, that E and beta hold."""
        return tuple(size - 1 for size in self.grid_shape) if self.encoded_bound is None else self.encoded_bound

    @property
    def relative_shape(self) -> tuple[int, ...]:
        """R, the number of offsets in each dimension that E and beta hold."""
        if self.query_grid_shape is not None:
            return grid.relative_shape(self.grid_shape, self.query_grid_shape)
        return tuple(2 * half + 1 for half in self.encoded_half)

    def half_of(self, sigma: Sigma) -> Float[Array, "... p"]:
        """The half-span of a sigma on this grid, [p] or [h p]."""
        return span.half_span(sigma, self.threshold, self.whole_shape, self.reference_shape, self.query_grid_shape)

    @functools.cached_property
    def concrete_half(self) -> tuple[int, ...] | None:
        """The half-span, the largest over all heads; None if it is not known while tracing."""
        if self.sigma is None or self.threshold <= 0:
            return tuple(size - 1 for size in self.whole_shape)
        if isinstance(self.sigma, Tracer):
            return None
        with jax.ensure_compile_time_eval():
            half = self.half_of(self.sigma)
        return tuple(int(reach) for reach in np.asarray(half).reshape(-1, len(self.grid_shape)).max(0))

    @property
    def static_half(self) -> tuple[int, ...] | None:
        """A limit of the half-span that is known while tracing: the half-span itself, else `span_bound`, else None."""
        half = self.span_bound if self.concrete_half is None else self.concrete_half
        if half is None:
            return None
        return tuple(min(reach, size - 1) for reach, size in zip(half, self.grid_shape, strict=True))

    def settled(self) -> "Problem":
        """The same problem as implementations receive it, with what is known only at run time in the arrays.

        A traced sigma becomes NaN if its span exceeds `span_bound`. Scores that hide their pair become finite numbers
        of at most `scores.MASKED`, before and after they are scaled: no implementation meets -inf. Such numbers mask
        like every other masked logit, except where G multiplies them: see `masks_offsets` for beta, and pair scores are
        masked by each implementation that supports them.
        """
        changed: dict[str, Any] = {}
        if self.relative_bias is not None:
            changed["relative_bias"] = scores.finite(self.relative_bias, scores.MASKED * max(1.0, self.scaling))
        if self.pair_scores is not None:
            changed["pair_scores"] = scores.finite(self.pair_scores, which=jnp.isneginf)
        if self.sigma is not None and self.span_bound is not None and self.concrete_half is None:
            half = self.half_of(self.sigma)
            exceeds = jnp.any(jnp.greater(*aligned(half, np.asarray(self.span_bound))))
            changed["sigma"] = jnp.where(exceeds, jnp.nan, self.sigma)
        return dataclasses.replace(self, **changed) if changed else self

    @property
    def multiplies(self) -> bool:
        """Whether a span multiplies the scores with G."""
        return self.sigma is not None and self.span_mode == "multiply"

    @property
    def masks_offsets(self) -> bool:
        """Whether loops and kernels must mask the offsets where beta, the last feature of `encoding`, hides its pairs.

        A factor G may raise the logit there. Without it the logit is that of a masked key.
        """
        return self.relative_bias is not None and self.multiplies

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of scores and softmax statistics: float32, or float64 if an input is."""
        scored = (self.query, self.key, self.value, self.content_bias, self.position_bias, self.pair_scores)
        arrays = (*scored, self.relative_encoding, self.relative_bias, self.sigma)
        return float32_or_better(*(array for array in arrays if array is not None))

    @property
    def scaling(self) -> float:
        """`scale`, by default 1 / sqrt(d)."""
        return 1 / math.sqrt(self.query.shape[-1]) if self.scale is None else self.scale

    @property
    def repeated_key(self) -> Any:
        """The key of each head of queries, [b s h d]."""
        return of_all_heads(self.key, self.query.shape[2])

    @property
    def repeated_value(self) -> Any:
        """The value of each head of queries, [b s h d]."""
        return of_all_heads(self.value, self.query.shape[2])

    def content_queries(self, queries: Query) -> Query:
        """q + u."""
        return queries if self.content_bias is None else plus(queries, self.content_bias)

    def product(self, subscripts: str, *arrays: Array) -> Array:
        """The einsum of the arrays, summed in `dtype`."""
        return jnp.einsum(subscripts, *same_dtype(*arrays), preferred_element_type=self.dtype)

    @functools.cached_property
    def encoding(self) -> Float[Array, "*r h _"] | None:
        """E, with beta / scale as one more feature: the partner of `position_queries`; None without E and beta."""
        if self.relative_bias is None:
            return self.relative_encoding
        bias = scores.of_wide_range(self.relative_bias)[..., None] / self.scaling
        if self.relative_encoding is None:
            return bias
        encoding = scores.of_wide_range(self.relative_encoding)
        return jnp.concatenate([encoding, bias.astype(encoding.dtype)], -1)

    def position_queries(self, queries: Query) -> Float[Array, "b t h _"]:
        """q + v if there is an E, and a 1 as one more feature if there is a beta."""
        parts = []
        if self.relative_encoding is not None:
            parts.append(queries if self.position_bias is None else plus(queries, self.position_bias))
        if self.relative_bias is not None:
            parts.append(jnp.ones((*queries.shape[:-1], 1), queries.dtype))
        return jnp.concatenate(same_dtype(*parts), -1)

    def coefficients(self, sigma: Sigma) -> Float[Array, "_ m"]:
        """c in ln G = sum_m c_m offset_i offset_j, [h|1 m]: offsets in positions, (i, j) the m-th of `span.pairs`.

        It is 0 for a span that is a box alone, see `span.log_modulation`.
        """
        units = grid.normalise(np.ones(len(self.grid_shape)), self.grid_shape, self.reference_shape)
        products = jnp.stack([units[i] * units[j] for i, j in span.pairs(sigma)])
        return -0.5 * span.exponent(self.span_mode) * times(span.precision(sigma), products)


ARRAYS = arrays_of(Problem)
AXES = {name: field.metadata["axes"] for kind in (Problem, Factors, Block) for name, field in arrays_of(kind).items()}
