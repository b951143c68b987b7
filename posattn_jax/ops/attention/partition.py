"""Shares an operation on attention's arrays out over devices, by batch and heads: each device computes its part."""

import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from posattn_jax.system.compat import custom_partitioning

# The axes of an array that devices may share: arrays that have been vmapped, the batch, heads.
SHARED = ("o", "b", "h")


def shared_out(
    part: Callable, arguments: Sequence[str], results: Sequence[str], shapes: Sequence[Sequence[int]]
) -> Callable:
    """The function `part` of arrays, of which each device computes a part.

    Args:
      part: takes and returns arrays with one more leading axis, o.
      arguments, results: the names of the other axes of each array, such as "b t h d". A result that lacks one of the
        axes that devices share is a sum over it.
      shapes: those of the arguments.
    """
    numbers = itertools.count()  # all axes that are not shared are different ones

    def named(axes):
        return ("o", *(axis if axis in ("b", "h", "k") else f"n{next(numbers)}" for axis in axes.split()))

    axes, of_results = ([named(each) for each in side] for side in (arguments, results))
    sizes = {
        name: size for names, shape in zip(axes, shapes, strict=True) for name, size in zip(names, shape, strict=True)
    }
    num_keys = sizes["k"]
    if num_keys == sizes["h"]:
        axes, of_results = (
            [tuple("h" if name == "k" else name for name in names) for names in side] for side in (axes, of_results)
        )

    def partition(mesh, given, wanted):
        given = [each.sharding for each in given]
        if mesh.empty or not all(isinstance(each, NamedSharding) for each in given):
            devices = sorted(given[0].device_set, key=lambda device: device.id)
            mesh, shares = Mesh(np.array(devices), ("all",)), {}
        else:
            shares = _shares(mesh, zip(axes, given, strict=True), sizes)
        over = shares.get("h", ())
        count = math.prod(mesh.shape[axis] for axis in over)
        if num_keys % count == 0:
            shares["k"] = over
        each, serves = (size // math.gcd(num_keys, count) for size in (num_keys, count))

        def sharding(names):
            return NamedSharding(mesh, PartitionSpec(*(shares.get(name) for name in names)))

        def own_heads(x):
            """Of all heads of keys, those that this device's heads of queries need: `each`, at times the same."""
            return x[:, :, :, (lax.axis_index(over) * each + jnp.arange(each)) // serves]

        def in_all_heads(x):
            """The transpose of `own_heads`."""
            kind = jax.ShapeDtypeStruct((*x.shape[:3], num_keys, x.shape[4]), x.dtype)
            return jax.linear_transpose(own_heads, kind)(x)[0]

        def on_device(*arrays):
            apart = "k" not in shares
            arrays = [own_heads(x) if apart and "k" in names else x for x, names in zip(arrays, axes, strict=True)]
            found = part(*arrays)
            everywhere = {axis for each in shares.values() for axis in each}
            sums = []
            for x, names in zip(found, of_results, strict=True):
                missing = everywhere - {axis for name in names for axis in shares.get(name, ())}
                if apart and "k" in names:
                    x = in_all_heads(x)
                sums.append(lax.psum(x, tuple(sorted(missing))) if missing else x)
            return sums

        return mesh, on_device, [sharding(names) for names in of_results], tuple(sharding(names) for names in axes)

    def rule(mesh, *_):
        names = [*axes, *of_results]
        alone = tuple(dict.fromkeys(name for each in names for name in each if name not in SHARED))
        left, right = (", ".join(" ".join(each) for each in side) for side in (axes, of_results))
        return f"{left} -> {right}", {"need_replication_factors": alone}

    whole = custom_partitioning(lambda *arrays: part(*arrays))

    def inferred(mesh, given, wanted):
        return partition(mesh, given, wanted)[2]

    whole.def_partition(partition, infer_sharding_from_operands=inferred, sharding_rule=rule)
    return whole


def _shares(mesh, shardings, sizes) -> dict[str, tuple[str, ...]]:
    """The mesh axes for each axis in `SHARED`: those of the first array that has some, if they divide its size."""
    shares: dict[str, tuple[str, ...]] = {}
    for names, sharding in shardings:
        for name, over in zip(names, sharding.spec, strict=False):
            over = () if over is None else (over,) if isinstance(over, str) else tuple(over)
            taken = {axis for each in shares.values() for axis in each}
            count = int(np.prod([mesh.shape[axis] for axis in over]))
            if name in SHARED and name not in shares and over and not taken & set(over) and sizes[name] % count == 0:
                shares[name] = over
    return shares
