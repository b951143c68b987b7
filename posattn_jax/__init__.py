"""Attention with positions: one JAX/Flax layer with replaceable parts, and models. `public.py` has all public names.

`posattn_jax.nnx` has the layer and its parts as Flax NNX modules. All is imported when it is used, as jax alone takes
seconds: a command says at once what is wrong with its command line.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from posattn_jax.system import moved

if TYPE_CHECKING:
    from posattn_jax.public import *  # noqa: F403
    from posattn_jax.public import __all__ as __all__

moved.install()


def __getattr__(name: str) -> Any:
    """A module of the package, or a public name."""
    module = f"{__name__}.{name}"
    if name.isidentifier() and importlib.util.find_spec(module) is not None:
        return importlib.import_module(module)
    public = importlib.import_module(f"{__name__}.public")
    if not hasattr(public, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(public, name)  # it is not asked for again
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *importlib.import_module(f"{__name__}.public").__all__})
