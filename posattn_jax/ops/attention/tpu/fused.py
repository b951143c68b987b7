"""Attention fused into kernels for TPUs, in Pallas Mosaic: scores, span, softmax and products never leave the chip."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from posattn_jax.ops import scores, span
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.support import CAUSAL_AXES, CUT, LOCAL, refuse, supports
from posattn_jax.ops.attention.tpu import skew
from posattn_jax.ops.attention.tpu.kernels import Kernels
from posattn_jax.ops.attention.tpu.plan import ROOM, Plan, Tile, arrange, lanes_for, plan_for
from posattn_jax.ops.attention.tpu.skew import LANES
from posattn_jax.ops.attention.tpu.walk import Bounds, Place
from posattn_jax.ops.attention.xla.loop import Loop

# The rows of a register for the smallest dtype: a tile may begin at multiples of this.
SUBLANES = 16
UNSUPPORTED = (*LOCAL, CUT, "segment_ids", CAUSAL_AXES, "the factors of an encoding")


class FusedTpu(Loop):
    """Attention of all heads in one launch forward and two or three backward, for `attend`.

    The grid is arranged in `Strips`, which are cut into chunks of at most `limit` positions. A launch has a step for
    each chunk of queries and each chunk of keys that the largest span of all heads reaches. The chunks of the next step
    are fetched during a step. Within a step a loop runs over the tiles of keys that the span of its head reaches, which
    may be known only at run time. G and the masks are computed there from sigma. Positional scores are products of a
    tile of queries with the encodings of all its offsets. The rows of the result are then shifted against each other,
    so that scores by offset become scores by key.

    Features of heads lie side by side, as projections return them: see `Lanes`. A step reads a group of heads that fill
    the lanes of a register, and computes one head after another. The features of the other heads are multiplied by 0
    where products would mix them in, so NaN in one head reaches the heads of its group. A row of a strip is a row of
    the grid, or a part of it. So no array of features is moved in memory before or after a kernel, if strips and chunks
    divide the grid.

    The backward pass computes the weights again in each of its kernels. The cotangents of queries and sigma are summed
    over keys, those of keys and values over queries, and those of encodings over strips and the batch. So there is no
    scatter. If the cotangents of all encodings of a group fit into VMEM, the kernel of the queries computes them too.
    Otherwise a third kernel does, one step between chunks at a time.

    Two chunks of each array are in VMEM at a time, one in use and one on its way, whatever the size of the grid. With
    the default `limit` the arrays fill at most about `room` bytes. Products of float32 are as exact as
    `jax_default_matmul_precision` says.

    `interpret` runs the kernels on any device, slowly, for tests. ValueError for what is not supported.
    """

    def __init__(
        self,
        problem: Problem,
        interpret: bool = False,
        plan: Plan | None = None,
        step: int = SUBLANES,
        limit: int | None = None,
        room: int = ROOM,
        lanes: int = LANES,
    ):
        refuse('implementation="fused"', supports(UNSUPPORTED, problem), '"auto"')
        super().__init__(problem, problem.query.shape[2])
        self.interpret = interpret
        width, tile = plan_for(problem.grid_shape, problem.static_half) if plan is None else plan
        self.lanes = lanes_for(problem, lanes)
        sublanes = min(skew.SUBLANES, step)
        self.strips, self.fit_encodings = arrange(problem, self.lanes, width, max(tile), limit, room, sublanes)
        axes = self.strips.axes
        self.kernels = Kernels(
            strips=self.strips,
            lanes=self.lanes,
            own_queries=tile,
            own_keys=Tile(*tile[::-1]),
            step=max(step, width),
            dtype=self.dtype,
            scaling=problem.scaling,
            multiply=self.multiply,
            is_causal=bool(problem.is_causal),
            pairs=() if problem.sigma is None else tuple((axes[i], axes[j]) for i, j in span.pairs(problem.sigma)),
            masks_offsets=problem.masks_offsets,
        )

    def some_forward(self, arrays):
        """As in `Loop`."""
        ins = self.prepared(arrays)
        lanes = self.lanes["value"]
        outs = dict.fromkeys(("outputs", "statistics"), jax.ShapeDtypeStruct(ins["value"].shape, self.dtype))
        running = (lanes.group, *self.strips.rows, skew.lanes_of(*self.kernels.own_queries))
        scratch = dict.fromkeys(("largest", "total"), pltpu.VMEM(running, self.dtype))
        outs = self.launch(self.kernels.forward, "query", arrays, ins, outs, scratch)
        outputs = self.apart(outs["outputs"], lanes, arrays["value"].shape[-1])
        return outputs, None, self.apart(outs["statistics"], lanes, 2)

    def some_backward(self, arrays, outputs, statistics, d_outputs, d_weights):
        """The cotangents of the arrays that have one."""
        d_outputs = d_outputs.astype(self.dtype)
        removed = (d_outputs * outputs).sum(-1, keepdims=True)
        exact = {name: x.astype(self.dtype) for name, x in arrays.items() if name != "key_addend"}
        _, unprepare = jax.vjp(self.laid_out, exact)
        ins = self.prepared(arrays)
        ins["cotangent"] = self.side_by_side(d_outputs.astype(arrays["value"].dtype), self.lanes["value"])
        # Queries that only fill up a strip get a very large "largest logit", so that all their weights are 0.
        statistics = jnp.concatenate([statistics, removed], -1)
        ins["statistics"] = self.side_by_side(statistics, self.lanes["value"], -scores.MASKED)
        like = {name: jax.ShapeDtypeStruct(x.shape, self.dtype) for name, x in ins.items()}

        outs = {name: like[name] for name in ("content_query", "position_query") if name in like}
        if self.kernels.pairs:
            shape = (len(ins["value"]), self.lanes["value"].padded, *self.strips.counts, *ins["coefficients"].shape[1:])
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

    def side_by_side(self, x, lanes, fill=0.0):
        """[b h *S c] -> [b z rows strips _ _ L]: the positions in strips, with the features of all heads."""
        x = jnp.moveaxis(x.reshape(*x.shape[:2], -1, x.shape[-1]), 1, 2)
        return self.strips.lay(lanes.join(x), fill)

    def apart(self, x, lanes, features):
        """The inverse of `side_by_side`."""
        x = self.strips.unlay(x).reshape(len(x), -1, x.shape[-1])
        x = jnp.moveaxis(lanes.part(x, features), 2, 1)
        return x.reshape(*x.shape[:2], *self.problem.grid_shape, features)

    def laid_out(self, arrays):
        """The inputs of the kernels from the arrays that have gradients."""
        ins = {name: self.side_by_side(arrays[name], self.lanes[name]) for name in ("key", "value") if name in arrays}
        for name, lanes in (("content_query", "key"), ("position_query", "encoding")):
            if name in arrays:
                ins[name] = self.side_by_side(arrays[name], self.lanes[lanes])
        if "encoding" in arrays:
            ins["encoding"] = self.strips.encodings(self.lanes["encoding"].join(arrays["encoding"]))
        if "sigma" in arrays:
            coefficients = self.problem.coefficients(arrays["sigma"]).astype(self.dtype)
            coefficients = jnp.broadcast_to(coefficients, (self.heads, coefficients.shape[-1]))
            ins["coefficients"] = jnp.pad(coefficients, ((0, self.lanes["value"].padded - self.heads), (0, 0)))
        return ins

    def prepared(self, arrays):
        """`laid_out`, and an addend that hides keys that are masked or off the grid: [b|1 z strips chunks 1 _].

        The addend is a row of lanes longer than a chunk, so that keys can be read from any start. Coefficients are
        repeated in every lane.
        """
        ins, kernels = self.laid_out(arrays), self.kernels
        addend = arrays.get("key_addend", jnp.zeros((1, 1, *self.problem.grid_shape, 1), self.dtype))[:, 0]
        addend = self.strips.in_order(self.strips.lay(addend, scores.MASKED)).swapaxes(-2, -1)
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
        visited = jnp.ones((1,) * 6, bool)
        for axis, (most, reach) in enumerate(zip(self.strips.reach, self.bounds(arrays), strict=False)):
            seen = jnp.abs(jnp.arange(-most, most + 1)) <= reach
            visited &= jnp.expand_dims(seen, [i for i in range(6) if i != axis])
        return visited

    def launch(self, body, by, arrays, ins, outs, scratch=None):
        """Runs a kernel for every chunk of `by`, by which it sums, and every chunk that the span reaches from it."""
        known = self.bounds(arrays)
        own = self.strips.counts
        steps = tuple(2 * r + 1 for r in Bounds(known).reach)
        b, groups = len(ins["value"]), self.lanes["value"].groups
        launched = (groups, *steps, b, *own) if by == "offset" else (groups, b, *own, *steps)
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

            return pl.BlockSpec(shape, of_step)

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
        group, *ids = ids
        if by == "offset":
            *offset, example = ids[:4]
            own = ids[4:]
        else:
            example, own, offset = ids[0], ids[1:4], ids[4:]
        offset = [o - reach for o, reach in zip(offset, bounds.reach, strict=True)]
        query = [i - o for i, o in zip(own, offset, strict=True)] if by == "key" else own
        return example, Place(group, tuple(query), tuple(offset))

    def spec(self, name, array):
        """The shape of a chunk of an array, and the function from (example, Place) to the index of its chunk."""
        group, strips = self.lanes["value"].group, self.strips
        features = array.shape[-1] // self.lanes["value"].groups

        def clipped(where):
            return [jnp.clip(index, 0, count - 1) for index, count in zip(where, strips.counts, strict=True)]

        match name:
            case "coefficients":
                return (group, *array.shape[1:]), lambda _, place: (place.group, 0, 0)
            case "d_coefficients":
                shape = (None, group, None, None, None, *array.shape[-2:])
                return shape, lambda example, place: (example, place.group, *place.query, 0, 0)
            case "encodings":
                return (*array.shape[:-1], features), lambda _, place: (*(0,) * 5, place.group)
            case "encoding":
                shape = (None, None, None, *array.shape[3:-1], features)
                return shape, lambda _, place: (*strips.step(place.offset), 0, 0, place.group)
            case "key_addend":
                shape = (None, None, None, None, *array.shape[-2:])
                return shape, lambda example, place: (example if len(array) > 1 else 0, *clipped(place.key), 0, 0)

        def index(example, place):
            plane, strip, chunk = clipped(place.key if name in ("key", "value") else place.query)
            return example, plane, chunk, strip, 0, 0, place.group

        rows, *in_row = strips.rows
        return (None, None, rows, None, *in_row, features), index


def _all(conditions):
    return functools.reduce(operator.and_, conditions, True)
