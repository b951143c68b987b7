"""The parts of an attention layer, as protocols: any module with such a call is one; docs/importing.md writes one each.

query, key, value = projections(tokens, parts)
scores = sum of term(query, key, tokens)
outputs = values(Attention(query, scores, span(tokens), tokens), value, tokens)
outputs = gate(inputs, outputs), beside those of extra_heads(query, tokens, deterministic)
"""

from typing import ClassVar, Literal, Protocol, get_args, runtime_checkable

from posattn_jax.axes import Features, Key, Query, RelativeEncoding, Value
from posattn_jax.nn.attending import Attention
from posattn_jax.nn.scores import Extent, Scores
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops.attention import Factors
from posattn_jax.ops.span import SpanMode

# What is projected.
Part = Literal["query", "key", "value"]
PARTS: tuple[Part, ...] = get_args(Part)


@runtime_checkable
class Term(Protocol):
    """A summand of the scores.

    Attributes:
      needs: which of query and key are to be projected for it; of the others it may be given None.
    """

    needs: ClassVar[tuple[Part, ...]]

    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens, /) -> Scores: ...


@runtime_checkable
class Encoding(Protocol):
    """A relative encoding: E [*R, h, d] of the offsets of `tokens.table_shape`, of any value beyond `tokens.reach`."""

    def __call__(self, tokens: Tokens, /) -> RelativeEncoding: ...


@runtime_checkable
class SinusoidalFactors(Encoding, Protocol):
    """An encoding that is fixed sinusoids times a matrix, and says so: "factorised" then attends without E."""

    def factors(self, tokens: Tokens, /) -> Factors:
        """Once E was made."""
        ...


@runtime_checkable
class Values(Protocol):
    """What is averaged: plain values are `attention.average(value)`; `attention.weights()` lays out every pair.

    Attributes:
      needs: ("value",), or () of what makes values of `tokens.inputs` itself: it is given None. For how such
        a part begins in a trained model see `nn.grafts`.
    """

    needs: ClassVar[tuple[Part, ...]]

    def __call__(self, attention: Attention, value: Value | None, tokens: Tokens, /) -> Query: ...


@runtime_checkable
class Span(Protocol):
    """How far queries see. Its threshold and mode are those that it gives, known before it is called."""

    @property
    def threshold(self) -> float: ...

    @property
    def mode(self) -> SpanMode: ...

    def __call__(self, tokens: Tokens, /) -> Extent: ...


@runtime_checkable
class Projections(Protocol):
    """From features to query, key and value [b t h d]; None for those that are not among the parts asked for."""

    def __call__(self, tokens: Tokens, parts: tuple[Part, ...], /) -> tuple[Query | None, Key | None, Value | None]: ...


@runtime_checkable
class Gate(Protocol):
    """What becomes of the outputs of the heads [b t h d] before their projection, given the layer's inputs."""

    def __call__(self, inputs: Features, outputs: Query, /) -> Query: ...


@runtime_checkable
class ExtraHeads(Protocol):
    """Heads that do not attend: their outputs [b t h' d] are joined to those of the others."""

    def __call__(self, query: Query, tokens: Tokens, deterministic: bool, /) -> Query: ...
