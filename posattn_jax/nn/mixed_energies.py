"""Energies mixed from several parts, such as content and position."""

import functools
import operator
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Features
from posattn_jax.nn.composite import Composite
from posattn_jax.nn.energies import Energies, Heads
from posattn_jax.nn.places import Memory, Places
from posattn_jax.ops.precision import times
from posattn_jax.ops.scores import finite, hides


class MixedEnergies(Composite):
    """A_ts = sum_i w_hi A^i_ts with w_h = softmax(m_h): each head learns how much it uses each part. (Ours.)

    Attributes:
      parts: the parts that compute A^i, such as `DotProducts()` and `DotProducts("position", ("relative",))`. Each
        gives energies for a softmax. A pair that one part hides is hidden.
      mixture_init: the initialiser of m [h i]; at 0 all parts have the same weight.
      param_dtype: the dtype of m.

    Raises:
      ValueError: when it is called with no part, or with a part whose energies are weights already.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import DotProducts, MixedEnergies, TokenMixing
      >>> energies = MixedEnergies((DotProducts(), DotProducts("position", ("relative",), context=2)))
      >>> layer = TokenMixing(num_heads=2, energies=energies)
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 5, 8)), (5,))
      >>> outputs.shape, variables["params"]["energies"]["mixture"].tolist()
      ((1, 5, 8), [[0.0, 0.0], [0.0, 0.0]])
    """

    normalize: ClassVar[bool] = True

    parts: tuple[nn.Module, ...]
    mixture_init: Initializer = nn.initializers.zeros
    param_dtype: DTypeLike = jnp.float32

    @property
    def knows_content(self) -> bool:
        """Whether the energies depend on tokens."""
        return any(part.knows_content for part in self.parts)

    @property
    def needs_whole_sequence(self) -> bool:
        """Whether a part cannot be used in a decoder."""
        return any(getattr(part, "needs_whole_sequence", False) for part in self.parts)

    @nn.compact
    def __call__(self, inputs: Features, memory: Memory, places: Places, heads: Heads) -> Energies:
        if not self.parts or not all(part.normalize for part in self.parts):
            raise ValueError(f"parts={self.parts}: expected one part or more, whose energies are for a softmax")
        mixture = self.param("mixture", self.mixture_init, (heads[0], len(self.parts)), self.param_dtype)
        found = [part(inputs, memory, places, heads) for part in self.parts]
        weights = jax.nn.softmax(mixture).T[..., None, None]  # [i h 1 1]
        total: Any = sum(
            times(weight.astype(energies.dtype), finite(energies))
            for weight, (energies, _) in zip(weights, found, strict=True)
        )
        hidden = functools.reduce(operator.or_, (hides(energies) for energies, _ in found))
        total = jnp.where(hidden, -jnp.inf, total)  # whatever the weight of the part that hides
        inside = [mask for _, mask in found if mask is not None]
        return total, functools.reduce(operator.and_, inside) if inside else None
