"""Types of arguments of attention, their trees of arrays, and the shape checks of arrays."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array, Float, Key, SharedKey, Sizes
from posattn_jax.ops.encodings import Combine


def array(axes: str, floating: bool = True, **options: Any) -> Any:
    """A field of a `tree` that is an array, or a tree of arrays.

    Args:
      axes: their names, as in `posattn_jax.axes`: "*r" stands for any number, "#b" for b or 1.
      floating: whether integers are meant as floats.
      **options: those of `dataclasses.field`.
    """
    return dataclasses.field(metadata={"axes": axes, "floating": floating}, **options)


def arrays_of(kind: type) -> dict[str, dataclasses.Field]:
    """The fields of a `tree` that are arrays, by name."""
    return {field.name: field for field in dataclasses.fields(kind) if "axes" in field.metadata}


@typing.dataclass_transform(frozen_default=True, field_specifiers=(array,))
def tree(kind: type) -> Any:
    """Makes a class a frozen dataclass and a pytree: its arrays are children, all other fields static.

    What JAX unflattens is not checked, as arguments are: JAX has shardings, and much else, in place of arrays.
    """
    kind = dataclasses.dataclass(frozen=True)(kind)
    arrays = tuple(arrays_of(kind))
    static = tuple(field.name for field in dataclasses.fields(kind) if field.name not in arrays)

    def flatten(x):
        children = [(jax.tree_util.GetAttrKey(name), getattr(x, name)) for name in arrays]
        return children, tuple(getattr(x, name) for name in static)

    def unflatten(fixed, children):
        x = object.__new__(kind)
        x.__dict__.update(zip((*static, *arrays), (*fixed, *children), strict=True))
        return x

    jax.tree_util.register_pytree_with_keys(kind, flatten, unflatten)
    return kind


@tree
class Block:
    """The queries of one device: some rows, along the first dimension, of a grid that is cut over devices.

    Attributes:
      rows: the number of rows.
      whole: the grid before it was cut. It limits the spans, and no key lies beyond it.
      start: the index, in the keys' grid, of the first row of queries; a number or an array [].
      first: the index, in the whole grid, of the first row of keys; likewise. It is negative before the grid.
    """

    rows: int
    whole: tuple[int, ...]
    start: Any = array("")
    first: Any = array("")


@tree
class Factors:
    """The factors of a relative encoding: E = `relative_sinusoids(..., combine)` times `kernel`, plus any bias.

    Attributes:
      kernel: W [c h d].
      combine: whether the sinusoids of several dimensions are summed or concatenated.
    """

    kernel: Float[Array, "c h d"] = array("c h d")
    combine: Combine


def axes_of(axes: str, array: Any, sizes: Mapping[str, int]) -> str:
    """The name of each axis of an array: as many as "*r" stands for, and 1 for an axis "#b" whose size is not b.

    An array with fewer axes has the last ones.
    """
    names, shape = axes.split(), np.shape(array)
    for star in [i for i, name in enumerate(names) if name.startswith("*")]:
        names[star : star + 1] = [names[star][1:]] * max(0, len(shape) - len(names) + 1)
    marked = zip(names[len(names) - len(shape) :], shape, strict=True)
    return " ".join(name if name[0] != "#" else name[1:] if size == sizes[name[1:]] else "1" for name, size in marked)


def shape_of(axes: str, sizes: Mapping[str, int | Sizes]) -> Sizes:
    """The shape of an array with these axes; "*r" has several sizes."""
    found: list[int] = []
    for name in axes.split():
        size = sizes[name.lstrip("*#")]
        found += size if isinstance(size, tuple) else [size]
    return tuple(found)


def of_all_heads(features: SharedKey | None, num_heads: int) -> Key | None:
    """Repeats each head h / k times: [b s k d] -> [b s h d]."""
    if features is None or features.shape[2] == num_heads:
        return features
    return jnp.repeat(features, num_heads // features.shape[2], axis=2)


def check_pairs(name: str, pairs: Array | None, sizes: Sizes) -> None:
    """ValueError unless an array of pairs is [b|1 h|1 t s]."""
    b, h, t, s = sizes
    allowed = ((b, 1), (h, 1), (t,), (s,))
    if pairs is not None and (
        pairs.ndim != 4 or any(size not in some for size, some in zip(pairs.shape, allowed, strict=True))
    ):
        raise ValueError(f"{name} has shape {pairs.shape}: expected ({b} or 1, {h} or 1, {t}, {s})")
