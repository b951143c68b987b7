"""What the parts of an attention layer are told of its tokens."""

import dataclasses

from posattn_jax.axes import Features, KeyMask, PointPositions, Shape
from posattn_jax.nn.reach import Reach
from posattn_jax.ops.scores import check_key_mask


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokens of a layer: class tokens, if there are any, then the positions of a grid in row-major order.

    Attributes:
      inputs: x [b t c].
      grid_shape: S.
      num_heads, head_dim: h and d.
      reference_shape: the grid that distances are measured in, where it is not S.
      reach: how far any query sees.
      key_mask: [b t], True = keep.
      num_class_tokens: how many tokens stand before the grid.
      positions: [b n p], of points that lie on no grid; S is then (n,), and means nothing but their number.
    """

    inputs: Features
    grid_shape: Shape
    num_heads: int
    head_dim: int
    reference_shape: Shape | None = None
    reach: Reach = None
    key_mask: KeyMask | None = None
    num_class_tokens: int = 0
    positions: PointPositions | None = None

    def __post_init__(self):
        check_key_mask(self.key_mask)
