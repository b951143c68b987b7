"""Calls the kernels for NVIDIA GPUs from JAX."""

import dataclasses
import functools
import itertools
import math
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array, Sizes
from posattn_jax.ops import grid, span
from posattn_jax.ops.attention.cuda import library
from posattn_jax.ops.attention.kernel import (
    FEATURES,
    addend_table,
    factor_table,
    half_spans,
    segment_numbers,
    sum_groups,
)
from posattn_jax.ops.attention.problem import Problem

# As in tiles.h.
TILE_BITS, WIDTHS = 6, (16, 32, 64, 128, 256)
# The kernels, in the order of handler.cc.
FORWARD, BACKWARD, BACKWARD_KEYS = range(3)
# The most KiB of shared memory that a block of threads may use, by compute capability; then for all others. Source: the
# CUDA C++ Programming Guide, "Compute Capabilities".
SHARED_KIB = {"8.0": 163, "8.7": 163, "9.0": 227, "10.0": 227, "10.3": 227}
LEAST_SHARED_KIB = 99
# The bytes that each of three or of two blocks can have if they share a multiprocessor of 228 KiB, 1 KiB of each taken.
SHARED_BY_THREE, SHARED_BY_TWO = 75 * 1024, 113 * 1024
# The most bytes for the weights that the backward pass over queries leaves for the one over keys: it takes turns.
MOST_WEIGHTS = 288 * 2**20
# The most offsets of a slab with three dimensions: `Places` in table.h has 511 steps along the first two.
MOST_OFFSETS_3D = 1008
# The most blocks of threads in the second dimension of a launch.
MOST_BLOCKS = 65_535
# The most bytes for those of a single head of an example, which cannot be cut.
MOST_WEIGHTS_OF_HEAD = 2 * 2**30


class Staging(NamedTuple):
    """How tiles pass through shared memory; the names are those of tiles.h.

    Attributes:
      rows: the rows of a tile that are in shared memory at a time.
      stages: 2 if the next rows are copied meanwhile, else 1.
      kept: whether the queries of a tile stay in shared memory; else they are read again for each block of keys.
    """

    rows: int
    stages: int
    kept: bool

    @property
    def cost(self) -> float:
        """The expected time, relative to the least. It was not measured: bytes read, and whether copies overlap."""
        return (1.0 if self.kept else 1.5) * (1.0 if self.stages == 2 else 2.0)


