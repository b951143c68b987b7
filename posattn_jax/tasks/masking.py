"""Which tokens a masked language model has to tell, drawn anew each time (Devlin 2019)."""

import dataclasses

import jax
import jax.numpy as jnp

from posattn_jax.axes import Array, Bool, Int


@dataclasses.dataclass(frozen=True)
class Masking:
    """Draws tokens of each sequence to be told, and hides them.

      of n tokens that are not special round(share n) are drawn, at least one;
      of these 80 % become `mask_id`, 10 % any token that is not special, and 10 % stay

    Attributes:
      vocabulary_size: how many token ids there are.
      num_special: the ids below are special: they are neither drawn nor put in the place of others.
      mask_id: of the special token that hides one.
      share: of the tokens that are drawn.
    """

    vocabulary_size: int
    num_special: int
    mask_id: int
    share: float = 0.15

    def __post_init__(self):
        if not 0 < self.share <= 1:
            raise ValueError(f"share={self.share}: expected more than 0 and at most 1")

    def most(self, length: int) -> int:
        """How many tokens are drawn of a sequence without special ones."""
        return max(1, round(self.share * length))

    def __call__(
        self, rng: Array, tokens: Int[Array, "b t"], ids: Int[Array, " b"]
    ) -> tuple[Int[Array, "b t"], Int[Array, "b m"], Bool[Array, "b m"]]:
        """Hides tokens.

        Args:
          rng: with it and a sequence's id the draw is made: it is the same in whatever batch the sequence is.
          tokens: ids [b t].
          ids: of the sequences.

        Returns:
          The tokens that are shown, the places of those to be told, and which of these places are: sequences differ
          in how many.
        """
        length = tokens.shape[1]
        draw = jax.vmap(lambda each: jax.random.uniform(jax.random.fold_in(rng, each), (3, length)))
        order, kind, other = jnp.moveaxis(draw(ids), 1, 0)
        ordinary = tokens >= self.num_special
        _, targets = jax.lax.top_k(jnp.where(ordinary, order, -1.0), self.most(length))
        num = jnp.sum(ordinary, 1)
        num_told = jnp.where(num > 0, jnp.maximum(1, jnp.round(self.share * num)), 0)
        told = jnp.arange(targets.shape[1]) < num_told[:, None]
        hidden = jnp.zeros(tokens.shape, bool).at[jnp.arange(len(tokens))[:, None], targets].set(told)
        others = self.num_special + (other * (self.vocabulary_size - self.num_special)).astype(tokens.dtype)
        shown = jnp.where(kind < 0.8, self.mask_id, jnp.where(kind < 0.9, others, tokens))
        return jnp.where(hidden, shown, tokens), targets, told
