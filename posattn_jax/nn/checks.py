"""What a module's fields cannot be, said when it is constructed."""

from typing import Any


def check_sizes(module: Any, *names: str) -> None:
    """ValueError where one of these fields is less than 1; None is allowed."""
    for name in names:
        value = getattr(module, name)
        if value is not None and value < 1:
            raise ValueError(f"{name}={value}: expected at least 1")


def check_rates(module: Any, *names: str) -> None:
    """ValueError where one of these fields is no rate of dropout; None is allowed."""
    for name in names:
        value = getattr(module, name)
        if value is not None and not 0 <= value < 1:
            raise ValueError(f"{name}={value}: expected at least 0 and less than 1")
