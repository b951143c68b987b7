"""Modules whose parts are named by the fields that hold them."""

import dataclasses
import re

import flax.linen as nn
import jax


class Composite(nn.Module):
    """A module whose fields may be modules: their parameters have the names of its fields, wherever they were made.

    A part that is made in `setup`, or outside of all modules, is named by what holds it. One that is made in
    `nn.compact` Linen names there and then, after its class and in the module around; here it gives that name up. A
    part with a name of its own, or whose parameters there are already under Linen's name, keeps it.
    """

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if field.name not in ("parent", "name"):
                for part in jax.tree.leaves(getattr(self, field.name)):
                    if isinstance(part, nn.Module) and self._names(part):
                        object.__setattr__(part, "name", None)
        super().__post_init__()

    def _names(self, part: nn.Module) -> bool:
        """Whether a part that has a place already is to be named anew: at this module's new place, if it has moved."""
        if not isinstance(part.parent, nn.Module) or part.scope is None or part.variables:
            return False
        return part.parent is self or re.fullmatch(rf"{type(part).__name__}_\d+", part.name or "") is not None
