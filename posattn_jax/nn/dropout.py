"""Dropout as a module."""

from flax import linen as nn

from posattn_jax.axes import Array
from posattn_jax.ops.dropout import dropout


class Dropout(nn.Module):
    """As `flax.linen.Dropout`, but it draws a quarter of the random bits: see `ops.dropout.dropout`.

    Attributes:
      rate: the share that is dropped, rounded to a 256th.
    """

    rate: float

    @nn.compact
    def __call__(self, inputs: Array, deterministic: bool) -> Array:
        """Applies dropout with a key of the rng "dropout", unless `deterministic`."""
        if deterministic or self.rate == 0:
            return inputs
        return dropout(inputs, self.make_rng("dropout"), self.rate)
