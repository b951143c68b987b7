"""How a model begins as another that it adds parts to: whose parameters it has, and what is made of them.

Parts whose parameters are 0 at first, such as `RelativeBias`, or `KernelEncoding(embedding_init=zeros)`, add nothing.
Parts that make themselves what a layer projects otherwise begin as the projection: such a part has an attribute
`replaces`, from names of its parameters to what they stand for, "query", "key" or "value". Each of these parameters,
[*R c h d] or [n c h d], is then that projection's matrix [c h d], at every displacement.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from posattn_jax.axes import Array, Shape
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.parts import Part

Path = tuple[str, ...]
Flat = Mapping[Path, Any]  # arrays, or their shapes


class Begun(NamedTuple):
    """Parameters to begin with, and where they are from.

    Attributes:
      params: of the model.
      made: the paths of those that are made of the other model's.
      added: the paths of those that are fresh.
      left_out: the paths of the other model's that there are no more.
    """

    params: dict[str, Any]
    made: frozenset[Path]
    added: frozenset[Path]
    left_out: frozenset[Path]


def begin_as(model: nn.Module, fresh: Any, other: nn.Module, given: Any) -> Begun:
    """The parameters with which a model computes what another does, as far as its parts can.

    Nothing makes sure that what is fresh adds nothing: that is for the caller to measure.

    Args:
      model: any with attention layers in it.
      fresh: its parameters.
      other: the other model.
      given: the parameters of that one.
    """
    own, its = flatten_dict(fresh), flatten_dict(given)
    begun = {path: its[path] for path, array in own.items() if path in its and its[path].shape == array.shape}
    others, made = dict(_layers(other)), {}
    for path, layer in _layers(model):
        if path in others:
            made |= _of_projections(layer, own, others[path], its, path)
    begun |= {path: array.astype(own[path].dtype) for path, array in made.items()}
    params = unflatten_dict(dict(own) | begun)
    return Begun(params, frozenset(made), frozenset(own.keys() - begun.keys()), frozenset(its.keys() - own.keys()))


def _of_projections(
    layer: PositionalSelfAttention, own: Flat, other: PositionalSelfAttention, its: Flat, path: Path
) -> dict[Path, Array]:
    """What a layer's parameters are of another's projections, where it does not project as much.

    Weights that sum to 1 leave the bias of values alone: without values it is the output's.
    """
    now, then = layer.needed(), other.needed()
    where = {name: (*path, "projections", name) for name in ("kernel", "bias")}
    if now == then or not set(now) <= set(then) or where["kernel"] not in its:
        return {}
    each = {
        name: dict(zip(then, jnp.moveaxis(jnp.asarray(its[at]), -3, 0), strict=True))
        for name, at in where.items()
        if at in its
    }
    found = {}
    for name, at in where.items():
        if name in each and at in own:
            found[at] = jnp.stack([each[name][part] for part in now], -3)
    replaced: set[Part] = set()
    for below, part in _modules(layer, path):
        for name, stands_for in getattr(part, "replaces", {}).items():
            at, matrix = (*below, name), each["kernel"].get(stands_for)
            if at in own and matrix is not None and _is_one_of(matrix, own[at].shape):
                between = (1,) * (own[at].ndim - matrix.ndim)
                table = matrix.reshape(*matrix.shape[:-3], *between, *matrix.shape[-3:])
                found[at] = jnp.broadcast_to(table, own[at].shape)
                replaced.add(stands_for)
    output = {name: (*path, "output", name) for name in ("kernel", "bias")}
    if "value" in replaced and "bias" in each and set(output.values()) <= its.keys():
        moved = jnp.einsum("...hd,...hdc->...c", each["bias"]["value"], jnp.asarray(its[output["kernel"]]))
        found[output["bias"]] = its[output["bias"]] + moved
    return found


def _is_one_of(matrix: Array, shape: Shape) -> bool:
    """Whether tables [... *R c h d] of a shape have matrices like this [... c h d]; first come the layers of a loop."""
    return matrix.shape == (*shape[: matrix.ndim - 3], *shape[-3:])


def _layers(model: nn.Module) -> Iterator[tuple[Path, PositionalSelfAttention]]:
    for path, module in _modules(model, ()):
        if isinstance(module, PositionalSelfAttention):
            yield path, module


def _modules(module: nn.Module, path: Path) -> Iterator[tuple[Path, nn.Module]]:
    """A module and those within it, by the path of their parameters: see `Composite`."""
    yield path, module
    for field in dataclasses.fields(module):
        value = getattr(module, field.name) if field.name not in ("parent", "name") else None
        if isinstance(value, nn.Module):
            yield from _modules(value, (*path, field.name))
        for i, each in enumerate(value if isinstance(value, tuple) else ()):
            if isinstance(each, nn.Module):
                yield from _modules(each, (*path, f"{field.name}_{i}"))
