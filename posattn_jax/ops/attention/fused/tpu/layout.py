"""Attention fused into kernels for TPUs, in Pallas Mosaic: scores, span, softmax and products never leave the chip."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from posattn_jax.ops import scores, span
from posattn_jax.ops.attention.fused.tpu import skew
from posattn_jax.ops.attention.fused.tpu.kernels import Kernels
from posattn_jax.ops.attention.fused.tpu.plan import ROOM, Plan, Tile, arrange, plan_for
from posattn_jax.ops.attention.fused.tpu.skew import LANES
from posattn_jax.ops.attention.fused.tpu.walk import Bounds, Place
from posattn_jax.ops.attention.loop import Loop
from posattn_jax.ops.attention.problem import Problem

# The rows of a register for the smallest dtype: a tile may begin at multiples of this.
SUBLANES = 16
# The arrays by position, which are cut into chunks: features and statistics.
FEATURES = ("value", "key", "content_query", "position_query", "cotangent", "outputs", "statistics")


class FusedTpu(Loop):
    """Attention of all heads in one launch forward and two or three backward, for `attend`.

    The grid is arranged in `Strips`, which are cut into chunks of at most `limit` positions. A launch has a step for
    each chunk of queries and each chunk of keys that the largest span of all heads reaches. The chunks of the next step
    are fetched during a step. Within a step a loop runs over the tiles of keys that the span of its head reaches, which
    may be known only at run time. G and the masks are computed there from sigma. Positional scores are products of a
    tile of queries with the encodings of all its offsets. The rows of the result are then shifted against each other,
    so that scores by offset become scores by key.

    The backward pass computes the weights again in each of its kernels. The cotangents of queries and sigma are summed
    over keys, those of keys and values over queries, and those of encodings over strips and the batch. So there is no
    scatter. If the cotangents of all encodings of a head fit into VMEM, the kernel of the queries computes them too.
    Otherwise a third kernel does, one step between chunks at a time.

    Two chunks of each array are in VMEM at a time, one in use and one on its way, whatever the size of the grid. With
    the default `limit` the arrays fill at most about `room` bytes. Products of float32 are as exact as
    `jax_default_matmul_precision` says.

    `interpret` runs the kernels on any device, slowly, for tests. ValueError for weights, dropout and a `Block`.
    """

    def __init__(
        self,
        problem: Problem,
        interpret: bool = False,
        plan: Plan | None = None,
        step: int = SUBLANES,
        limit: int | None = None,
        room: int = ROOM,
    ):
        problem.check_local("fused")
        super().__init__(problem, problem.query.shape[2])
        self.interpret = interpret
        width, tile = plan_for(problem.grid_shape, problem.static_half) if plan is None else plan
        self.strips, self.fit_encodings = arrange(problem, width, max(tile), limit, room)
        axes = self.strips.axes
        self.kernels = Kernels(
            strips=self.strips,
            own_queries=tile,
            own_keys=Tile(*tile[::-1]),
            step=max(step, width),
            dtype=self.dtype,
            scaling=problem.scaling,
            multiply=self.multiply,
            is_causal=problem.is_causal,
            pairs=() if problem.sigma is None else tuple((axes[i], axes[j]) for i, j in span.pairs(problem.sigma)),
        )

    def some_forward(self, arrays):
        """As in `Loop`."""
        ins = self.prepared(arrays)
        like = jax.ShapeDtypeStruct(ins["value"].shape, self.dtype)
        columns = jax.ShapeDtypeStruct((*like.shape[:-1], 2), self.dtype)
        outs = {"outputs": like, "statistics": columns}
        lanes = skew.lanes_of(*self.kernels.own_queries)
        running = pltpu.VMEM((self.strips.chunk, lanes), self.dtype)
        scratch = {"largest": running, "total": running}
        outs = self.launch(self.kernels.forward, "query", arrays, ins, outs, scratch)
        return self.strips.unlay(outs["outputs"]), None, self.strips.unlay(outs["statistics"])

    def some_backward(self, arrays, outputs, statistics, d_outputs, d_weights):
        """The cotangents of the arrays that have one."""
        d_outputs = d_outputs.astype(self.dtype)
        removed = (d_outputs * outputs).sum(-1, keepdims=True)
        largest, inverse = jnp.split(statistics, 2, -1)
        # Queries that only fill up a strip get a very large "largest logit", so that all their weights are 0.
        columns = [self.strips.lay(largest, -scores.MASKED), self.strips.lay(inverse), self.strips.lay(removed)]
        exact = {name: x.astype(self.dtype) for name, x in arrays.items() if name != "key_addend"}
        _, unprepare = jax.vjp(self.laid_out, exact)
        ins = self.prepared(arrays)
        ins["cotangent"] = self.strips.lay(d_outputs.astype(arrays["value"].dtype))
        ins["statistics"] = jnp.concatenate(columns, -1)
        like = {name: jax.ShapeDtypeStruct(x.shape, self.dtype) for name, x in ins.items()}

        outs = {name: like[name] for name in ("content_query", "position_query") if name in like}
        if self.kernels.pairs:
            shape = (*ins["value"].shape[:4], self.strips.chunks, *ins["coefficients"].shape[1:])
            outs["d_coefficients"] = jax.ShapeDtypeStruct(shape, self.dtype)
        if self.fit_encodings:
            outs["encodings"] = like["encoding"]
        cotangents = self.launch(self.kernels.to_queries, "query", arrays, ins, outs)
        if "d_coefficients" in cotangents:
            cotangents["coefficients"] = cotangents.pop("d_coefficients").sum((0, 2, 3, 4, 6))
        sides = {name: like[name] for name in ("key", "value") if name in like}
        cotangents |= self.launch(self.kernels.to_keys, "key", arrays, ins, sides)
        if self.fit_encodings:
            cotangents["encoding"] = cotangents.pop("encodings")
        elif "encoding" in ins:
            bands = {"encoding": like["encoding"]}
            cotangents |= self.launch(self.kernels.to_encoding, "offset", arrays, ins, bands)
            cotangents["encoding"] = jnp.where(self.visited(arrays), cotangents["encoding"], 0)
        return unprepare(cotangents)[0]

    def laid_out(self, arrays):
        """The inputs of the kernels from the arrays that have gradients."""
        ins = {name: self.strips.lay(arrays[name]) for name in ("key", "value") if name in arrays}
        ins |= {name: self.strips.lay(x) for name, x in self.of_queries(arrays).items()}
        if "encoding" in arrays:
            ins["encoding"] = self.strips.encodings(arrays["encoding"])
        if "sigma" in arrays:
            coefficients = self.problem.coefficients(arrays["sigma"]).astype(self.dtype)
            ins["coefficients"] = jnp.broadcast_to(coefficients, (self.heads, coefficients.shape[-1]))
        return ins

    def prepared(self, arrays):
        """`laid_out`, and an addend that hides keys that are masked or off the grid: [b|1 z strips chunks 1 _].

        The addend is a row of lanes longer than a chunk, so that keys can be read from any start. Coefficients are
        repeated in every lane.
        """
        ins, kernels = self.laid_out(arrays), self.kernels
        addend = jnp.zeros((1, 1, *self.problem.grid_shape, 1), self.dtype)
        addend = self.strips.lay(arrays.get("key_addend", addend), scores.MASKED)[:, 0]
        addend = addend.reshape(*addend.shape[:3], self.strips.chunks, 1, self.strips.chunk)
        padding = [(0, 0)] * 5 + [(0, LANES)]
        ins["key_addend"] = jnp.pad(addend, padding, constant_values=scores.MASKED)
        if "coefficients" in ins:
            keys = max(kernels.own_queries.keys, kernels.own_keys.keys)
            ins["coefficients"] = jnp.repeat(ins["coefficients"][..., None], keys, -1)
        return ins

    def bounds(self, arrays):
        """The numbers of `Bounds`: integers if all heads share one span, and it is known while tracing."""
        problem, strips = self.problem, self.strips
        if problem.concrete_half is not None and len(arrays.get("sigma", [0])) == 1:
            half = [int(reach) for reach in strips.in_frame(np.array(problem.concrete_half))]
            return [min(step, most) for step, most in zip(strips.steps(half), strips.reach, strict=True)] + half
        half = strips.in_frame(jnp.nan_to_num(problem.half_of(arrays["sigma"])).astype(jnp.int32))
        reach = [jnp.minimum(step, most) for step, most in zip(strips.steps(half.max(0)), strips.reach, strict=True)]
        return jnp.concatenate([jnp.stack(reach), half.reshape(-1)])

    def visited(self, arrays):
        """Whether the launch had a step for each encoding; for the others nothing was written."""
        visited = jnp.ones((1,) * 7, bool)
        for axis, (most, reach) in enumerate(zip(self.strips.reach, self.bounds(arrays), strict=False)):
            seen = jnp.abs(jnp.arange(-most, most + 1)) <= reach
            visited &= jnp.expand_dims(seen, [i for i in range(7) if i != axis + 1])
        return visited

    def launch(self, body, by, arrays, ins, outs, scratch=None):
        """Runs a kernel for every chunk of `by`, by which it sums, and every chunk that the span reaches from it."""
        known = self.bounds(arrays)
        own = self.strips.counts
        steps = tuple(2 * r + 1 for r in Bounds(known).reach)
        b, h = ins["value"].shape[:2]
        launched = (h, *steps, b, *own) if by == "offset" else (h, b, *own, *steps)
        # The axes of the launch over which an output is summed: all that follow those that it is for.
        summed = {name: range(4 if by == "offset" else 1 if name == "encodings" else 5, 8) for name in outs}
        prefetched = [] if isinstance(known, list) else [known]

        def kernel(*refs):
            *numbers, ins, outs, scratch = refs
            bounds = Bounds(*numbers or [known])
            ids = [pl.program_id(axis) for axis in range(8)]
            first = {name: _all(ids[axis] == 0 for axis in axes) for name, axes in summed.items()}
            last = _all(ids[axis] == pl.num_programs(axis) - 1 for axis in range(5, 8))
            _, place = self.place(by, ids, bounds)
            body(place, first, last, bounds, ins, outs | scratch)

        def spec(name, x):
            shape, index = self.spec(name, x)

            def of_step(*ids):
                return index(*self.place(by, ids[:8], Bounds(*ids[8:] or [known])))

            return pl.BlockSpec((*(None for _ in range(x.ndim - len(shape))), *shape), of_step)

        launch = pl.pallas_call(
            kernel,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=len(prefetched),
                grid=launched,
                in_specs=[{name: spec(name, x) for name, x in ins.items()}],
                out_specs={name: spec(name, x) for name, x in outs.items()},
                scratch_shapes=[scratch or {}],
            ),
            out_shape=outs,
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=[
                    "arbitrary" if any(axis in axes for axes in summed.values()) else "parallel" for axis in range(8)
                ]
            ),
            interpret=self.interpret,
            name=f"posattn_{body.__name__}",
        )
        return launch(*prefetched, ins)

    def place(self, by, ids, bounds):
        """The example and the place of a step of the launch."""
        head, *ids = ids
        if by == "offset":
            *offset, example = ids[:4]
            own = ids[4:]
        else:
            example, own, offset = ids[0], ids[1:4], ids[4:]
        offset = [o - reach for o, reach in zip(offset, bounds.reach, strict=True)]
        query = [i - o for i, o in zip(own, offset, strict=True)] if by == "key" else own
        return example, Place(head, tuple(query), tuple(offset))

    def spec(self, name, array):
        """The shape of a chunk of an array, and the function from (example, Place) to the index of its chunk."""
        counts = self.strips.counts

        def clipped(where):
            return [jnp.clip(index, 0, count - 1) for index, count in zip(where, counts, strict=True)]

        def index(example, place):
            if name == "coefficients":
                return place.head, 0, 0
            if name == "d_coefficients":
                return example, place.head, *place.query, 0, 0
            if name == "encodings":
                return place.head, *(0,) * 6
            if name == "encoding":
                return place.head, *self.strips.step(place.offset), 0, 0, 0
            if name == "key_addend":
                return example if len(array) > 1 else 0, *clipped(place.key), 0, 0
            return example, place.head, *clipped(place.key if name in ("key", "value") else place.query), 0

        rank = {"encodings": 6, "encoding": 3}.get(name, 2)
        shape = array.shape[-rank:]
        if name in FEATURES:
            shape = self.strips.chunk, *shape[1:]
        return shape, index


def _all(conditions):
    return functools.reduce(operator.and_, conditions, True)
