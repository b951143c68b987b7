"""Layout "tiled": cost and memory follow the span.

Queries are cut into tiles. A trip of the loop lets every tile meet the window of keys at one offset from it, so the
encodings P and the Gaussian G between them are the same for all tiles and the batch, and everything is dense products.
The number of trips comes from sigma at run time: one program serves every span. Softmax is accumulated over the trips;
the backward pass runs the same loop and computes the weights again.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from posattn_jax.axes import Query
from posattn_jax.ops import scores
from posattn_jax.ops.attention.problem import Problem, map_heads
from posattn_jax.ops.attention.tiles import Tiling, tilings
from posattn_jax.ops.attention.window_loop import WindowLoop


def tiled_attention(problem: Problem) -> tuple[Query, None]:
    """Outputs [b t h d]."""
    problem.check_local("tiled")
    b, _, h, _ = problem.query.shape
    choices = tilings(problem.grid_shape, b, h, problem.dtype.itemsize, problem.static_half)
    heads = min(heads for _, heads in choices)
    return map_heads(functools.partial(_attend, [tiling for tiling, _ in choices]), problem, heads), None


def _attend(choices: list[Tiling], problem: Problem) -> Query:
    """Outputs [b t h d] of some heads.

    Which of the tilings the loop uses is chosen at run time, by the pairs that it would compute for this span.
    """
    shape = problem.grid_shape
    loops = [WindowLoop(problem, tiling) for tiling in choices]

    def features(x):
        """[b t h d] -> [b h *S d]."""
        b, _, h, d = x.shape
        return jnp.moveaxis(x, 2, 1).reshape(b, h, *shape, d)

    arrays = {"value": features(problem.value)}
    if problem.key is not None:
        arrays["key"] = features(problem.key)
        arrays["content_query"] = features(problem.content_queries(problem.query))
    if problem.relative_encoding is not None:
        arrays["encoding"] = problem.relative_encoding
        arrays["position_query"] = features(problem.position_queries(problem.query))
    if problem.key_mask is not None:
        masked = scores.masked_out(problem.key_mask, problem.dtype)
        arrays["key_addend"] = masked.reshape(len(masked), 1, *shape, 1)
    if problem.sigma is not None:
        sigma = problem.sigma.astype(jnp.result_type(jnp.float32, problem.sigma))
        arrays["sigma"] = jnp.atleast_2d(sigma)

    def run(name, arrays, *rest):
        branches = [getattr(loop, name) for loop in loops]
        if len(branches) == 1:
            return branches[0](arrays, *rest)
        costs = jnp.stack([loop.tiling.cost(loop.reach(arrays["sigma"])) for loop in loops])
        return lax.switch(jnp.argmin(costs), branches, arrays, *rest)

    def forward(arrays):
        outputs, log_total = run("forward", arrays)
        return outputs, (arrays, outputs, log_total)

    @jax.custom_vjp
    def attend(arrays):
        return forward(arrays)[0]

    attend.defvjp(forward, lambda residuals, cotangent: (run("backward", *residuals, cotangent),))
    outputs = attend(arrays)
    b, h, *_, d = outputs.shape
    return jnp.moveaxis(outputs.reshape(b, h, -1, d), 1, 2).astype(problem.value.dtype)
