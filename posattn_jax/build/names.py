"""What a config calls the classes and the functions that objects are made of."""

import importlib
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

import posattn_jax
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
DTYPES = {"float32": jnp.dtype("float32"), "bfloat16": jnp.dtype("bfloat16")}


def name_of(cls: type) -> str:
    """A public class's name; of another "MODULE:NAME", as it is imported."""
    if getattr(posattn_jax, cls.__name__, None) is cls:
        return cls.__name__
    return f"{cls.__module__}:{cls.__qualname__}"


def short(name: str) -> str:
    """A class's name as a config has it, without its module."""
    return name.rpartition(":")[2]


def class_of(name: str, path: str) -> Any:
    """The class of a name, which stands at this path of a config; InputError where there is none."""
    module, colon, attribute = name.rpartition(":")
    try:
        found = getattr(importlib.import_module(module) if colon else posattn_jax, attribute, None)
    except (ValueError, ImportError) as error:
        raise InputError(f"{path}: {error}") from error
    if not isinstance(found, type):
        raise InputError(f"{path}: {name} is no class of posattn_jax, and no MODULE:NAME")
    return found


def function_name(function: Any) -> str:
    """What a config calls a function; ValueError where it has no name there."""
    for name, known in FUNCTIONS.items():
        if known is function:
            return name
    raise ValueError(f"{function} has no name in a config: expected one of {', '.join(FUNCTIONS)}")
