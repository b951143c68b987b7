"""The names that a config uses for classes, functions and dtypes."""

import dataclasses
import importlib
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from posattn_jax import public
from posattn_jax.nn.displacements import fan_in_table, kaiming_table
from posattn_jax.nn.gating import exact_gelu, tanh_gelu
from posattn_jax.ops.initial import NORMAL, STANDARD_NORMAL, XAVIER, fan_in, fused_xavier
from posattn_jax.system.errors import InputError

FUNCTIONS = {
    "relu": nn.relu,
    "gelu": exact_gelu,
    "tanh_gelu": tanh_gelu,
    "zeros": nn.initializers.zeros,
    "ones": nn.initializers.ones,
    "xavier": XAVIER,
    "fused_xavier": fused_xavier,
    "fan_in": fan_in,
    "normal": NORMAL,  # N(0, .02)
    "standard_normal": STANDARD_NORMAL,
    "kaiming_table": kaiming_table,
    "fan_in_table": fan_in_table,
}
_TRUSTED: set[str] = set()
DTYPES = {"float32": jnp.dtype("float32"), "bfloat16": jnp.dtype("bfloat16")}


def name_of(cls: type) -> str:
    """The name of a public class; for any other class "MODULE:NAME", by which it is imported."""
    if getattr(public, cls.__name__, None) is cls:
        return cls.__name__
    return f"{cls.__module__}:{cls.__qualname__}"


def short(name: str) -> str:
    """The name of a class in a config, without its module."""
    return name.rpartition(":")[2]


def trust(module: str) -> None:
    """Allows configs to name classes of a module, which is imported then.

    A config may come with a stranger's run folder, which is data: its kinds must not import, and so run, any code that
    is not of this package. A module is trusted if the program or the command line names it, or `part` got its class.
    """
    _TRUSTED.add(module)


def class_of(name: Any, path: str) -> Any:
    """The dataclass with a name. `path` says where in a config the name is, for messages.

    Raises:
      InputError: there is none, or it is of a module that is neither of posattn_jax nor trusted: see `trust`.
    """
    wrong = f"{path}: {name} is no class of posattn_jax, and no MODULE:NAME"
    if not isinstance(name, str):
        raise InputError(wrong)
    module, colon, attribute = name.rpartition(":")
    if colon and module.partition(".")[0] != "posattn_jax" and module not in _TRUSTED:
        raise InputError(f"{path}: {name} is not of posattn_jax: expected --modules={module}, if you trust its code")
    try:
        found = getattr(importlib.import_module(module) if colon else public, attribute, None)
    except Exception as error:  # whatever a module raises when it is imported
        raise InputError(f"{path}: {error}") from error
    if not isinstance(found, type):
        raise InputError(wrong)
    if not dataclasses.is_dataclass(found):
        raise InputError(f"{path}: {name} is no dataclass: expected one, whose fields are in the config")
    return found


def function_name(function: Any) -> str:
    """The name of a function in a config. Raises ValueError if it has none."""
    for name, known in FUNCTIONS.items():
        if known is function:
            return name
    raise ValueError(f"{function} has no name in a config: expected one of {', '.join(FUNCTIONS)}")
