"""The results of score terms and spans, which an attention layer combines."""

import dataclasses
from typing import NamedTuple

from posattn_jax.axes import HeadVector, Key, Query, RelativeBias, RelativeEncoding, Shape, Sigma, Weights
from posattn_jax.ops.attention import Factors
from posattn_jax.ops.scores import hidden_as_infinity
from posattn_jax.ops.span import SpanMode


class Extent(NamedTuple):
    """A span, as arguments of `relative_attention`.

    Attributes:
      sigma: [p], [h p], [1 p p] or [h p p].
      threshold: keys outside the box where the Gaussian falls below it are not attended; 0 or less: no mask.
      mode: how the Gaussian changes the scores, "multiply" or "log_add"; or "box", not at all: sigma is half its side.
      log_window: ln m [*R h], which is added to beta: a window of another form than a Gaussian.

    Example:
      >>> import jax.numpy as jnp
      >>> from posattn_jax import Extent
      >>> Extent(jnp.array([0.5, 0.25])).threshold
      0.1
    """

    sigma: Sigma
    threshold: float = 0.1
    mode: SpanMode = "multiply"
    log_window: RelativeBias | None = None


@dataclasses.dataclass(frozen=True)
class Scores:
    """The arguments of `relative_attention` that a term adds to, and two that need the scores of all pairs.

    `Scores` can be added. Encodings, biases and pair scores are then summed, but only one summand may have a key or
    query. A relative bias or pair score that `ops.scores.hides` hides its pairs as a mask would; it is stored as -inf.

    Attributes:
      key: [b s h d].
      query: [b t h d], used with this key instead of the projected query. Then there can be no E and no u.
      relative_encoding: E [*R, h, d].
      factors: the factors of E, if E is sinusoids times one matrix.
      content_bias, position_bias: u and v [h d].
      relative_bias: beta [*R, h].
      pair_scores: A [b h t s], for all tokens.
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

    def __post_init__(self):
        for name in ("relative_bias", "pair_scores"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, hidden_as_infinity(given))

    @property
    def is_pairwise(self) -> bool:
        """Whether the scores of all pairs must be computed."""
        return self.pair_scores is not None or self.limit is not None

    def __add__(self, other: "Scores") -> "Scores":
        one, two = ({name: x for name, x in vars(each).items() if x is not None} for each in (self, other))
        both = one.keys() & two.keys()
        if both & {"key", "query"}:
            raise ValueError("two terms give key, such as Content and RotaryContent: expected one")
        sums = one | two | {name: one[name] + two[name] for name in both - {"factors", "limit"}}
        if "relative_encoding" in both:
            sums["factors"] = None  # the sum of two encodings has no single W
        if self.limit is not None and other.limit is not None:
            sums["limit"] = tuple(map(min, self.limit, other.limit))
        total = Scores(**sums)
        alone = [name for name in ("relative_encoding", "content_bias") if getattr(total, name) is not None]
        if total.query is not None and alone:
            raise ValueError(
                f"terms: expected no {alone[0]} next to a term that changes the query, such as RotaryContent"
            )
        return total
