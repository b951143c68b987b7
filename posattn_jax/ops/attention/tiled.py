"""Layout "tiled": cost and memory follow the span.

Queries are cut into tiles. A step of the loop lets every tile meet the window of keys at one offset from it, so the
encodings P and the Gaussian G between them are the same for all tiles and the batch, and everything is dense products.
The number of steps comes from sigma at run time: one program serves every span. Softmax is accumulated over the steps;
the backward pass runs the same loop and computes the weights again.
"""

from posattn_jax.axes import Query
from posattn_jax.ops.attention.loop import attend
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.tiles import tilings
from posattn_jax.ops.attention.window_loop import WindowLoop


def tiled_attention(problem: Problem) -> tuple[Query, None]:
    """Outputs [b t h d]."""
    problem.check_local("tiled")
    return attend(problem, window_loops(problem))[0], None


def window_loops(problem: Problem) -> list[WindowLoop]:
    """A loop for each tiling that may be the best; which is the best, the span decides."""
    b, _, h, _ = problem.query.shape
    itemsize = problem.dtype.itemsize
    choices = tilings(problem.grid_shape, b, h, itemsize, problem.static_half, problem.query_shape)
    return [WindowLoop(problem, tiling, heads) for tiling, heads in choices]
