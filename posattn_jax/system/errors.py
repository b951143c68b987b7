"""Errors for users: each message is one line that names what was given and what is allowed."""

from collections.abc import Callable
from typing import Any


def check(name: str, value: Any, is_allowed: Callable[[Any], bool], expected: str) -> None:
    """ValueError if a value is not allowed, or if that cannot be asked of it: a text is not more than 0."""
    try:
        allowed = is_allowed(value)
    except TypeError:
        allowed = False
    if not allowed:
        raise ValueError(f"{name}={value!r}: expected {expected}")


class InputError(ValueError):
    """The configuration, the flags or the data are wrong: nothing was started. Exit code 2."""


class RunError(RuntimeError):
    """The run failed while running. Exit code 1."""
