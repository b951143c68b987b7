"""Configs as earlier versions saved them."""

import json
from typing import Any

from posattn_jax.build.names import class_of
from posattn_jax.build.parts import part
from posattn_jax.system.errors import InputError


def completed(saved: dict[str, Any]) -> dict[str, Any]:
    """A saved config, whose parts also have the fields that their classes have been given since, at their defaults.

    With these a part does what it did before it had them. A part of a class that is no more stays as it is.
    """
    given = {name: completed(value) if isinstance(value, dict) else value for name, value in saved.items()}
    try:
        cls = class_of(given["kind"], "kind")
    except (KeyError, InputError):  # no part, or of no class that there is
        return given
    defaults = json.loads(json.dumps(part(cls).to_dict()))
    stood_for = {f"{name}s" for name in given if name.endswith("block")}  # `blocks`, by `block` and `num_blocks`
    return {name: default for name, default in defaults.items() if name not in stood_for} | given
