"""The attention layer, its terms, encodings and spans as Flax NNX modules. They call the same functions as Linen's.

Parameters have the names and shapes of the Linen modules of the same class: `nnx.update(layer, params)` copies them.
"""

from posattn_jax.nnx.attention import PositionalSelfAttention
from posattn_jax.nnx.encodings import AxialEncoding, KernelEncoding, LearnedEncoding, SinusoidalEncoding
from posattn_jax.nnx.projections import LinearProjections
from posattn_jax.nnx.siren import Siren, SirenEncoding
from posattn_jax.nnx.span import FlatSpan, GaussianSpan, LearnedWindow, RampSpan, WindowSpan
from posattn_jax.nnx.terms import (
    Content,
    ContentBias,
    LearnedDecay,
    LinearBias,
    Positional,
    PositionalBias,
    RelativeBias,
    RotaryContent,
)

__all__ = [
    "AxialEncoding",
    "Content",
    "ContentBias",
    "FlatSpan",
    "GaussianSpan",
    "KernelEncoding",
    "LearnedDecay",
    "LearnedEncoding",
    "LearnedWindow",
    "LinearBias",
    "LinearProjections",
    "Positional",
    "PositionalBias",
    "PositionalSelfAttention",
    "RampSpan",
    "RelativeBias",
    "RotaryContent",
    "SinusoidalEncoding",
    "Siren",
    "SirenEncoding",
    "WindowSpan",
]
