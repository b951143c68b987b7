"""The keys' side of a mixer: its inputs now, and the arrays kept from earlier decoding steps."""

import dataclasses
from collections.abc import Callable, Mapping

import jax

from posattn_jax.axes import Array, Features, Int


@dataclasses.dataclass(frozen=True)
class Memory:
    """New inputs of keys, and the arrays that a mixer kept of earlier inputs, such as keys and values.

      Memory(x)                     every key at once
      Memory(x, before, step)       one more key, number `step`, written into arrays that have room for it
      Memory(before=before)         no new keys: cross-attention after its first step

    Attributes:
      inputs: x [b s c].
      before: the arrays kept earlier, [b s ...] by name.
      step: the index in `before` that the new key is written to.
      kept: the arrays to keep from now on; calling the mixer fills it.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Memory, TokenMixing, between
      >>> layer, queries, whole = TokenMixing(num_heads=2), jnp.ones((1, 3, 8)), Memory(jnp.ones((1, 5, 8)))
      >>> _, variables = layer.init_with_output(jax.random.key(0), queries, whole, between(3, 5), method="mix")
      >>> again = Memory(before=whole.kept)  # cross-attention after its first step: keys and values are there
      >>> outputs, weights = layer.apply(variables, queries, again, between(3, 5), method="mix")
      >>> sorted(whole.kept), outputs.shape
      (['key', 'value'], (1, 3, 8))
    """

    inputs: Features | None = None
    before: Mapping[str, Array] = dataclasses.field(default_factory=dict)
    step: Int[Array, ""] | None = None
    kept: dict[str, Array] = dataclasses.field(default_factory=dict)

    def keep(self, name: str, make: Callable[[Features], Array]) -> Array:
        """make(inputs), written into the array that was kept under this name before. The result is kept."""
        if self.inputs is None:
            kept = self.before[name]
        elif self.step is None:
            kept = make(self.inputs)
        else:
            new = make(self.inputs).astype(self.before[name].dtype)
            kept = jax.lax.dynamic_update_slice_in_dim(self.before[name], new, self.step, axis=1)
        self.kept[name] = kept
        return kept

    @property
    def batch_size(self) -> int:
        """b."""
        given = next(iter(self.before.values())) if self.inputs is None else self.inputs
        return given.shape[0]
