"""The names of array axes, and the array types that signatures use.

  b  batch            h  heads                r  relative offsets along one positional dimension
  t  queries          d  features per head    p  positional dimensions
  s  keys             c  model width
  k  heads of keys and values; each serves h / k heads of queries
  m  width of the inputs that keys and values are projected from

A grid of shape S = (S_1, ..., S_p) has N = prod(S) positions, numbered in row-major order, and R = 2 S - 1 relative
offsets per dimension. `*r` stands for the p axes of offsets. n counts points that lie on no grid. The tests check
every annotated shape at run time.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num

Listed = np.ndarray | Sequence | float | bool  # what becomes an array
Shape = Sequence[int]
Sizes = tuple[int, ...]  # a Shape that was checked
Causal = bool | Sequence[bool]  # causal in row-major order, or per dimension

Features = Float[Array, "b t c"]
KeyFeatures = Float[Array, "b s m"]  # the inputs of keys and values
GridFeatures = Float[Array, "b *grid c"]  # [b t c], or with the grid's own axes instead of t
GridKeyFeatures = Float[Array, "b *memory m"]  # [b s m], or with the grid's own axes instead of s
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
GridMask = Bool[Array, "b *keys"]  # [b s], or with the grid's own axes instead of s
GridIds = Int[Array, "b *keys"]
HeadVector = Float[Array, "h d"]
Sigma = Float[Array, "p"] | Float[Array, "h p"] | Float[Array, "#h p p"]  # the last is a Cholesky factor
RelativeEncoding = Float[Array, "*r h d"]
RelativeBias = Float[Array, "*r h"]
Offsets = Num[Array, "*r p"]
Coordinates = Float[Array, "*r p"]
PointPositions = Float[Array, "b n p"]
