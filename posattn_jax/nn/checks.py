"""Checks of a module's fields, made when the module is constructed."""

from typing import Any


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


def _shown(part: Any) -> str:
    """The part as it is written in code."""
    return part.__name__ if isinstance(part, type) else f"{type(part).__name__}(...)"
