"""Checks of a module's fields, made when the module is constructed."""

import dataclasses
import importlib
import sys
from typing import Any

import flax.linen as nn
import jax


def check_sizes(module: Any, *names: str) -> None:
    """ValueError if one of these fields is less than 1; None is allowed."""
    for name in names:
        value = getattr(module, name)
        if value is not None and value < 1:
            raise ValueError(f"{name}={value}: expected at least 1")


def check_rates(module: Any, *names: str) -> None:
    """ValueError if one of these fields is not a dropout rate, at least 0 and less than 1; None is allowed."""
    for name in names:
        value = getattr(module, name)
        if value is not None and not 0 <= value < 1:
            raise ValueError(f"{name}={value}: expected at least 0 and less than 1")


def check_parts(module: Any, *names: str, several: str = "") -> None:
    """ValueError if one of these fields is a class or cannot be called, and so is no part; None is allowed.

    `several` names a field that is a tuple of parts.
    """
    if several:
        _check_several(several, getattr(module, several))
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
    """ValueError unless these are a tuple of terms with the attribute `needs`."""
    _check_several("terms", terms)
    for term in terms:
        check_needs(term)


def check_needs(part: Any) -> None:
    """ValueError for a part that does not say which of query, key and value it `needs`."""
    if not hasattr(part, "needs"):
        parts = ("query", "key", "value")
        raise ValueError(f"{_shown(part)} does not say what it `needs` of {parts}: see Term and Values in nn/parts.py")


def _check_several(name: str, parts: Any) -> None:
    if not isinstance(parts, tuple | list):
        raise ValueError(f"{name}={_shown(parts)}: expected a tuple, ({_shown(parts)},)")
    for i, part in enumerate(parts):
        _check_part(f"{name}[{i}]", part)


def _check_part(name: str, part: Any) -> None:
    if isinstance(part, type):
        raise ValueError(f"{name}={part.__name__} is a class: expected an object, {part.__name__}(...)")
    if part is not None and not callable(part):
        raise ValueError(f"{name}={part!r}: expected a part, a function or module; see posattn_jax/nn/parts.py")


def _twin(part: Any, home: str, otherwise: str) -> str:
    """The import of the class of the same name in this package of ours; `otherwise` if it has none."""
    name, is_ours = type(part).__name__, type(part).__module__.partition(".")[0] == "posattn_jax"
    return f"from {home} import {name}" if is_ours and name in importlib.import_module(home).__all__ else otherwise


def _shown(part: Any) -> str:
    """The part as it is written in code."""
    return part.__name__ if isinstance(part, type) else f"{type(part).__name__}(...)"
