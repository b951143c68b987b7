"""The public names of the package: `from posattn_jax import NAME` takes them from here."""

from posattn_jax.models.beam_search import beam_search
from posattn_jax.models.bert import Bert, MaskedLanguageModel, SequenceClassifier, TokenClassifier, bert_block
from posattn_jax.models.classifier import Classifier
from posattn_jax.models.language_model import LanguageModel
from posattn_jax.models.seq2seq import EncoderDecoder, precomputed
from posattn_jax.models.vit import VisionTransformer
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.biases import BucketedBias, LearnedDecay, LinearBias
from posattn_jax.nn.blocks import EncoderBlock, FeedForward, SequenceBlock
from posattn_jax.nn.cross_attention import PositionalCrossAttention
from posattn_jax.nn.encodings import AxialEncoding, KernelEncoding, LearnedEncoding, SinusoidalEncoding
from posattn_jax.nn.energies import DotProducts, FourierWeights, GaussianWeights, OffsetTable, PairTable
from posattn_jax.nn.gating import GeluGate, Glu, NormalizedGelu
from posattn_jax.nn.mixed_energies import MixedEnergies
from posattn_jax.nn.mixing import TokenMixing
from posattn_jax.nn.places import Memory, Places, between, of_grid
from posattn_jax.nn.positions import FourierPositions, LearnedPositions, SinusoidalPositions, StackPositions
from posattn_jax.nn.precompute import precompute
from posattn_jax.nn.projections import ConvolutionalProjections, LinearProjections
from posattn_jax.nn.relative_content import RelativeContent
from posattn_jax.nn.score_network import ScoreNetwork
from posattn_jax.nn.scores import Extent, Scores
from posattn_jax.nn.siren import Siren, SirenEncoding
from posattn_jax.nn.span import FlatSpan, GaussianSpan, LearnedWindow, RampSpan, WindowSpan
from posattn_jax.nn.span_convolution import SpanConvolution
from posattn_jax.nn.terms import (
    Content,
    ContentBias,
    KeyPositional,
    Positional,
    PositionalBias,
    RelativeBias,
    RotaryContent,
)
from posattn_jax.nn.tokens import Tokens
from posattn_jax.nn.translution import GeneralTranslution, LowRankTranslution, Translution
from posattn_jax.nn.values import DepthwiseConvolution, PlusDepthwise, PlusRelative
from posattn_jax.ops.attention import Cache, cache_length, exchange_bytes, halo_attention, relative_attention
from posattn_jax.ops.span import gaussian, span_share, span_size

__all__ = [
    "AxialEncoding",
    "Bert",
    "BucketedBias",
    "Cache",
    "Classifier",
    "Content",
    "ContentBias",
    "ConvolutionalProjections",
    "DepthwiseConvolution",
    "DotProducts",
    "EncoderBlock",
    "EncoderDecoder",
    "Extent",
    "FeedForward",
    "FlatSpan",
    "FourierPositions",
    "FourierWeights",
    "GaussianSpan",
    "GaussianWeights",
    "GeluGate",
    "GeneralTranslution",
    "Glu",
    "KernelEncoding",
    "KeyPositional",
    "LanguageModel",
    "LearnedDecay",
    "LearnedEncoding",
    "LearnedPositions",
    "LearnedWindow",
    "LinearBias",
    "LinearProjections",
    "LowRankTranslution",
    "MaskedLanguageModel",
    "Memory",
    "MixedEnergies",
    "NormalizedGelu",
    "OffsetTable",
    "PairTable",
    "Places",
    "PlusDepthwise",
    "PlusRelative",
    "Positional",
    "PositionalBias",
    "PositionalCrossAttention",
    "PositionalSelfAttention",
    "RampSpan",
    "RelativeBias",
    "RelativeContent",
    "RotaryContent",
    "ScoreNetwork",
    "Scores",
    "SequenceBlock",
    "SequenceClassifier",
    "SinusoidalEncoding",
    "SinusoidalPositions",
    "Siren",
    "SirenEncoding",
    "SpanConvolution",
    "StackPositions",
    "TokenClassifier",
    "TokenMixing",
    "Tokens",
    "Translution",
    "VisionTransformer",
    "WindowSpan",
    "beam_search",
    "bert_block",
    "between",
    "cache_length",
    "exchange_bytes",
    "gaussian",
    "halo_attention",
    "of_grid",
    "precompute",
    "precomputed",
    "relative_attention",
    "span_share",
    "span_size",
]
