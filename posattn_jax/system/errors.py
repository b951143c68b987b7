"""Errors for users: each message is one line that names what was given and what is allowed."""

from collections.abc import Callable
from typing import Any


def is_allowed(condition: Callable[[Any], bool], value: Any) -> bool:
    """Whether a condition holds for a value; False for one that it cannot be asked of, such as a text."""
    try:
        return bool(condition(value))
    except TypeError:
        return False


class InputError(ValueError):
    """The configuration, the flags or the data are wrong: nothing was started. Exit code 2."""


class RunError(RuntimeError):
    """The run failed while running. Exit code 1."""
