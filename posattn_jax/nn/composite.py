"""Modules whose parts are named by the fields that hold them."""

import dataclasses
import re

import flax.linen as nn
import jax

from posattn_jax.nn.checks import check_linen


class Composite(nn.Module):
    """A module whose fields may be modules: their parameters are named after the fields, wherever they were created.

    Linen names a part after the field that holds it, if the part is created in `setup` or outside of all modules. If it
    is created in `nn.compact`, Linen names it at once, after its class and in the surrounding module. This class
    removes such a name. A part keeps its name if the user chose it, or if parameters already exist under it.

    Raises:
      ValueError: a part is an NNX module.
    """

    def __post_init__(self):
        check_linen(self)
        for field in dataclasses.fields(self):
            if field.name not in ("parent", "name"):
                for part in jax.tree.leaves(getattr(self, field.name)):
                    if isinstance(part, nn.Module) and self._names(part):
                        object.__setattr__(part, "name", None)
        super().__post_init__()

    def _names(self, part: nn.Module) -> bool:
        """Whether a part that already belongs to a module is to be renamed, also if this module itself has moved."""
        if not isinstance(part.parent, nn.Module) or part.scope is None or part.variables:
            return False
        return part.parent is self or re.fullmatch(rf"{type(part).__name__}_\d+", part.name or "") is not None
