"""Attention that knows where things are, as replaceable parts of one JAX/Flax layer. The contents page."""

from posattn_jax.models.classifier import Classifier
from posattn_jax.models.vit import VisionTransformer
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.blocks import EncoderBlock, FeedForward
from posattn_jax.nn.encodings import LearnedEncoding, SinusoidalEncoding
from posattn_jax.nn.projections import LinearProjections
from posattn_jax.nn.siren import Siren, SirenEncoding
from posattn_jax.nn.span import GaussianSpan
from posattn_jax.nn.terms import Content, ContentBias, Positional, PositionalBias, RelativeContent
from posattn_jax.nn.translution import GeneralTranslution, LowRankTranslution, Translution
from posattn_jax.ops.attention import relative_attention
from posattn_jax.ops.span import gaussian, span_share, span_size

__all__ = [
    "Classifier",
    "Content",
    "ContentBias",
    "EncoderBlock",
    "FeedForward",
    "GaussianSpan",
    "GeneralTranslution",
    "LearnedEncoding",
    "LinearProjections",
    "LowRankTranslution",
    "Positional",
    "PositionalBias",
    "PositionalSelfAttention",
    "RelativeContent",
    "SinusoidalEncoding",
    "Siren",
    "SirenEncoding",
    "Translution",
    "VisionTransformer",
    "gaussian",
    "relative_attention",
    "span_share",
    "span_size",
]
