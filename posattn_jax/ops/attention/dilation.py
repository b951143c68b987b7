"""Dilated attention, computed as attention on several coarse grids: a query attends to keys that are whole steps away.

Positions that are equal modulo the dilation D attend to each other and to no others. They form a grid of their own,
with C = ceil(S / D) places. The prod(D) coarse grids become examples of one batch, which every implementation can
compute.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array, Query, Shape, Sigma
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.support import BY_PAIR, CUT, PAIRWISE, refuse, supports

UNSUPPORTED = (BY_PAIR, "return_weights", PAIRWISE, CUT)


def coarse(problem: Problem) -> tuple[Problem, Callable[[Query], Query]]:
    """The problem on the coarse grids, and the function that turns its outputs into outputs [b t h d].

    On a coarse grid a step is D positions long: with R the `reference_shape`,

      sigma'_i = sigma_i (R_i - 1) / (D_i (C_i - 1)),     half'_i = ceil(half_i / D_i)

    ValueError for weights, scores or masks of pairs, class tokens, and a grid that is cut over devices.
    """
    refuse(f"dilation={problem.dilation}", supports(UNSUPPORTED, problem))
    cut = Cut(problem.grid_shape, problem.dilation or ())
    if problem.key_mask is None and cut.is_padded:
        problem = dataclasses.replace(problem, key_mask=jnp.ones(problem.query.shape[:2], bool))

    def of_coarse(x, axes):
        return cut.split(x) if axes.startswith("b") else cut.offsets(x) if axes.startswith("r") else x

    sigma, bound = problem.sigma, problem.span_bound
    arrays = jax.tree.map(of_coarse, problem, problem.axes)
    return dataclasses.replace(
        arrays,
        sigma=None if sigma is None else cut.sigma(sigma, problem.reference_shape or problem.grid_shape),
        span_bound=None if bound is None else cut.half(bound),
        grid_shape=cut.shape,
        reference_shape=None,
        dilation=None,
        factors=None,
    ), cut.join


@dataclasses.dataclass(frozen=True)
class Cut:
    """A grid S that is cut into coarse grids.

    Attributes:
      grid_shape: S.
      dilation: D.
    """

    grid_shape: Shape
    dilation: Shape

    @property
    def shape(self) -> tuple[int, ...]:
        """C, the shape of each coarse grid. Those that begin late may have places without a token at their ends."""
        return tuple(-(-size // step) for size, step in zip(self.grid_shape, self.dilation, strict=True))

    @property
    def is_padded(self) -> bool:
        """Whether a coarse grid has places without a token."""
        return any(size % step for size, step in zip(self.grid_shape, self.dilation, strict=True))

    @property
    def num_grids(self) -> int:
        """prod(D)."""
        return math.prod(self.dilation)

    @property
    def share(self) -> float:
        """The number of pairs on all coarse grids, as a share of the pairs on S."""
        return self.num_grids * (math.prod(self.shape) / math.prod(self.grid_shape)) ** 2

    def half(self, half: Iterable[int]) -> tuple[int, ...]:
        """ceil(half / D)."""
        return tuple(-(-reach // step) for reach, step in zip(half, self.dilation, strict=True))

    def split(self, x: Array) -> Array:
        """[b t ...] -> [(b D) C ...], 0 where there is no token."""
        b, _, *rest = x.shape
        p = len(self.dilation)
        x = x.reshape(b, *self.grid_shape, *rest)
        ends = [(0, -size % step) for size, step in zip(self.grid_shape, self.dilation, strict=True)]
        x = jnp.pad(x, [(0, 0), *ends, *((0, 0) for _ in rest)])
        x = x.reshape(b, *itertools.chain(*zip(self.shape, self.dilation, strict=True)), *rest)
        x = jnp.moveaxis(x, range(2, 2 + 2 * p, 2), range(1, 1 + p))
        return x.reshape(b * self.num_grids, math.prod(self.shape), *rest)

    def join(self, x: Array) -> Array:
        """The inverse of `split`."""
        b, _, *rest = x.shape
        p = len(self.dilation)
        x = x.reshape(b // self.num_grids, *self.dilation, *self.shape, *rest)
        x = jnp.moveaxis(x, range(1, 1 + p), range(2, 2 + 2 * p, 2))
        x = x.reshape(
            b // self.num_grids, *(step * size for step, size in zip(self.dilation, self.shape, strict=True)), *rest
        )
        x = x[(slice(None), *(slice(size) for size in self.grid_shape))]
        return x.reshape(x.shape[0], math.prod(self.grid_shape), *rest)

    def offsets(self, table: Array) -> Array:
        """Selects the offsets of whole steps: [*R ...] -> [*(2 C - 1) ...]."""
        steps = zip(self.grid_shape, self.shape, self.dilation, strict=True)
        return table[tuple(slice(size - 1 - step * (c - 1), None, step) for size, c, step in steps)]

    def sigma(self, sigma: Sigma, reference_shape: Shape) -> Sigma:
        """sigma' of `coarse`. Of a factor L the rows are scaled, so that all of L L^T is in the new unit."""
        reference, c = (np.maximum(np.subtract(shape, 1), 1) for shape in (reference_shape, self.shape))
        unit = jnp.asarray(reference / (c * np.array(self.dilation)), sigma.dtype)
        return sigma * (unit[:, None] if sigma.ndim == 3 else unit)
