"""The alphabet of axes, and the array types that signatures are written in.

  b  batch            h  heads             r  relative offsets of one positional dimension
  t  queries          d  features a head   p  positional dimensions
  s  keys             c  model width
  k  heads of keys and values, each for h / k heads of queries
  m  width of what keys and values are made of

A grid of shape S = (S_1, ..., S_p) has N = prod(S) positions, numbered row-major, and R = 2 S - 1 relative
offsets a dimension. `*r` stands for all p axes of offsets; n counts points that lie on no grid. The tests check every
annotated shape as they run.
"""

from collections.abc import Sequence

from jaxtyping import Array, Bool, Float, Int, Num

Shape = Sequence[int]
Sizes = tuple[int, ...]  # a Shape that was checked
Causal = bool | Sequence[bool]  # in row-major order, or in each dimension

Features = Float[Array, "b t c"]
KeyFeatures = Float[Array, "b s m"]  # what keys and values are made of
GridFeatures = Float[Array, "b *grid c"]  # [b t c], or with the grid's own axes instead of t
GridKeyFeatures = Float[Array, "b *memory m"]  # likewise
Query = Float[Array, "b t h d"]
Key = Float[Array, "b s h d"]
Value = Float[Array, "b s h d"]
SharedKey = Float[Array, "b s k d"]
PairMask = Bool[Array, "#b #h t s"]
PairBias = Float[Array, "#b #h t s"]
Lengths = Int[Array, "b"]
SegmentIds = Int[Array, "b t"]
Weights = Float[Array, "b h t s"]
KeyMask = Bool[Array, "b s"]
GridMask = Bool[Array, "b *keys"]  # likewise
GridIds = Int[Array, "b *keys"]
HeadVector = Float[Array, "h d"]
Sigma = Float[Array, "p"] | Float[Array, "h p"] | Float[Array, "#h p p"]  # the last a Cholesky factor
RelativeEncoding = Float[Array, "*r h d"]
RelativeBias = Float[Array, "*r h"]
Offsets = Num[Array, "*r p"]
Coordinates = Float[Array, "*r p"]
PointPositions = Float[Array, "b n p"]
