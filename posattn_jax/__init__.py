"""Attention that knows where things are, as replaceable parts of one JAX/Flax layer. The contents page."""

from posattn_jax.models.bert import Bert, MaskedLanguageModel, SequenceClassifier, bert_block
from posattn_jax.models.classifier import Classifier
from posattn_jax.models.vit import VisionTransformer
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.blocks import EncoderBlock, FeedForward
from posattn_jax.nn.encodings import KernelEncoding, LearnedEncoding, SinusoidalEncoding
from posattn_jax.nn.projections import ConvolutionalProjections, LinearProjections
from posattn_jax.nn.siren import Siren, SirenEncoding
from posattn_jax.nn.span import GaussianSpan
from posattn_jax.nn.span_convolution import SpanConvolution
from posattn_jax.nn.terms import (
    Content,
    ContentBias,
    KeyPositional,
    Positional,
    PositionalBias,
    RelativeBias,
    RelativeContent,
)
from posattn_jax.nn.translution import GeneralTranslution, LowRankTranslution, Translution
from posattn_jax.nn.values import DepthwiseConvolution, PlusDepthwise
from posattn_jax.ops.attention import relative_attention
from posattn_jax.ops.span import gaussian, span_share, span_size

__all__ = [
    "Bert",
    "Classifier",
    "Content",
    "ContentBias",
    "ConvolutionalProjections",
    "DepthwiseConvolution",
    "EncoderBlock",
    "FeedForward",
    "GaussianSpan",
    "GeneralTranslution",
    "KernelEncoding",
    "KeyPositional",
    "LearnedEncoding",
    "LinearProjections",
    "LowRankTranslution",
    "MaskedLanguageModel",
    "PlusDepthwise",
    "Positional",
    "PositionalBias",
    "PositionalSelfAttention",
    "RelativeBias",
    "RelativeContent",
    "SequenceClassifier",
    "SinusoidalEncoding",
    "Siren",
    "SirenEncoding",
    "SpanConvolution",
    "Translution",
    "VisionTransformer",
    "bert_block",
    "gaussian",
    "relative_attention",
    "span_share",
    "span_size",
]
