"""Configs that earlier versions saved."""

import json
from typing import Any

from posattn_jax.build.names import class_of
from posattn_jax.build.parts import part
from posattn_jax.system.errors import InputError


def completed(saved: dict[str, Any]) -> dict[str, Any]:
    """Adds to the parts of a saved config the fields that their classes have got since, with their defaults.

    With these defaults, a part behaves as it did before. A part whose class no longer exists stays as it is.
    """
    given = {name: completed(value) if isinstance(value, dict) else value for name, value in saved.items()}
    try:
        cls = class_of(given["kind"], "kind")
    except (KeyError, InputError):  # not a part, or its class does not exist
        return given
    defaults = json.loads(json.dumps(part(cls).to_dict()))
    stood_for = {f"{name}s" for name in given if name.endswith("block")}  # `block` and `num_blocks` stand for `blocks`
    return {name: default for name, default in defaults.items() if name not in stood_for} | given
