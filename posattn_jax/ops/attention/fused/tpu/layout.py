"""Attention fused into kernels for TPUs, in Pallas Mosaic: scores, span, softmax and products never leave the chip."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from posattn_jax.ops import scores, span
from posattn_jax.ops.attention.fused.lines import FRAME, Lines
from posattn_jax.ops.attention.fused.tpu.kernels import Kernels, Place
from posattn_jax.ops.attention.loop import Loop
from posattn_jax.ops.attention.problem import Problem

# Of the 16 MiB of VMEM that a kernel is given, what chunks may fill; the rest is for scores.
CHUNK_BYTES = 12 * 2**20
LANES = 128


class FusedTpu(Loop):
    """Attention of all heads in one launch forward and three backward, for `attend`.

    The grid is laid out in `Lines`, cut into chunks of at most `limit` positions. A launch has a step for each chunk of
    queries and each chunk of keys that the largest span of all heads reaches, a number known at run time; the chunks
    of the next step are fetched meanwhile. Within a step a loop runs over the tiles of `tile` keys that the span of its
    head reaches, from bounds known at run time. Gaussian and masks are computed there from sigma. Positional scores
    are one product of a tile of queries with the encodings of 2 `tile` offsets, whose rows are then moved against each
    other, so that what is by offset is by key.

    The backward pass computes the weights again in each of its kernels: cotangents of queries and sigma are summed over
    keys, those of keys and values over queries, those of encodings over lines and the batch, so that none is
    scattered.

    Two chunks of each array are in VMEM at a time, one in use and one on its way, whatever the size of the grid; the
    default `limit` lets them fill CHUNK_BYTES. Products of float32 are as exact as `jax_default_matmul_precision` says.

    `interpret` runs the kernels on any device, slowly, for tests. ValueError for weights, dropout and a `Block`.
    """

    def __init__(self, problem: Problem, interpret: bool = False, tile: int = 128, limit: int | None = None):
        problem.check_local("fused")
        super().__init__(problem, problem.query.shape[2])
        self.interpret = interpret
        self.lines = Lines(problem.grid_shape, tile, _longest_chunk(problem, tile) if limit is None else limit)
        axes = self.lines.axes
        self.kernels = Kernels(
            lines=self.lines,
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
        outs = self.launch(self.kernels.forward, "query", arrays, ins, {"outputs": like, "statistics": columns})
        return self.lines.unlay(outs["outputs"]), None, self.lines.unlay(outs["statistics"])

    def some_backward(self, arrays, outputs, statistics, d_outputs, d_weights):
        """The cotangents of the arrays that have one."""
        d_outputs = d_outputs.astype(self.dtype)
        removed = (d_outputs * outputs).sum(-1, keepdims=True)
        largest, inverse = jnp.split(statistics, 2, -1)
        # Queries that only fill up a line: far below their largest logit every weight is 0.
        columns = [self.lines.lay(largest, -scores.MASKED), self.lines.lay(inverse), self.lines.lay(removed)]
        exact = {name: x.astype(self.dtype) for name, x in arrays.items() if name != "key_addend"}
        _, unprepare = jax.vjp(self.laid_out, exact)
        ins = self.prepared(arrays)
        ins["cotangent"] = self.lines.lay(d_outputs.astype(arrays["value"].dtype))
        ins["statistics"] = jnp.concatenate(columns, -1)
        like = {name: jax.ShapeDtypeStruct(x.shape, self.dtype) for name, x in ins.items()}

        outs = {name: like[name] for name in ("content_query", "position_query") if name in like}
        if self.kernels.pairs:
            shape = (*ins["value"].shape[:4], self.lines.chunks, len(self.kernels.pairs), self.lines.tile)
            outs["coefficients"] = jax.ShapeDtypeStruct(shape, self.dtype)
        cotangents = self.launch(self.kernels.to_queries, "query", arrays, ins, outs)
        if "coefficients" in cotangents:
            cotangents["coefficients"] = cotangents["coefficients"].sum((0, 2, 3, 4, 6))
        sides = {name: like[name] for name in ("key", "value") if name in like}
        cotangents |= self.launch(self.kernels.to_keys, "key", arrays, ins, sides)
        if "encoding" in ins:
            bands = {"encoding": like["encoding"]}
            cotangents |= self.launch(self.kernels.to_encoding, "offset", arrays, ins, bands)
            cotangents["encoding"] = jnp.where(self.visited(arrays), cotangents["encoding"], 0)
        return unprepare(cotangents)[0]

    def laid_out(self, arrays):
        """What the kernels read of the arrays that have gradients."""
        ins = {name: self.lines.lay(arrays[name]) for name in ("key", "value") if name in arrays}
        ins |= {name: self.lines.lay(x) for name, x in self.of_queries(arrays).items()}
        if "encoding" in arrays:
            ins["encoding"] = self.lines.bands(arrays["encoding"])
        if "sigma" in arrays:
            coefficients = self.problem.coefficients(arrays["sigma"]).astype(self.dtype)
            ins["coefficients"] = jnp.broadcast_to(coefficients, (self.heads, coefficients.shape[-1]))
        return ins

    def prepared(self, arrays):
        """As `laid_out`, and what hides the keys that are masked, or only fill up a line: [b|1 z y 1 length]."""
        addend = jnp.zeros((1, 1, *self.problem.grid_shape, 1), self.dtype)
        addend = self.lines.lay(arrays.get("key_addend", addend), scores.MASKED)
        return self.laid_out(arrays) | {"key_addend": jnp.swapaxes(addend[:, 0], -1, -2)}

    def half(self, arrays):
        """The half-span of every head, in the frame of lines: [h 4]. Without a number, a query's own position."""
        if "sigma" in arrays:
            half = jnp.nan_to_num(self.problem.half_of(arrays["sigma"]))
        else:
            half = jnp.array([[size - 1 for size in self.problem.grid_shape]])
        return jnp.broadcast_to(self.lines.in_frame(half.astype(jnp.int32)), (self.heads, FRAME))

    def reach(self, arrays):
        """How many lines and chunks away keys may be, of any head: [3], integers where they are known while tracing."""
        half = self.problem.concrete_half
        known = half is not None
        z, y, rows, columns = self.lines.in_frame(np.array(half)) if known else self.half(arrays).max(0)
        chunks = -(-self.lines.reach((z, y, rows, columns)) // self.lines.chunk)
        most = self.lines.chunks - 1
        return [int(z), int(y), int(min(chunks, most))] if known else [z, y, jnp.minimum(chunks, most)]

    def visited(self, arrays):
        """Which bands of encodings the launch had a step for; in the others there is nothing yet."""
        z, y, _, _ = self.lines.frame
        visited = jnp.ones((1,) * 6, bool)
        for axis, (size, reach) in enumerate(zip((z, y, self.lines.chunks), self.reach(arrays), strict=True)):
            seen = jnp.abs(jnp.arange(1 - size, size)) <= reach
            visited &= jnp.expand_dims(seen, [i for i in range(6) if i != axis + 1])
        return visited

    def launch(self, body, by, arrays, ins, outs):
        """Runs a kernel for every chunk `by` which it sums, and the chunks that the span reaches from there."""
        reach = self.reach(arrays)
        bounds = jnp.concatenate([jnp.array(reach, jnp.int32), self.half(arrays).reshape(-1)])
        z, y, _, _ = self.lines.frame
        own = (z, y, self.lines.chunks)
        steps = tuple(2 * r + 1 for r in reach)
        b, h = ins["value"].shape[:2]
        if by == "offset":
            launched, reduced = (h, *steps, b, *own), range(4, 8)
        else:
            launched, reduced = (b, h, *own, *steps), range(5, 8)

        def kernel(bounds, ins, outs):
            ids = [pl.program_id(axis) for axis in range(8)]
            first, last = True, True
            for axis in reduced:
                first &= ids[axis] == 0
                last &= ids[axis] == pl.num_programs(axis) - 1
            _, place = self.place(by, ids, bounds)
            body(place, first, last, bounds, ins, outs)

        spec = functools.partial(self.spec, by)
        launch = pl.pallas_call(
            kernel,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=launched,
                in_specs=[{name: spec(name, x) for name, x in ins.items()}],
                out_specs={name: spec(name, x) for name, x in outs.items()},
            ),
            out_shape=outs,
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=["arbitrary" if axis in reduced else "parallel" for axis in range(8)]
            ),
            interpret=self.interpret,
            name=f"posattn_{body.__name__}",
        )
        return launch(bounds, ins)

    def place(self, by, ids, bounds):
        """The example and the place of a step of the launch."""
        if by == "offset":
            head, *offset, example = ids[:5]
        else:
            example, head, *_ = ids
            offset = ids[5:]
        own = ids[5:] if by == "offset" else ids[2:5]
        offset = [o - bounds[axis] for axis, o in enumerate(offset)]
        query = [i - o for i, o in zip(own, offset, strict=True)] if by == "key" else own
        return example, Place(head, tuple(query), tuple(offset))

    def spec(self, by, name, array):
        """Which chunk of an array a step of the launch has."""
        lines = self.lines
        sizes = (*lines.frame[:2], lines.chunks)
        if name == "coefficients" and array.ndim == 2:
            return pl.BlockSpec(memory_space=pltpu.SMEM)

        def clipped(where):
            return [jnp.clip(index, 0, size - 1) for index, size in zip(where, sizes, strict=True)]

        def index(*ids):
            *ids, bounds = ids
            example, place = self.place(by, ids, bounds)
            if name == "encoding":
                offset = [o + size - 1 for o, size in zip(place.offset, sizes, strict=True)]
                return place.head, *offset, 0, 0
            if name == "key_addend":
                z, y, c = clipped(place.key)
                return example if len(array) > 1 else 0, z, y, 0, c
            if name == "coefficients":
                return example, place.head, *place.query, 0, 0
            return example, place.head, *clipped(place.key if name in ("key", "value") else place.query), 0

        rows, columns = array.shape[-2:]
        if name == "key_addend":
            columns = lines.chunk
        elif name not in ("encoding", "coefficients"):
            rows = lines.chunk
        return pl.BlockSpec((*(None for _ in array.shape[:-2]), rows, columns), index)


def _longest_chunk(problem: Problem, tile: int) -> int:
    """In positions, whole tiles of them, and at most 1024: what there is room for in `to_queries`, the largest."""

    def lanes(size):
        return -(-size // LANES) * LANES

    d = lanes(problem.value.shape[-1])
    encoded = 0 if problem.encoding is None else lanes(problem.encoding.shape[-1])
    features = 4 * d + 3 * encoded  # query, key, value, cotangent; query, and a band of twice as many encodings
    accumulators = d + encoded + LANES  # cotangents of both queries; statistics
    position = 2 * (features * problem.value.dtype.itemsize + accumulators * problem.dtype.itemsize)
    return max(min(CHUNK_BYTES // position, 1024) // tile, 1) * tile
