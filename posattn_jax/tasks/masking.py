"""Which tokens a masked language model has to tell, drawn anew each time (Devlin 2019; the code of Chang 2021)."""

import dataclasses

import jax
import jax.numpy as jnp
import scipy  # loads its stats once they are needed

from posattn_jax.axes import Array, Bool, Int


@dataclasses.dataclass(frozen=True)
class Masking:
    """Draws tokens of each sequence to be told, and hides them.

      each token that is not special is drawn with probability share, whatever the others are (Bernoulli);
      each of these becomes `mask_id` with probability .8, any token that is not special with .1, and stays with .1

    Attributes:
      vocabulary_size: how many token ids there are.
      num_special: the ids below are special: they are neither drawn nor put where others stood.
      mask_id: of the special token that hides one.
      share: the probability of a token to be drawn.
    """

    vocabulary_size: int
    num_special: int
    mask_id: int
    share: float = 0.15

    def __post_init__(self):
        if not 0 < self.share <= 1:
            raise ValueError(f"share={self.share}: expected more than 0 and at most 1")

    def most(self, length: int) -> int:
        """How many drawn tokens there is room for: arrays have static shapes.

        More are drawn with a probability of at most 1e-9, of Binomial(length, share); they stay as they are.
        """
        return int(scipy.stats.binom.isf(1e-9, length, self.share))

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
          in how many, and may have none.
        """
        length = tokens.shape[1]
        draw = jax.vmap(lambda each: jax.random.uniform(jax.random.fold_in(rng, each), (3, length)))
        chance, kind, other = jnp.moveaxis(draw(ids), 1, 0)
        drawn = (chance < self.share) & (tokens >= self.num_special)
        _, targets = jax.lax.top_k(jnp.where(drawn, -chance, -1.0), self.most(length))
        told = jnp.take_along_axis(drawn, targets, axis=1)
        hidden = jnp.zeros(tokens.shape, bool).at[jnp.arange(len(tokens))[:, None], targets].set(told)
        others = self.num_special + (other * (self.vocabulary_size - self.num_special)).astype(tokens.dtype)
        shown = jnp.where(kind < 0.8, self.mask_id, jnp.where(kind < 0.9, others, tokens))
        return jnp.where(hidden, shown, tokens), targets, told
