"""Starts a model with the parameters of another model that it adds parts to.

Parts whose parameters are 0 at first, such as `RelativeBias` or `KernelEncoding(embedding_init=zeros)`, add nothing.
Other parts replace a projection of the layer, and start as this projection. Such a part has an attribute `replaces`,
which maps names of its parameters to "query", "key" or "value". Each of these parameters, [*R c h d] or [n c h d],
starts as that projection's matrix [c h d], at every displacement.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from posattn_jax.axes import Array
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.parts import Part

Path = tuple[str, ...]
Flat = dict[Path, Any]  # arrays, or their shapes


class Begun(NamedTuple):
    """Parameters to start with, and where they come from.

    Attributes:
      params: the parameters of the model.
      made: the paths of those that were computed from the other model's.
      added: the paths of those that are freshly initialised.
      left_out: the paths of the other model's parameters that this model does not have.
    """

    params: dict[str, Any]
    made: frozenset[Path]
    added: frozenset[Path]
    left_out: frozenset[Path]


def begin_as(model: nn.Module, fresh: Any, other: nn.Module, given: Any) -> Begun:
    """The parameters with which a model computes the same as another, as far as its parts can.

    It does not check that fresh parameters add nothing: the caller must measure that.

    Args:
      model: any model with attention layers.
      fresh: its initial parameters.
      other: the other model.
      given: the parameters of the other model.
    """
    own: Flat = dict(flatten_dict(fresh))
    its: Flat = dict(flatten_dict(given))
    begun = {path: its[path] for path, array in own.items() if path in its and its[path].shape == array.shape}
    others, made = dict(_layers(other)), {}
    for path, layer in _layers(model):
        if path in others:
            made |= _of_projections(layer, own, others[path], its, path)
    begun |= {path: array.astype(own[path].dtype) for path, array in made.items()}
    params = unflatten_dict(own | begun)
    return Begun(params, frozenset(made), frozenset(own.keys() - begun.keys()), frozenset(its.keys() - own.keys()))


def _of_projections(
    layer: PositionalSelfAttention, own: Flat, other: PositionalSelfAttention, its: Flat, path: Path
) -> dict[Path, Array]:
    """A layer's parameters, computed from another layer's projections, if this layer projects fewer parts.

    Weights sum to 1, so they leave the bias of values as it is. Without projected values, this bias moves to the
    output's.
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
            if found[at].shape != own[at].shape:  # other heads
                return {}
    replaced: set[Part] = set()
    for below, part in _modules(layer, path):
        for name, stands_for in getattr(part, "replaces", {}).items():
            at, matrix = (*below, name), each["kernel"].get(stands_for)
            if at not in own or matrix is None:
                continue
            # Tables are [... *R c h d], and such matrices [... c h d]; leading axes are scanned layers.
            if matrix.shape == (*own[at].shape[: matrix.ndim - 3], *own[at].shape[-3:]):
                between = (1,) * (own[at].ndim - matrix.ndim)
                table = matrix.reshape(*matrix.shape[:-3], *between, *matrix.shape[-3:])
                found[at] = jnp.broadcast_to(table, own[at].shape)
                replaced.add(stands_for)
    output = {name: (*path, "output", name) for name in ("kernel", "bias")}
    if "value" in replaced and "bias" in each and set(output.values()) <= its.keys():
        moved = jnp.einsum("...hd,...hdc->...c", each["bias"]["value"], jnp.asarray(its[output["kernel"]]))
        found[output["bias"]] = its[output["bias"]] + moved
    return found


def _layers(model: nn.Module) -> Iterator[tuple[Path, PositionalSelfAttention]]:
    for path, module in _modules(model, ()):
        if isinstance(module, PositionalSelfAttention):
            yield path, module


def _modules(module: nn.Module, path: Path) -> Iterator[tuple[Path, nn.Module]]:
    """A module and its submodules, with the paths of their parameters: see `Composite`."""
    yield path, module
    for field in dataclasses.fields(module):
        value = getattr(module, field.name) if field.name not in ("parent", "name") else None
        if isinstance(value, nn.Module):
            yield from _modules(value, (*path, field.name))
        for i, each in enumerate(value if isinstance(value, tuple) else ()):
            if isinstance(each, nn.Module):
                yield from _modules(each, (*path, f"{field.name}_{i}"))
