"""The parts of an attention layer, as protocols. Any module with such a call is a part; docs/importing.md has examples.

query, key, value = projections(tokens, parts)
scores = sum of term(query, key, tokens)
outputs = values(Attention(query, scores, span(tokens), tokens), value, tokens)
outputs = gate(inputs, outputs), concatenated with those of extra_heads(query, tokens, deterministic)
"""

from collections.abc import Mapping
from typing import ClassVar, Literal, Protocol, get_args, runtime_checkable

from posattn_jax.axes import Features, Key, Query, RelativeEncoding, Value
from posattn_jax.nn.attending import Attention
from posattn_jax.nn.scores import Extent, Scores
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops.attention import Factors
from posattn_jax.ops.span import SpanMode

# What the projections can compute.
Part = Literal["query", "key", "value"]
PARTS: tuple[Part, ...] = get_args(Part)


@runtime_checkable
class Term(Protocol):
    """A summand of the scores.

    Attributes:
      needs: which of query and key the term needs; the others may be None in its call.
    """

    needs: ClassVar[tuple[Part, ...]]

    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens, /) -> Scores: ...


Terms = tuple[Term, ...] | Mapping[str, Term]


@runtime_checkable
class Encoding(Protocol):
    """A relative encoding: E [*R, h, d] at the offsets of `tokens.table_shape`, unused beyond `tokens.reach`."""

    def __call__(self, tokens: Tokens, /) -> RelativeEncoding: ...


@runtime_checkable
class SinusoidalFactors(Encoding, Protocol):
    """An encoding that is fixed sinusoids times a matrix, and returns this matrix: "factorised" then needs no E."""

    def factors(self, tokens: Tokens, /) -> Factors:
        """The matrix and how dimensions are combined. It is called after E was computed."""
        ...


@runtime_checkable
class Values(Protocol):
    """Averages values: plainly by `attention.average(value)`, or by `attention.weights()`, which computes every pair.

    Attributes:
      needs: ("value",); or () for a part that computes values from `tokens.inputs` itself: its `value` may be None. See
        `nn.grafts` for how such a part starts in a trained model.
    """

    needs: ClassVar[tuple[Part, ...]]

    def __call__(self, attention: Attention, value: Value | None, tokens: Tokens, /) -> Query: ...


@runtime_checkable
class Span(Protocol):
    """How far queries see. `threshold` and `mode` are those of the returned `Extent`, known before the call."""

    @property
    def threshold(self) -> float: ...

    @property
    def mode(self) -> SpanMode: ...

    def __call__(self, tokens: Tokens, /) -> Extent: ...


@runtime_checkable
class Projections(Protocol):
    """Computes query, key and value [b t h d] from features; None for those that are not in `parts`."""

    def __call__(self, tokens: Tokens, parts: tuple[Part, ...], /) -> tuple[Query | None, Key | None, Value | None]: ...


@runtime_checkable
class Gate(Protocol):
    """Changes the outputs of the heads [b t h d] before the output projection, given the layer's inputs."""

    def __call__(self, inputs: Features, outputs: Query, /) -> Query: ...


@runtime_checkable
class ExtraHeads(Protocol):
    """Heads that do not attend: their outputs [b t h' d] are concatenated to those of the attention heads."""

    def __call__(self, query: Query, tokens: Tokens, deterministic: bool, /) -> Query: ...
