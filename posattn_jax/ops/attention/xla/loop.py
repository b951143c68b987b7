"""The base of the loops over rows and over windows: their arrays, groups of heads, hand-written gradients, and how much
they compute at once.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posattn_jax.axes import Array, Query, Weights
from posattn_jax.ops import scores
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.precision import float32_or_better
from posattn_jax.system.compat import get_default_device, pvary

# The axis of heads in the arrays that have one.
BY_HEAD = ("value", "key", "content_query", "position_query", "pair_scores", "pair_addend")
HEAD_AXES = {**dict.fromkeys(BY_HEAD, 1), "encoding": -2, "sigma": 0}
# The bytes of scores that are computed at once: they should stay in a CPU's cache, and fill an accelerator.
SCORE_BYTES = {"cpu": 2**21}
ACCELERATOR_SCORE_BYTES = 2**28


class Loop:
    """A way to compute the attention of `problem` piece by piece.

    Its arrays have names, as far as the problem has them: features [b h *S d], encoding [*R h d], sigma [h|1 p] or
    [h|1 p p], key_addend and segments [b 1 *S 1], pair_scores [b h *S s], pair_addend [b|1 h|1 *S s], dropout_rng, and
    block [2], the start and first row of a `Block`. They are passed as arguments and never read from `problem`, so that
    they can be differentiated.

    A subclass implements `some_forward` and `some_backward` for a group of `heads` heads.
    """

    def __init__(self, problem: Problem, heads: int):
        self.problem = problem
        self.heads = heads
        self.dtype = problem.dtype
        self.multiply = problem.span_mode == "multiply"

    def cost(self, sigma: Array | None) -> Any:
        """The expected time, in query-key pairs; an array if it depends on sigma at run time.

        0 for a loop that is never one of several.
        """
        return 0.0

    def some_forward(self, arrays: dict[str, Array]) -> tuple[Array, Array | None, Array]:
        """Outputs [b h *S d], weights [b h t s] if the problem asks for them, and statistics [b h *S 2].

        The statistics of a query are its largest logit and 1 / sum of exp(logit - largest). A weight is
        exp(logit - largest) times the latter. The logarithm of the softmax's denominator would be a single number, but
        its rounding error is too large.
        """
        raise NotImplementedError

    def some_backward(
        self, arrays: dict[str, Array], outputs: Array, statistics: Array, d_outputs: Array, d_weights: Array | None
    ) -> dict[str, Array]:
        """The cotangents of the arrays that have one."""
        raise NotImplementedError

    def first_query(self, arrays: dict[str, Array]) -> Any:
        """The position on the keys' grid where the queries begin: [p]."""
        along_first = (np.arange(len(self.problem.grid_shape)) == 0).astype(np.int32)
        return along_first * (arrays["block"][0] if "block" in arrays else 0)

    def key_range(self, arrays: dict[str, Array]) -> tuple[Any, Any]:
        """The first position of the keys' grid that holds a key, and the end of those that do, each [p]."""
        size = np.array(self.problem.grid_shape)
        if "block" not in arrays:
            return np.zeros_like(size), size
        first = (np.arange(len(size)) == 0).astype(np.int32) * arrays["block"][1]
        whole = np.array(self.problem.whole_shape, np.int32)
        return jnp.maximum(-first, 0), jnp.minimum(whole - first, size.astype(np.int32))

    @staticmethod
    def of_queries(arrays: dict[str, Array]) -> dict[str, Array]:
        """The arrays that have a row for every query."""
        return {name: arrays[name] for name in ("content_query", "position_query", "pair_scores") if name in arrays}

    def forward(self, arrays: dict[str, Array]):
        """`some_forward` for all heads."""
        results = self._map_heads(self.some_forward, arrays)
        return jax.tree.map(lambda x: _join(x, 1), results) if self._in_groups(arrays) else results

    def backward(self, arrays: dict[str, Array], *features: Array | None):
        """`some_backward` for all heads, and None for arrays without a gradient."""
        cotangents = self._map_heads(self.some_backward, arrays, *features)
        if self._in_groups(arrays):
            axes = self._head_axes(arrays)
            cotangents = {name: _join(x, axes[name]) if name in axes else x.sum(0) for name, x in cotangents.items()}
        return {name: cotangents[name].astype(x.dtype) if name in cotangents else None for name, x in arrays.items()}

    def _in_groups(self, arrays):
        return self.heads < arrays["value"].shape[1]

    def _head_axes(self, arrays):
        """The axis of heads of each array to be split; a sigma for all heads is not split."""
        h = arrays["value"].shape[1]
        return {name: axis for name, axis in HEAD_AXES.items() if name in arrays and arrays[name].shape[axis] == h}

    def _map_heads(self, function: Callable, arrays, *features):
        if not self._in_groups(arrays):
            return function(arrays, *features)
        axes = self._head_axes(arrays)
        parts = {name: _split(arrays[name], axis, self.heads) for name, axis in axes.items()}
        features = [None if x is None else _split(x, 1, self.heads) for x in features]
        return lax.map(lambda xs: function(arrays | xs[0], *xs[1]), (parts, features))


