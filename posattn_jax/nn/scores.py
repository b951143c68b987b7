"""What score terms and spans give an attention layer."""

import dataclasses
from typing import NamedTuple

from posattn_jax.axes import HeadVector, Key, Query, RelativeBias, RelativeEncoding, Shape, Sigma, Weights
from posattn_jax.ops.attention import Factors
from posattn_jax.ops.span import SpanMode


class Extent(NamedTuple):
    """What a span is: arguments of `relative_attention`.

    Attributes:
      sigma: [p], [h p], [1 p p] or [h p p].
      threshold: keys outside the box where the Gaussian falls below it are not attended; 0 or less: no mask.
      mode: how it meets the scores.

    Example:
      >>> import jax.numpy as jnp
      >>> from posattn_jax import Extent
      >>> Extent(jnp.array([0.5, 0.25])).threshold
      0.1
    """

    sigma: Sigma
    threshold: float = 0.1
    mode: SpanMode = "multiply"


@dataclasses.dataclass(frozen=True)
class Scores:
    """What a term adds to the scores: arguments of `relative_attention`, and some that every pair is laid out for.

    Scores add: encodings, biases and scores of pairs add up; keys, and queries of their own, do not.

    Attributes:
      key: [b s h d], of which there is one.
      query: [b t h d], to meet this key instead of the projected one: then E and u have no other to meet.
      relative_encoding: E [*R, h, d].
      factors: what E is made of, where it is of one matrix of sinusoids.
      content_bias, position_bias: u and v [h d].
      relative_bias: beta [*R, h].
      pair_scores: A [b h t s], of all tokens.
      limit: half-spans: keys further away are not attended.

    Example:
      >>> import jax.numpy as jnp
      >>> from posattn_jax import Scores
      >>> (Scores(content_bias=jnp.ones((1, 2))) + Scores(content_bias=jnp.ones((1, 2)))).content_bias.tolist()
      [[2.0, 2.0]]
    """

    key: Key | None = None
    query: Query | None = None
    relative_encoding: RelativeEncoding | None = None
    factors: Factors | None = None
    content_bias: HeadVector | None = None
    position_bias: HeadVector | None = None
    relative_bias: RelativeBias | None = None
    pair_scores: Weights | None = None
    limit: Shape | None = None

    @property
    def is_pairwise(self) -> bool:
        """Whether they ask for every pair to be laid out."""
        return self.pair_scores is not None or self.limit is not None

    def __add__(self, other: "Scores") -> "Scores":
        one, two = ({name: x for name, x in vars(each).items() if x is not None} for each in (self, other))
        both = one.keys() & two.keys()
        if both & {"key", "query"}:
            raise ValueError("two terms give key, such as Content and RotaryContent: expected one")
        sums = one | two | {name: one[name] + two[name] for name in both - {"factors", "limit"}}
        if "relative_encoding" in both:
            sums["factors"] = None  # no one W makes the sum of two encodings
        if "limit" in both:
            sums["limit"] = tuple(map(min, self.limit, other.limit))
        total = Scores(**sums)
        alone = [name for name in ("relative_encoding", "content_bias") if getattr(total, name) is not None]
        if total.query is not None and alone:
            raise ValueError(f"a term gives query, as RotaryContent does, which does not add to {alone[0]}")
        return total
