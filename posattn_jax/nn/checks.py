"""Checks of a module's fields, made when the module is constructed."""

import dataclasses
import importlib
import sys
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax

from posattn_jax.axes import RelativeEncoding
from posattn_jax.nn.scores import Extent, Scores
from posattn_jax.system.errors import check

# What parts return, by field, where that tells their kinds apart; and for each kind its name and its place.
RETURNED = {"terms": Scores, "encoding": RelativeEncoding, "span": Extent}
KINDS = {
    Scores: ("a score term", "terms=(..., {})"),
    RelativeEncoding: ("an encoding", "terms=(..., Positional({}))"),
    Extent: ("a span", "span={}"),
}


def check_sizes(module: Any, *names: str) -> None:
    """ValueError if one of these fields is no whole number of at least 1; None is allowed."""
    for name in names:
        value = getattr(module, name)
        if value is not None and (not hasattr(value, "__index__") or value < 1):
            raise ValueError(f"{name}={value!r}: expected a whole number of at least 1")


def check_rates(module: Any, *names: str) -> None:
    """ValueError if one of these fields is not a dropout rate, at least 0 and less than 1; None is allowed."""
    for name in names:
        value = getattr(module, name)
        if value is not None:
            check(name, value, lambda x: 0 <= x < 1, "at least 0 and less than 1")


def check_parts(module: Any, *names: str) -> None:
    """ValueError if one of these fields has no part, or one that belongs into another field; None is allowed."""
    for name in names:
        _check_part(name, getattr(module, name))


def check_linen(module: nn.Module) -> None:
    """ValueError if a field has an NNX module: its parameters would be constants, which no optimiser changes."""
    nnx = sys.modules.get("flax.nnx")  # not imported here, which takes long: unless it is, there are no NNX modules
    if nnx is None:
        return
    is_nnx = lambda part: isinstance(part, nnx.Module)
    for field in dataclasses.fields(module):
        if field.name not in ("parent", "name"):
            for path, part in jax.tree_util.tree_leaves_with_path(getattr(module, field.name), is_leaf=is_nnx):
                if is_nnx(part):
                    given = f"{field.name}{jax.tree_util.keystr(path)}={_shown(part)}"
                    bridged = f"nnx.bridge.ToLinen({type(part).__name__}, ...)"
                    expected = _twin(part, "posattn_jax", bridged)
                    raise ValueError(f"{given} is an NNX module in a Linen module: expected Linen's, {expected}")


def check_nnx(**parts: Any) -> None:
    """ValueError if one of these parts of an NNX module, or of its tuples, is a Linen module; None is allowed."""
    for path, part in jax.tree_util.tree_leaves_with_path(parts, is_leaf=callable):
        if isinstance(part, nn.Module):
            name = jax.tree_util.keystr(path[:1], simple=True) + jax.tree_util.keystr(path[1:])
            bridged = "or a whole Linen layer as an NNX module, nnx.bridge.ToNNX(layer, rngs=rngs)"
            expected = _twin(part, "posattn_jax.nnx", bridged)
            raise ValueError(f"{name}={_shown(part)} is a Linen module in an NNX module: expected NNX's, {expected}")


def check_terms(terms: Any) -> None:
    """ValueError unless these are a tuple or a mapping of at least one term, each with the attribute `needs`."""
    if not isinstance(terms, tuple | list | Mapping):
        raise ValueError(f"terms={_shown(terms)}: expected a tuple, ({_shown(terms)},)")
    if not terms:
        raise ValueError("terms=(): expected at least one score term, such as (Content(),)")
    for name, term in terms.items() if isinstance(terms, Mapping) else enumerate(terms):
        _check_part(f"terms[{name!r}]", term)
        check_needs(f"terms[{name!r}]", term)


def check_needs(name: str, part: Any) -> None:
    """ValueError for a part that does not say which of query, key and value it `needs`."""
    if not hasattr(part, "needs"):
        parts = ("query", "key", "value")
        given = f"{name}={_shown(part)} does not say what it `needs` of {parts}"
        raise ValueError(f"{given}: see Term and Values in nn/parts.py")


def _check_part(name: str, part: Any) -> None:
    """ValueError for a class, what cannot be called, or a part that returns what another field expects."""
    if isinstance(part, type):
        raise ValueError(f"{name}={part.__name__} is a class: expected an object, {part.__name__}(...)")
    if part is not None and not callable(part):
        raise ValueError(f"{name}={part!r}: expected a part, a function or module; see posattn_jax/nn/parts.py")
    returned = getattr(type(part).__call__, "__annotations__", {}).get("return") if part is not None else None
    if returned in KINDS and returned is not RETURNED.get(name.partition("[")[0]):
        kind, place = KINDS[returned]
        raise ValueError(f"{name}={_shown(part)} is {kind}: expected {place.format(_shown(part))}")


def _twin(part: Any, home: str, otherwise: str) -> str:
    """The import of the class of the same name in this package of ours; `otherwise` if it has none."""
    name, is_ours = type(part).__name__, type(part).__module__.partition(".")[0] == "posattn_jax"
    return f"from {home} import {name}" if is_ours and name in importlib.import_module(home).__all__ else otherwise


def _shown(part: Any) -> str:
    """The part as it is written in code."""
    return part.__name__ if isinstance(part, type) else f"{type(part).__name__}(...)"