def scan(body: Callable, carry: Any, xs: Any) -> tuple[Any, Any]:
    """As `lax.scan`, but without a loop if there is a single step.

    If JAX differentiates it, a step is computed again in place of keeping its intermediates.
    """
    if len(jax.tree.leaves(xs)[0]) > 1:
        return lax.scan(jax.checkpoint(body, prevent_cse=False), carry, xs)
    carry, ys = body(carry, jax.tree.map(lambda x: x[0], xs))
    return carry, jax.tree.map(lambda y: y[None], ys)


def _split(x: Array, axis: int, heads: int) -> Array:
    """[... h ...] -> [groups, ... heads ...]."""
    axis %= x.ndim
    return jnp.moveaxis(x.reshape(*x.shape[:axis], -1, heads, *x.shape[axis + 1 :]), axis, 0)


def _join(x: Array, axis: int) -> Array:
    """The inverse of `_split`."""
    axis %= x.ndim - 1
    x = jnp.moveaxis(x, 0, axis)
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])


def run_loops(
    problem: Problem, loops: Sequence[Loop], second: Callable[[Problem], Loop], own_gradient: bool = True
) -> tuple[Query, Weights | None]:
    """Outputs [b t h d], and weights if the problem asks for them, by the loop that costs least.

    If the costs are known only at run time, one program holds all loops. The gradient is the loop's own; without
    `own_gradient` it is JAX's, which needs far more memory but has forward-mode derivatives too.

    JAX differentiates no loop of `loops`, whose number of steps may be known only at run time. The derivatives of
    gradients, and JAX's own gradient, are those of the loop that `second` makes: of a static number of steps, and so
    with derivatives of any order in both modes.
    """
    arrays = varying(_arrays(problem))
    costs = [loop.cost(arrays.get("sigma")) for loop in loops]
    if not any(isinstance(cost, jax.Array) for cost in costs):
        loops = [loops[costs.index(min(costs))]]

    def run(name, arrays, *rest):
        branches = [getattr(loop, name) for loop in loops]
        if len(branches) == 1:
            return branches[0](arrays, *rest)
        costs = jnp.stack([loop.cost(arrays["sigma"]) for loop in loops])
        return lax.switch(jnp.argmin(costs), branches, arrays, *rest)

    @jax.custom_jvp
    def forward(arrays):
        return run("forward", arrays)

    @jax.custom_jvp
    def backward(arrays, outputs, statistics, d_outputs, d_weights):
        return run("backward", arrays, outputs, statistics, d_outputs, d_weights)

    @forward.defjvp
    def of_outputs(primals, tangents):
        found = outputs, weights, statistics = forward(*primals)
        moved, moved_weights, _ = jax.jvp(second(problem).forward, primals, tangents)[1]
        moved_weights = None if weights is None else moved_weights.astype(weights.dtype)
        # Nothing that is differentiated reads the statistics: `of_cotangents` computes its own.
        return found, (moved.astype(outputs.dtype), moved_weights, jnp.zeros_like(statistics))

    @backward.defjvp
    def of_cotangents(primals, tangents):
        loop = second(problem)

        def again(arrays, *cotangents):
            outputs, _, statistics = loop.forward(arrays)
            return loop.backward(arrays, outputs, statistics, *cotangents)

        arrays, _, _, *cotangents = primals
        moved, _, _, *moved_cotangents = tangents
        return backward(*primals), jax.jvp(again, (arrays, *cotangents), (moved, *moved_cotangents))[1]

    def with_residuals(arrays):
        outputs, weights, statistics = forward(arrays)
        return (outputs, weights), (arrays, outputs, statistics)

    @jax.custom_vjp
    def attended(arrays):
        return with_residuals(arrays)[0]

    attended.defvjp(with_residuals, lambda residuals, cotangents: (backward(*residuals, *cotangents),))
    outputs, weights = attended(arrays) if own_gradient else with_residuals(arrays)[0]
    return jnp.moveaxis(lax.collapse(outputs, 2, outputs.ndim - 1), 1, 2).astype(problem.value.dtype), weights