# If two cost the same, the first is preferred. Queries of few features are in registers.
IN_REGISTERS = (Staging(64, 2, False),)
STAGINGS = (
    *(Staging(rows, 2, True) for rows in (64, 32, 16)),
    *(Staging(rows, 2, False) for rows in (64, 32, 16)),
    Staging(16, 1, False),
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the kernels cut a problem, and what they are compiled for.

    Attributes:
      size: S, with three dimensions.
      bits: the logarithms of a tile's sizes; there are 64 positions in a tile.
      width: the features, rounded up to a number that the kernels are compiled for.
      planes: the numbers of bfloat16 that hold a feature.
      capacities: the most offsets whose scores are in shared memory at a time, in each pass.
      slabs: whether the offsets of a tile of queries are more than that, in each pass.
      reach: the most steps from a tile of queries to one of keys within the span.
      shared: the bytes of shared memory of each kernel.
      defines: what the source is compiled with.
    """

    size: Sizes
    bits: Sizes
    width: int
    planes: int
    capacities: tuple[int, int]
    slabs: tuple[bool, bool]
    reach: Sizes
    shared: tuple[int, int, int]
    defines: tuple[str, ...]

    @property
    def tiles(self) -> Sizes:
        """The number of tiles along each dimension."""
        return tuple(-(-size >> bits) for size, bits in zip(self.size, self.bits, strict=True))

    @property
    def slots(self) -> int:
        """The number of tiles of keys whose weights are kept for a tile of queries."""
        return math.prod(min(2 * reach + 1, n) for reach, n in zip(self.reach, self.tiles, strict=True))

    @property
    def weights(self) -> int:
        """The bytes of the weights of one head of one example."""
        return math.prod(self.tiles) * self.slots * 4**TILE_BITS * 2 * self.planes


def pitch(capacity: int, bits: Sizes) -> int:
    """The least row of a table that holds `capacity` offsets. Rows begin in different banks of shared memory."""
    return -(-(capacity + 2 ** bits[2] - 8) // 16) * 16 + 8


@functools.cache
def make_plan(
    size: Sizes, half: Sizes, features: int, planes: int, flags: tuple[tuple[str, int], ...], room: int
) -> Plan:
    """The plan for half-spans of at most `half`, with `room` bytes of shared memory, at least 99 KiB.

    Raises:
      ValueError: too many features.
    """
    width = next((width for width in WIDTHS if width >= features), None)
    if width is None:
        raise ValueError(f"{features} features a head, of at most {WIDTHS[-1]}")
    has = dict(flags)
    candidates = itertools.product(IN_REGISTERS if width * planes <= 64 else STAGINGS, _all_bits(size))
    for staging, bits in sorted(candidates, key=lambda each: each[0].cost * _cost(size, half, each[1])):
        least = _least(half, bits)
        wide = tuple(min(2 * h + 1, -(-n >> b << b) + (1 << b) - 1) for n, h, b in zip(size, half, bits, strict=True))
        most, behind = _offsets(wide), _behind(wide, bits)
        # Each offset takes at least 4 bytes.
        enough = MOST_OFFSETS_3D if size[0] > 1 else room // 4
        choices = range(-(-min(most, max(least, enough)) // 16) * 16, least - 1, -16)
        shared = [_shared(each, behind, bits, width, planes, staging, has) for each in choices]
        forward, backward = (_choose([each[kernel] for each in shared], room) for kernel in (FORWARD, BACKWARD))
        if forward is None or backward is None or shared[0][BACKWARD_KEYS] > room:
            continue
        if behind <= _stages(width, planes, staging):  # as much may be read before
            defines = {"WIDTH": width, "PLANES": planes, "FEATURES": features} | has
            defines |= {name.upper(): int(value) for name, value in staging._asdict().items()}
            defines |= {f"BITS{axis}": b for axis, b in enumerate(bits)}
            defines["DIMS"] = next((3 - axis for axis, n in enumerate(size[:2]) if n > 1), 1)
            capacities = choices[forward], choices[backward]
            slabs = capacities[0] < most, capacities[1] < most
            defines["SLABS"] = int(any(slabs))
            return Plan(
                size=size,
                bits=bits,
                width=width,
                planes=planes,
                capacities=capacities,
                slabs=slabs,
                reach=_reach(size, half, bits),
                shared=(shared[forward][FORWARD], shared[backward][BACKWARD], shared[0][BACKWARD_KEYS]),
                defines=tuple(f"{name}={value}" for name, value in sorted(defines.items())),
            )
    raise AssertionError(f"{room} bytes of shared memory are too few")


def on_small_grid(plan: Plan, half: Sizes) -> Plan:
    """The plan of the same program for a grid of two tiles along each dimension, and half-spans of at most `half`.

    Where the offsets of `plan` are in several slabs, its offsets are too.
    """
    size = tuple(min(n, (1 << b) + more) for n, b, more in zip(plan.size, plan.bits, (1, 1, 3), strict=True))
    half = tuple(min(h, n - 1) for h, n in zip(half, size, strict=True))
    least = _least(half, plan.bits)
    capacities = tuple(least if cut else each for each, cut in zip(plan.capacities, plan.slabs, strict=True))
    return dataclasses.replace(plan, size=size, capacities=capacities, reach=_reach(size, half, plan.bits))


def _least(half: Sizes, bits: Sizes) -> int:
    """The offsets from a tile of queries to one of keys, in whole blocks of 16."""
    wide = tuple(min(2 * h + 1, 2 * (1 << b) - 1) for h, b in zip(half, bits, strict=True))
    return -(-_offsets(wide) // 16) * 16


def _reach(size: Sizes, half: Sizes, bits: Sizes) -> Sizes:
    return tuple(min((h + (1 << b) - 1) >> b, -(-n >> b) - 1) for n, h, b in zip(size, half, bits, strict=True))


def _choose(shared: list[int], room: int) -> int | None:
    """Which of some sizes of shared memory, the largest first: all in one, if it is little, or else what fits."""
    if shared[0] <= min(room, SHARED_BY_THREE):
        return 0
    limits = (min(room, SHARED_BY_TWO), room)
    return next((i for limit in limits for i, each in enumerate(shared) if each <= limit), None)


def _all_bits(size: Sizes) -> list[Sizes]:
    """All tiles of 64 positions; two neighbouring positions lie along the last dimension."""
    choices = itertools.product(range(TILE_BITS), range(TILE_BITS), range(1, TILE_BITS + 1))
    return [
        bits
        for bits in choices
        if sum(bits) == TILE_BITS and all(b == 0 or n > 1 for n, b in zip(size[:2], bits[:2], strict=True))
    ]


def _cost(size: Sizes, half: Sizes, bits: Sizes) -> int:
    """The expected time: pairs of tiles, and the offsets of a tile of queries."""
    pairs, offsets, tiles = 1, 1, 1
    for n, h, b in zip(size, half, bits, strict=True):
        first = np.arange(0, n, 1 << b)
        last = np.minimum(first + (1 << b) - 1 + h, n - 1) >> b
        pairs *= int((last - (np.maximum(first - h, 0) >> b) + 1).sum())
        offsets *= min(2 * h + 1, n + (1 << b) - 1)
        tiles *= len(first)
    return pairs * 4**TILE_BITS + tiles * 2**TILE_BITS * offsets


def least_cost(size: Sizes, half: Sizes) -> int:
    """The pairs of positions, and of queries and offsets, that are computed for one head, in whole tiles."""
    return min(_cost(size, half, bits) for bits in _all_bits(size))


def _offsets(wide: Sizes) -> int:
    """The most offsets of a slab that is this wide: those along the last dimension begin and end at even numbers."""
    return wide[0] * wide[1] * ((wide[2] + 2) // 2 * 2)


def _behind(wide: Sizes, bits: Sizes) -> int:
    """The most bytes behind the offsets of a slab that the forward pass reads, and ignores.

    It reads for all pairs of 16 queries and 16 keys of which one is in reach.
    """
    most, stride, rest = 2, 1, 4
    for axis in (2, 1, 0):
        own = min(rest, bits[axis])
        most, rest = most + 2 * ((1 << own) - 1) * stride, rest - own
        stride *= wide[axis] if axis < 2 else (wide[2] + 2) // 2 * 2
    return 4 * most


def _stages(width: int, planes: int, staging: Staging) -> int:
    """The bytes of shared memory through which features pass."""
    return staging.stages * 2 * staging.rows * width * 2 * planes


def _shared(
    capacity: int, behind: int, bits: Sizes, width: int, planes: int, staging: Staging, has: dict[str, int]
) -> tuple[int, int, int]:
    """The bytes of shared memory of each kernel: `Memory` in table.h, and backward_keys.h."""
    row = width * 2 * planes
    stages, kept = _stages(width, planes, staging), staging.kept * 2**TILE_BITS * row
    table = 2**TILE_BITS * pitch(capacity, bits) * 2 * planes
    noted = (capacity + 2) * 4
    notes = noted * (1 + has["HAS_ADDEND"])
    notes += 4 * 2**TILE_BITS * 4 if has["HAS_KEY_MASK"] or has["HAS_SEGMENTS"] else 0
    forward = stages + kept + notes + ((kept + table) if has["HAS_ENCODING"] else 0) + behind
    backward = stages + 2 * kept + notes + noted * (1 + has["HAS_FACTOR"] + has["TANGENTS"])
    if has["HAS_ENCODING"]:
        backward += 2**TILE_BITS * row if planes * width <= 64 else kept
    backward += table if has["HAS_ENCODING"] or has["HAS_ADDEND"] else 0
    weights = staging.rows * 2**TILE_BITS * 2 * planes
    box = (2 << bits[2]) * math.prod((2 << b) - 1 for b in bits[:2]) * 4 if has["HAS_FACTOR"] else 0
    return forward, backward, stages + kept + staging.stages * (staging.rows * 4 + box + weights)


def forward(problem: Problem, rows: Array | None, device: "Device", plan: Plan | None = None) -> tuple[Array, Array]:
    """Outputs [o b t h d] and statistics [o b t h 2], see `Kernel`. `plan`: another than the one of `plan_of`."""
    learned, given = jax.vmap(_operands)(problem)
    call = Call(problem, rows, learned | given, device, plan)
    query = learned["query"]
    results = {"outputs": query, "statistics": jax.ShapeDtypeStruct((*query.shape[:-1], 2), jnp.float32)}
    launches = [(FORWARD, first, min(MOST_BLOCKS, call.units - first)) for first in range(0, call.units, MOST_BLOCKS)]
    got = call(launches, results)
    return got["outputs"], got["statistics"]


def backward(
    problem: Problem,
    rows: Array | None,
    outputs: Array,
    statistics: Array,
    cotangent: Array,
    device: "Device",
    plan: Plan | None = None,
) -> Problem:
    """The cotangents of the problem's arrays, see `Kernel`."""
    operands = jax.vmap(functools.partial(_operands, with_tangents=True))
    learned, pull_back, given = jax.vjp(operands, problem, has_aux=True)
    call = Call(problem, rows, learned | given, device, plan)
    given, (o, b, n, h, _), plan = call.given, learned["query"].shape, call.plan
    # The heads that share a head of keys take the same turn. Too many get copies.
    heads = learned["value"].shape[3]
    most = max(1, MOST_WEIGHTS_OF_HEAD // plan.weights)
    group = max(size for size in range(1, h // heads + 1) if (h // heads) % size == 0 and size <= most)
    copies = h // heads // group
    given |= {name: jnp.repeat(given[name], copies, axis=3) for name in ("key", "value") if name in given}
    for name, x in (("outputs", outputs), ("cotangent", cotangent)):
        given[name] = x.astype(given["query"].dtype)
    given["statistics"] = statistics
    results = {f"d_{name}": given[name] for name in learned if name in ("query", "key", "value")}
    sums = {f"d_{name}": x.shape for name, x in learned.items() if name in FEATURES and f"d_{name}" not in results}
    if "addend" in given:
        sums["d_addend"] = (o, h, *given["addend"].shape[2:])
    if "tangents" in given:
        sums["d_tangents"] = (o, h, given["tangents"].shape[-1])
    groups = call.units // group
    turns = -(-groups // max(1, min(MOST_BLOCKS, MOST_WEIGHTS // plan.weights) // group))
    at_a_time = -(-groups // turns) * group
    tiles = at_a_time * math.prod(plan.tiles) * plan.slots
    results |= {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in sums.items()}
    results |= {
        "removed": jax.ShapeDtypeStruct((o, b, h, n), jnp.float32),
        "weights": jax.ShapeDtypeStruct((at_a_time * plan.weights,), jnp.uint8),
        "active": jax.ShapeDtypeStruct((tiles * 4,), jnp.uint8),
    }
    launches = [
        (kernel, first // heads, min(at_a_time, call.units - first) // heads)
        for first in range(0, call.units, at_a_time)
        for kernel, heads in ((BACKWARD, 1), (BACKWARD_KEYS, group))
    ]
    got = call(launches, results, clear=tuple(sums))

    def total(name, like):
        """The cotangent of an operand, summed over the heads that share it."""
        if name == "sigma":
            return of_sigma(got["d_tangents"], like)
        x = got[f"d_{name}"]
        if name in ("key", "value"):
            x = sum_groups(x, like.shape[3])
        elif x.size > like.size:
            x = x.sum(1, keepdims=True)
        return x.reshape(like.shape).astype(like.dtype)

    return pull_back({name: total(name, like) for name, like in learned.items()})[0]


def of_sigma(cotangents: Array, sigma: Array) -> Array:
    """The cotangent of sigma [o ...] from that of the numbers of every head [o h m]: see `_factor_and_tangents`."""
    if sigma.ndim == 4:
        factors = jnp.zeros((*cotangents.shape[:-1], *sigma.shape[2:]), cotangents.dtype)
        cotangents = factors.at[..., *np.tril_indices(sigma.shape[-1])].set(cotangents)
    if cotangents.size > sigma.size:
        cotangents = cotangents.sum(1, keepdims=True)
    return cotangents.reshape(sigma.shape).astype(sigma.dtype)


class Device:
    """A GPU of a compute capability, or the lanes on which tests run the kernels (`lanes`)."""

    def __init__(self, capability: str, lanes: bool = False, order: int = 0):
        self.capability, self.lanes, self.order = capability, lanes, order

    @property
    def shared_bytes(self) -> int:
        """The bytes of shared memory that a block of threads may use."""
        return SHARED_KIB.get(self.capability, LEAST_SHARED_KIB) * 1024

    def target(self, plan: Plan) -> tuple[str, str]:
        """XLA's name for the function that launches the kernels, and the name of the program."""
        if self.lanes:
            of_all = ("WIDTH", "PLANES", *(name.upper() for name in Staging._fields))  # the rest is known at run time
            return library.lanes(tuple(each for each in plan.defines if each.startswith(of_all))), ""
        return library.TARGET, library.program(plan.defines, self.capability)


def plan_of(problem: Problem, device: Device) -> Plan:
    """The plan for a problem; ValueError if it has too many features."""
    shape, sigma, causal, has_factor = problem.grid_shape, problem.sigma, problem.is_causal, problem.multiplies
    flags = {
        "HAS_KEY": problem.key is not None,
        "HAS_ENCODING": problem.relative_encoding is not None,
        "HAS_FACTOR": has_factor,
        "HAS_ADDEND": problem.relative_bias is not None or (sigma is not None and not has_factor),
        "HAS_KEY_MASK": problem.key_mask is not None,
        "HAS_SEGMENTS": problem.segment_ids is not None,
        "TANGENTS": 0 if sigma is None or not has_factor else len(span.pairs(sigma)),
        "CAUSAL": causal if isinstance(causal, bool) else 2,
    }
    return make_plan(
        (1,) * (grid.MAX_DIMS - len(shape)) + tuple(shape),
        most_half(problem),
        problem.query.shape[-1],
        1 if operands_dtype(problem) == jnp.bfloat16 else 2,
        tuple((name, int(flag)) for name, flag in flags.items()),
        device.shared_bytes,
    )


def most_half(problem: Problem) -> Sizes:
    """A limit of the half-spans, with three dimensions."""
    half = problem.static_half or tuple(size - 1 for size in problem.grid_shape)
    return (0,) * (grid.MAX_DIMS - len(half)) + tuple(half)


def _operands(problem: Problem, with_tangents: bool = False) -> tuple[dict[str, Array], dict[str, Array]]:
    """The arrays as the kernels take them, those with a gradient and the others; backward there are tangents.

    "sigma" is not for the kernels: its gradient is also that of the table of factors, which the tangents give.
    """
    dtype, fixed = operands_dtype(problem), jax.lax.stop_gradient(problem)
    learned = {name: x.astype(dtype) for name, x in problem.given.items() if name in FEATURES}
    # Never more than the plan is for, however the compiler rounds.
    given = {"half": jnp.minimum(half_spans(fixed), np.array(most_half(problem), np.int32))}
    if problem.key_mask is not None:
        given["key_mask"] = problem.key_mask.astype(jnp.uint8)
    if problem.segment_ids is not None:
        given["segments"] = segment_numbers(problem.segment_ids)
    tables = {}
    if problem.multiplies:
        learned["sigma"] = problem.sigma
        tables["factor"], tangents = _factor_and_tangents(fixed)
        tables |= {"tangents": tangents} if with_tangents else {}
    if (addend := addend_table(problem)) is not None:
        tables["addend"] = addend
    heads = max(map(len, tables.values()), default=1)
    for name, x in tables.items():
        x = jnp.broadcast_to(x.astype(jnp.float32), (heads, *x.shape[1:]))
        (learned if name == "addend" else given)[name] = x
    return learned, given


class Call:
    """A call of the kernels with the operands of a problem, by the names in params.h."""

    def __init__(
        self, problem: Problem, rows: Array | None, operands: dict[str, Array], device: Device, plan: Plan | None
    ):
        self.device, self.problem = device, problem
        self.before = grid.MAX_DIMS - len(problem.grid_shape)
        self.size = (1,) * self.before + tuple(problem.grid_shape)
        self.given = {name: x for name, x in operands.items() if name != "sigma"}
        if rows is not None:
            self.given["query_rows"] = rows
        self.units = math.prod(problem.query.shape[:2]) * problem.query.shape[3]
        self.plan = plan or plan_of(jax.tree.map(lambda x: x[0], problem), device)

    def __call__(
        self, launches: list[tuple[int, int, int]], results: dict[str, Any], clear: tuple[str, ...] = ()
    ) -> dict[str, Array]:
        """The results of launches: each of a kernel, the first unit, and the number of units."""
        plan, (o, b, _, h, d) = self.plan, self.given["query"].shape
        causal = self.problem.is_causal
        table = next((self.given[name] for name in ("factor", "addend") if name in self.given), None)
        numbers = {
            "outer": o,
            "batch": b,
            "heads": h,
            "key_heads": self.given["value"].shape[3],
            "group": h // self.given["value"].shape[3],
            "features": d,
            "size": self.size,
            "encoded": (0,) * self.before + tuple(self.problem.encoded_half),
            "rows_axis": self.before,
            "bits": plan.bits,
            "table_heads": 1 if table is None else table.shape[1],
            "half_heads": self.given["half"].shape[1],
            "num_tangents": self.given["tangents"].shape[-1] if "tangents" in self.given else 0,
            "causal": int(causal) if isinstance(causal, bool) else 2,
            "causal_axes": (0,) * 3 if isinstance(causal, bool) else (0,) * self.before + tuple(map(int, causal)),
            "reach": plan.reach,
            "scale": np.float32(self.problem.scaling).view(np.int32).item(),
        }
        at, size = fields()
        words, pointers = np.zeros(size, np.int32), []
        names = {"relative_encoding": "encoding", "d_relative_encoding": "d_encoding"}
        buffers = [names.get(name, name) for name in (*self.given, *results)]
        for name, word in at.items():
            if name in buffers:
                pointers += [word, buffers.index(name)]
            elif name in numbers:
                value = np.atleast_1d(numbers[name])
                words[word : word + len(value)] = value
        flat = []
        for kernel, first, count in launches:
            capacity = plan.capacities[min(kernel, BACKWARD)]
            own = {"first": first, "capacity": capacity, "pitch": pitch(capacity, plan.bits)}
            flat += [kernel, math.prod(plan.tiles), count, plan.shared[kernel], len(own)]
            flat += [number for name, value in own.items() for number in (at[name], value)]
        target, program = self.device.target(plan)
        kinds = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results.values()]
        got = jax.ffi.ffi_call(target, kinds)(
            *self.given.values(),
            program=program,
            words=words,
            pointers=np.array(pointers, np.int64),
            clear=np.array([list(results).index(name) for name in clear], np.int64),
            launches=np.array(flat, np.int64),
            order=np.int64(self.device.order),
        )
        return dict(zip(results, got, strict=True))


def _factor_and_tangents(problem: Problem) -> tuple[Array, Array]:
    """The table of factors [h|1 *R], and its derivatives [h|1 *R m] in the m numbers of a head's sigma.

    They are those of the lower triangle, if it is a factor.
    """
    assert problem.sigma is not None, "a factor is that of a span"
    sigma = jnp.atleast_2d(problem.sigma)

    def of_head(sigma):
        return factor_table(problem, sigma[None])[0]

    derivatives = jax.vmap(jax.jacfwd(of_head))(sigma)  # [h|1 *R *sigma]
    if sigma.ndim == 3:
        derivatives = derivatives[..., *np.tril_indices(sigma.shape[-1])]
    return jax.vmap(of_head)(sigma), derivatives


def operands_dtype(problem: Problem) -> Any:
    """The dtype that features are converted to: bfloat16 if all have it, else float32."""
    given = {x.dtype for name, x in problem.given.items() if name in FEATURES}
    return jnp.bfloat16 if given == {jnp.dtype(jnp.bfloat16)} else jnp.float32


@functools.cache
def fields() -> tuple[dict[str, int], int]:
    """The first word of each field of `Params`, as params.h has them, and the number of words of all."""
    found, word = {}, 0
    source = (library.SOURCES / "params.h").read_text(encoding="utf-8")
    for kind, name, count in re.findall(r"^  ([\w ]+? \*|\w+ )(\w+)(?:\[(\d+)\])?;$", source, re.MULTILINE):
        found[name] = word
        word += 2 if "*" in kind else int(count or 1)
    return found, word + word % 2
