"""The description of a layer's tokens that its parts receive."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posattn_jax.axes import (
    Array,
    Causal,
    Features,
    GridFeatures,
    GridMask,
    Int,
    KeyFeatures,
    KeyMask,
    PointPositions,
    SegmentIds,
    Shape,
)
from posattn_jax.nn.scores import Extent
from posattn_jax.ops import grid
from posattn_jax.ops.precision import as_array
from posattn_jax.ops.scores import check_bool
from posattn_jax.ops.span import half_span
from posattn_jax.system.compat import Tracer

# The half-span in positions: None without a span; sizes if it is known while tracing; or [p] at run time.
Reach = Shape | Int[Array, "p"] | None


def flattened(
    inputs: GridFeatures, grid_shape: Shape | None, key_mask: GridMask | None, num_class_tokens: int = 0
) -> tuple[Features, Shape, KeyMask | None]:
    """Flattens inputs [b t c] or [b *S c] and their mask to [b t c] and [b t], and returns them with the grid S.

    Without `grid_shape`, S is taken from the shape of the inputs: several axes are a grid, one axis is a sequence.

    Raises:
      ValueError: inputs with the axes of another grid than `grid_shape`, or with the axes of a grid and class tokens;
        features instead of `grid_shape`.
    """
    if len(shape := getattr(grid_shape, "shape", ())) > 1:
        given = f"grid_shape is an array of shape {shape}"
        raise ValueError(f"{given}: expected sizes, such as (3, 4); PositionalCrossAttention attends to other features")
    inputs, key_mask = as_array(inputs), as_array(key_mask)
    own = inputs.shape[1:-1]
    if len(own) > 1 and (num_class_tokens or tuple(grid_shape or own) != own):
        wanted = "none with class tokens" if num_class_tokens else f"those of grid_shape={tuple(grid_shape or ())}"
        raise ValueError(f"inputs has shape {inputs.shape}, a grid of {own}: expected {wanted}, or [b t c]")
    if grid_shape is None:
        grid_shape = own if len(own) > 1 else (inputs.shape[1] - num_class_tokens,)
    mask = None if key_mask is None else lax.collapse(key_mask, 1)
    return lax.collapse(inputs, 1, inputs.ndim - 1), grid_shape, mask


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokens of a layer: class tokens, if there are any, then the positions of a grid in row-major order.

    Attributes:
      inputs: x [b t c], the inputs of the queries.
      grid_shape: S, the grid of the keys.
      num_heads: h.
      head_dim: d; 0: the width of the inputs divided by h.
      reference_shape: the grid that distances are measured in; empty: S.
      table_shape: the grid whose offsets E and beta have; empty: S. It is smaller than S if the grid is split over
        devices or the cache is shorter than S.
      reach: the half-span of the query that sees furthest. E may have any value beyond it. None: no limit.
      key_mask: [b t], True = keep.
      segment_ids, is_causal: as in `relative_attention`.
      num_kv_heads: the number of heads of keys and values, which divides h; 0: h.
      num_class_tokens: how many tokens precede the grid.
      positions: [b n p], the positions of points that lie on no grid. S is then (n,), which only counts them.
      step: the position of the single token of a decoding step, in row-major order; None: no decoding.
      memory: [b s m], the inputs of the keys if they are other tokens than the queries; None: x.
      query_grid_shape: the grid of the queries, if it is another one of the same extent; None: S.

    Example:
      >>> import jax.numpy as jnp
      >>> from posattn_jax import Tokens
      >>> tokens = Tokens(jnp.ones((1, 3 * 4, 8)), (3, 4), num_heads=2)
      >>> tokens.head_dim, tokens.reference_shape
      (4, (3, 4))
    """

    inputs: Features
    grid_shape: Shape
    num_heads: int
    head_dim: int = 0
    reference_shape: Shape = ()
    table_shape: Shape = ()
    reach: Reach = None
    key_mask: KeyMask | None = None
    segment_ids: SegmentIds | None = None
    is_causal: Causal = False
    num_kv_heads: int = 0
    num_class_tokens: int = 0
    positions: PointPositions | None = None
    step: Int[Array, ""] | None = None
    memory: KeyFeatures | None = None
    query_grid_shape: Shape | None = None

    def __post_init__(self):
        object.__setattr__(self, "positions", as_array(self.positions))
        check_bool("key_mask", self.key_mask)
        width = self.inputs.shape[-1]
        if self.num_kv_heads and self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}")
        if not self.head_dim and width % self.num_heads:
            raise ValueError(f"num_heads={self.num_heads} does not divide the width {width}")
        shape = grid.check_grid(self.grid_shape)
        queries = grid.check_query_grid(shape, self.query_grid_shape)
        for name, value in (
            ("grid_shape", shape),
            ("query_grid_shape", None if queries == shape else queries),
            ("head_dim", self.head_dim or width // self.num_heads),
            ("reference_shape", grid.check_reference(shape, self.reference_shape or None)),
            ("table_shape", tuple(self.table_shape) or shape),
            ("num_kv_heads", self.num_kv_heads or self.num_heads),
            ("is_causal", grid.check_causal(self.is_causal, len(shape))),
        ):
            object.__setattr__(self, name, value)

    @property
    def keyed(self) -> KeyFeatures:
        """The inputs of keys and values, [b s m]."""
        return self.inputs if self.memory is None else self.memory

    def check_whole(self, part: object) -> None:
        """ValueError for points, a decoding step or keys of another sequence, which this part does not support."""
        name = type(part).__name__
        if self.positions is not None:
            raise ValueError(f"positions: expected None with {name}, which supports only grids, not points")
        if self.step is not None:
            raise ValueError(f"cache: expected None with {name}, which needs the whole grid at once")
        if self.memory is not None:
            raise ValueError(f"memory: expected None with {name}, which supports only self-attention")

    def check_one_grid(self, part: object) -> None:
        """ValueError if queries and keys are on two grids, for a part that has integer offsets only."""
        if self.query_grid_shape is not None:
            grids = f"queries on {self.query_grid_shape} and keys on {self.grid_shape}"
            raise ValueError(f"{type(part).__name__}: expected queries and keys on one grid, not {grids}")

    def check_fits(self, part: object, *, num_dims: int = 0, num_heads: int = 0, head_dim: int = 0) -> None:
        """ValueError for a part that was created for other sizes, as NNX modules are before they see tokens; 0: any."""
        own = {"num_dims": num_dims, "num_heads": num_heads, "head_dim": head_dim}
        found = {"num_dims": len(self.grid_shape), "num_heads": self.num_heads, "head_dim": self.head_dim}
        for name, number in own.items():
            if number and number != found[name]:
                raise ValueError(f"{type(part).__name__} was made with {name}={number}: the layer has {found[name]}")

    def check_step(self, **more: bool) -> None:
        """ValueError for a decoding step with anything it does not support, among the fields or `more`."""
        asked = {
            f"is_causal={self.is_causal}": self.is_causal is not True,
            **{name: getattr(self, name) is not None for name in ("key_mask", "segment_ids")},
            "class tokens": self.num_class_tokens > 0,
            f"inputs of {self.inputs.shape[1]} positions": self.inputs.shape[1] != 1,
            **more,
        }
        obstacle = next((name for name, found in asked.items() if found), None)
        if self.step is not None and obstacle is not None:
            raise ValueError(f"cache: expected causal attention of one position, without {obstacle}")

    def cut_within(self, span_bound: Shape | None) -> "Tokens":
        """The same tokens of a split grid, with a `table_shape` within this bound of the span."""
        near = (min(b + 1, s) for b, s in zip(span_bound or self.grid_shape, self.grid_shape, strict=True))
        return dataclasses.replace(self, table_shape=tuple(near))

    def seen_within(self, span: Extent | None, span_bound: Shape | None) -> "Tokens":
        """The same tokens with the reach of this span."""
        if span is None or self.query_grid_shape is not None:
            return self
        if self.positions is not None:
            raise ValueError("positions: expected None with a span, which supports only grids, not points")
        if span_bound is not None:
            return dataclasses.replace(self, reach=span_bound)
        is_known = not isinstance(span.sigma, Tracer)
        with jax.ensure_compile_time_eval() if is_known else contextlib.nullcontext():
            half = half_span(span.sigma, span.threshold, self.grid_shape, self.reference_shape)
            half = half.reshape(-1, len(self.grid_shape)).max(0)
            farthest = np.subtract(self.grid_shape, 1).astype(half.dtype)
            reach = jnp.where(jnp.isnan(half), farthest, half).astype(jnp.int32)
        return dataclasses.replace(self, reach=tuple(reach.tolist()) if is_known else reach)