def varying(arrays: Any, axes: frozenset[str] | None = None) -> Any:
    """Arrays that all vary over the same axes of devices, by default over those of any of them.

    These are axes of a `jax.shard_map` that checks whether arrays vary (check_vma=True); else nothing is changed. The
    gradient of what is the same on all devices is then summed over them where it enters.
    """
    if axes is None:
        axes = frozenset().union(*map(axes_varied_over, jax.tree.leaves(arrays)))

    def varied(x):
        missing = axes - axes_varied_over(x)
        return pvary(x, tuple(sorted(missing))) if missing else x

    return jax.tree.map(varied, arrays)


def axes_varied_over(array: Array) -> frozenset[str]:
    """The axes of devices that an array varies over by its type."""
    kind = jax.typeof(array)
    return kind.manual_axis_type.varying if hasattr(kind, "manual_axis_type") else kind.vma  # of an older jax


def _arrays(problem: Problem) -> dict[str, Array]:
    def features(x, shape=problem.grid_shape):
        """[b t h d] -> [b h *S d]."""
        b, _, h, d = x.shape
        return jnp.moveaxis(x, 2, 1).reshape(b, h, *shape, d)

    arrays = {"value": features(problem.repeated_value)}
    if problem.key is not None:
        arrays["key"] = features(problem.repeated_key)
        arrays["content_query"] = features(problem.content_queries(problem.query), problem.query_shape)
    if problem.encoding is not None:
        arrays["encoding"] = problem.encoding
        arrays["position_query"] = features(problem.position_queries(problem.query), problem.query_shape)
    if problem.key_mask is not None:
        masked = scores.masked_out(problem.key_mask, problem.dtype)
        arrays["key_addend"] = masked.reshape(masked.shape[0], 1, *problem.grid_shape, 1)
    if problem.segment_ids is not None:
        arrays["segments"] = problem.segment_ids.reshape(problem.segment_ids.shape[0], 1, *problem.grid_shape, 1)
    for name, pairs in (("pair_scores", problem.pair_scores), ("pair_addend", problem.mask)):
        if pairs is not None:
            pairs = scores.masked_out(pairs, problem.dtype) if pairs.dtype == bool else pairs
            arrays[name] = pairs.reshape(*pairs.shape[:2], *problem.query_shape, pairs.shape[-1])
    if problem.sigma is not None:
        arrays["sigma"] = jnp.atleast_2d(problem.sigma.astype(float32_or_better(problem.sigma)))
    if problem.dropout_rng is not None and problem.dropout_rate > 0:
        arrays["dropout_rng"] = problem.dropout_rng
    if problem.block is not None:
        arrays["block"] = jnp.stack([jnp.asarray(x, jnp.int32) for x in (problem.block.start, problem.block.first)])
    return arrays


def examples(batch: Any) -> int:
    """The number of examples to choose sizes for: 1 for an empty batch, and for one whose size is symbolic."""
    return max(1, batch) if isinstance(batch, int) else 1


def score_bytes() -> int:
    """The bytes of scores to compute at once on this device."""
    return SCORE_BYTES.get(get_default_device().platform, ACCELERATOR_SCORE_BYTES)


def heads_at_once(num_heads: int, room: int) -> int:
    """The largest divisor of `num_heads` that is at most `room`; at least 1."""
    return max(count for count in range(1, num_heads + 1) if num_heads % count == 0 and count <= max(1, room))
