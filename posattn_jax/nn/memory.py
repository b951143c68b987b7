"""The keys' side of a mixer: what is made of their inputs, now or in the steps of decoding before."""

import dataclasses
from collections.abc import Callable, Mapping

import jax

from posattn_jax.axes import Array, Features, Int


@dataclasses.dataclass(frozen=True)
class Memory:
    """Inputs of keys that a mixer has not met yet, beside what it kept of earlier ones.

      Memory(x)                     every key at once
      Memory(x, before, step)       one more key, number `step`, written into arrays that have room for it
      Memory(before=before)         no new keys: cross-attention after its first step

    Attributes:
      inputs: x [b s c].
      before: what was kept, [b s ...] by name.
      step: where in `before` the new key goes.
      kept: what is to be kept from here on; filled as the mixer is called.

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
        """make(inputs), in its place among what was kept under this name before."""
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
        return len(next(iter(self.before.values())) if self.inputs is None else self.inputs)
