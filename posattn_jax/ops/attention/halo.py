"""Attention on a grid that is cut over devices: each device receives the keys and values that its queries' spans reach.

The first dimension of the grid is cut into runs of rows, one per device; the last ones are padded. A device holds the
queries, keys and values of its rows. It receives its halo: the keys and values of its neighbours that lie within the
half-span. Then it attends with the implementations of one device, with its queries inside a larger grid of keys. A
device has all keys of its queries, so no statistics of the softmax are sent. Encodings are not sent either: E is the
same on all devices, and holds only the offsets within the bound of the span. In the backward pass the gradients of the
halo are sent back the same way, and the gradients of arrays that all devices share are summed.
"""

import dataclasses
import functools
import logging
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.export import is_symbolic_dim
from jax.sharding import PartitionSpec

from posattn_jax.axes import Array, Key, Query, Shape, Sigma, Value
from posattn_jax.ops import grid
from posattn_jax.ops.attention.arguments import Block
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.select import CUT_IMPLEMENTATIONS, IMPLEMENTATIONS
from posattn_jax.ops.attention.support import GRID_AXIS, refuse, supports
from posattn_jax.ops.precision import as_array

# Arguments of `relative_attention` that cannot be split.
UNSUPPORTED = ("mask", "bias", "segment_ids", "query_seq_lengths", "key_value_seq_lengths")
UNSUPPORTED += ("query_grid_shape", "dilation")

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Exchange:
    """The rows of a cut grid that the devices send each other.

    Attributes:
      num_devices: the number of devices that the grid is cut over.
      rows: the number of rows per device.
      halo: the number of rows of other devices that a device needs on each side.
    """

    num_devices: int
    rows: int
    halo: int

    @property
    def takes(self) -> list[int]:
        """The number of rows from the neighbour 1, 2, ... devices away: all of its rows; from the last one the rest."""
        hops = -(-self.halo // self.rows)
        return [min(self.rows, self.halo - hop * self.rows) for hop in range(hops)]

    @property
    def halo_rows(self) -> int:
        """The number of rows that the busiest device sends to others as halos."""
        sides = ((i, self.num_devices - 1 - i) for i in range(self.num_devices))
        return max(sum(self.takes[:before]) + sum(self.takes[:after]) for before, after in sides)

    @property
    def gathered_rows(self) -> int:
        """The number of rows that every device sends in an all-gather."""
        return (self.num_devices - 1) * self.rows

    @property
    def gathers(self) -> bool:
        """Whether an all-gather is cheaper: it sends no more rows, and sends them in one piece.

        That is so if the halo is half of the grid or more: a device in the middle then sends to all others anyway.
        """
        return self.num_devices > 1 and self.halo_rows >= self.gathered_rows


def plan_exchange(grid_shape: Shape, span_bound: Shape | None, num_devices: int) -> Exchange:
    """The exchange for a grid cut over `num_devices`, if half-spans are at most `span_bound`; None: any half-span."""
    size = grid.check_grid(grid_shape)[0]
    if num_devices < 1:
        raise ValueError(f"num_devices={num_devices}: expected at least 1")
    rows = -(-size // num_devices)
    others = (num_devices - 1) * rows
    return Exchange(num_devices, rows, others if span_bound is None else min(int(span_bound[0]), others))


def exchange_bytes(
    grid_shape: Shape,
    span_bound: Shape | None,
    num_devices: int,
    *,
    batch_size: int = 1,
    num_heads: int = 1,
    head_dim: int = 1,
    itemsize: int = 4,
) -> dict[str, int]:
    """The bytes of keys and values that the busiest device sends forward; their gradients take as many backward.

    Returns:
      {"hops", "halo", "all_gather"}: the number of neighbours on each side that send rows, the bytes with halos, and
      the bytes with an all-gather.

    Example:
      >>> from posattn_jax import exchange_bytes
      >>> exchange_bytes((128, 32, 32), (2, 31, 31), num_devices=8, num_heads=4, head_dim=16)
      {'hops': 1, 'halo': 2097152, 'all_gather': 58720256}
    """
    exchange = plan_exchange(grid_shape, span_bound, num_devices)
    row_bytes = 2 * batch_size * math.prod(grid_shape[1:]) * num_heads * head_dim * itemsize
    return {
        "hops": len(exchange.takes),
        "halo": exchange.halo_rows * row_bytes,
        "all_gather": exchange.gathered_rows * row_bytes,
    }


def halo_attention(
    query: Query,
    key: Key | None,
    value: Value,
    *,
    grid_shape: Shape,
    sigma: Sigma,
    implementation: str = "auto",
    axis_name: str = "grid",
    batch_axes: tuple[str, ...] = (),
    **arguments: Any,
) -> Query:
    """`relative_attention` with the grid's first dimension cut over an axis of the mesh in scope (`jax.set_mesh`).

    The arguments are those of `relative_attention`: whole arrays, as a jitted function sees them. The compiler decides
    about the axes of the mesh that are not named. If the arrays are already cut by rows, the devices send only halos:
    those of keys, values and a `key_mask` forward, and the gradients of those keys and values backward. The gradients
    of E, sigma and the biases are summed over the devices; their size depends on the bound. If the number of rows is
    not a multiple of the number of devices, the arrays are padded, and the compiler moves rows as needed.

    If an all-gather sends no more than the halos would, which is so from half of the grid on, keys and values are
    gathered instead: every device then holds all of them. A warning is logged, once for every grid and bound.

    Args:
      sigma: as in `relative_attention`, but required: without a span every query attends to every key.
      implementation: "auto", "tiled", "dense", "native" on CPUs, or "fused" on GPUs.
      axis_name: the name of the mesh axis.
      batch_axes: other mesh axes, that the batch is cut over; their sizes divide it. Where axes of several devices are
        not named, "auto" uses no kernel, and one that is asked for by name computes the same on all devices along them.
      **arguments: the others of `relative_attention`, except return_weights, dropout, mask, bias, segment_ids, sequence
        lengths, query_grid_shape and dilation. `span_bound` is S - 1 by default; a larger bound is cut to S - 1.
        relative_encoding and relative_bias hold the offsets within the bound, [*(2 bound + 1), ...]. They may hold
        more, such as all offsets [*R, ...]; those beyond the bound are not used.

    Returns:
      The outputs [b t h d], cut by rows.

    Raises:
      ValueError: the mesh in scope has no such axis, the implementation cannot be cut, or as `relative_attention`.

    Source: ours.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import halo_attention
      >>> mesh = jax.make_mesh((1,), ("grid",), axis_types=(jax.sharding.AxisType.Auto,))  # of one device
      >>> heads, sigma = jnp.ones((1, 8 * 3, 2, 4)), jnp.array([0.1, 0.5])
      >>> attend = jax.jit(lambda x: halo_attention(x, x, x, grid_shape=(8, 3), sigma=sigma, span_bound=(2, 2)))
      >>> with jax.set_mesh(mesh):
      ...     outputs = attend(heads)
      ...
      >>> outputs.shape
      (1, 24, 2, 4)
    """
    if sigma is None:
        raise ValueError("sigma is None: expected a span, which limits what devices exchange")
    if refused := [name for name in UNSUPPORTED if arguments.get(name) is not None]:
        raise ValueError(f"{refused[0]}: expected None with halo_attention; relative_attention supports it")
    arguments |= whole_block(grid_shape, arguments.get("span_bound"))
    for name in ("relative_encoding", "relative_bias"):
        if arguments.get(name) is not None:
            table = as_array(arguments[name], floating=True)
            near = [min(b, size // 2) for b, size in zip(arguments["span_bound"], table.shape, strict=False)]
            arguments[name] = grid.centre(table, near)
    problem = Problem.of(query=query, key=key, value=value, sigma=sigma, grid_shape=grid_shape, **arguments)
    refuse("halo_attention", supports(GRID_AXIS, problem), "relative_attention")
    return attend_cut(problem, implementation, axis_name, batch_axes)


def whole_block(grid_shape: Shape, span_bound: Shape | None) -> dict[str, Any]:
    """The fields of a problem that is to be cut: E and beta hold only offsets within the bound, by default S - 1."""
    shape = grid.check_grid(grid_shape)
    far = tuple(size - 1 for size in shape)
    bound = far if span_bound is None else tuple(int(b) for b in span_bound)
    if len(bound) == len(far):
        bound = tuple(map(min, bound, far))
    return {"span_bound": bound, "encoded_bound": bound, "block": Block(shape[0], shape, 0, 0)}


def attend_cut(problem: Problem, implementation: str, axis_name: str, batch_axes: tuple[str, ...] = ()) -> Query:
    """The outputs of a problem with the fields of `whole_block`, cut over a mesh axis: see `halo_attention`."""
    mesh = jax.sharding.get_abstract_mesh()
    if axis_name not in mesh.shape:
        raise ValueError(f'axis_name="{axis_name}": expected an axis of the mesh in scope, which has {mesh.axis_names}')
    if implementation not in CUT_IMPLEMENTATIONS:
        known = ", ".join(sorted(CUT_IMPLEMENTATIONS))
        raise ValueError(f'implementation="{implementation}": expected one of {known} where the grid is cut')
    if is_symbolic_dim(problem.query.shape[0]):  # XLA would crash where such a program runs
        raise ValueError("the batch has a symbolic size: expected a plain number where the grid is cut")
    shape, bound = problem.grid_shape, tuple(problem.span_bound or ())
    exchange = plan_exchange(shape, bound, mesh.shape[axis_name])
    if exchange.gathers:
        _say_that_it_gathers(shape, bound[0], exchange)
    line, num_rows, axes = math.prod(shape[1:]), exchange.num_devices * exchange.rows, problem.axes
    padding = (num_rows - shape[0]) * line

    def padded(x, axes):
        if not padding or not axes.startswith("b"):
            return x
        return jnp.pad(_uncut(x), [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2))

    def local(start, problem):
        if exchange.gathers:
            block, key_rows = Block(exchange.rows, shape, start[0], 0), num_rows
            seen = functools.partial(lax.all_gather, axis_name=axis_name, axis=1, tiled=True)
        else:
            block = Block(exchange.rows, shape, exchange.halo, start[0] - exchange.halo)
            key_rows = exchange.rows + 2 * exchange.halo
            seen = functools.partial(with_halo, exchange=exchange, line=line, axis_name=axis_name)
        here = jax.tree.map(lambda x, axes: seen(x) if axes.startswith("b s") else x, problem, axes)
        here = dataclasses.replace(here, grid_shape=(key_rows, *shape[1:]), block=block)
        return IMPLEMENTATIONS[implementation](here.settled())[0]

    starts = jnp.arange(exchange.num_devices, dtype=jnp.int32) * exchange.rows
    by_rows = PartitionSpec(batch_axes or None, axis_name)
    outputs = jax.shard_map(
        local,
        in_specs=(
            PartitionSpec(axis_name),
            jax.tree.map(lambda axes: by_rows if axes.startswith("b") else PartitionSpec(), axes),
        ),
        out_specs=by_rows,
        axis_names={axis_name, *batch_axes},
    )(starts, jax.tree.map(padded, problem, axes))
    return _uncut(outputs[:, : shape[0] * line]) if padding else outputs


def _uncut(x: Array) -> Array:
    """Keeps the axis t of [b t ...] uncut, where its size is not a multiple of the number of devices.

    XLA would cut it over a part of a mesh axis, which jax before 0.10 cannot express.
    """
    free = PartitionSpec.UNCONSTRAINED
    return lax.with_sharding_constraint(x, PartitionSpec(free, None, *[free] * (x.ndim - 2)))


def with_halo(x: Array, exchange: Exchange, line: int, axis_name: str) -> Array:
    """Joins a device's rows with its neighbours' rows: [b rows ...] -> [b (halo + rows + halo) ...].

    Rows before the first device and after the last one are 0.

    Args:
      x: rows of `line` positions each, in one axis.
    """
    before, after = [], []
    for hop, rows in enumerate(exchange.takes, 1):
        pairs = [(i, i + hop) for i in range(exchange.num_devices - hop)]
        last, first = x[:, x.shape[1] - rows * line :], x[:, : rows * line]
        before.insert(0, lax.ppermute(last, axis_name, pairs))
        after.append(lax.ppermute(first, axis_name, [(there, here) for here, there in pairs]))
    return jnp.concatenate([*before, x, *after], 1)


@functools.cache
def _say_that_it_gathers(grid_shape: tuple[int, ...], bound: int, exchange: Exchange) -> None:
    _LOG.warning(
        "grid %s split over %d devices: with a half-span of up to %d rows and %d rows per device, halos would send "
        "%d rows in %d hops; an all-gather of %d rows is cheaper, so every device receives all keys and values",
        grid_shape,
        exchange.num_devices,
        bound,
        exchange.rows,
        exchange.halo_rows,
        len(exchange.takes),
        exchange.gathered_rows,
    )
