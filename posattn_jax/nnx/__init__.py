"""Every Linen module of the library as a Flax NNX module of the same name and fields, by one bridge: see `Bridged`.

Parameters have the names and shapes of the Linen modules: `nnx.update(layer, params)` copies them.

Example:
  >>> import jax.numpy as jnp
  >>> from flax import nnx
  >>> from posattn_jax.nnx import Content, GaussianSpan, Positional, PositionalSelfAttention, SirenEncoding
  >>> rngs = nnx.Rngs(0)
  >>> terms = (Content(), Positional(SirenEncoding(2, num_heads=2, head_dim=4, rngs=rngs)))
  >>> layer = PositionalSelfAttention(8, num_heads=2, terms=terms, span=GaussianSpan(2), rngs=rngs)
  >>> layer.terms[1].encoding.siren.kernel_1.shape
  (2, 8)
  >>> layer(jnp.ones((1, 3, 4, 8))).shape
  (1, 3, 4, 8)
"""

import posattn_jax as linen
from posattn_jax.nnx.bridge import Bridged

__all__ = [
    "AxialEncoding",
    "Bert",
    "BucketedBias",
    "Classifier",
    "Content",
    "ContentBias",
    "ConvolutionalProjections",
    "DepthwiseConvolution",
    "DotProducts",
    "EncoderBlock",
    "EncoderDecoder",
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
    "MixedEnergies",
    "NormalizedGelu",
    "OffsetTable",
    "PairTable",
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
    "Translution",
    "VisionTransformer",
    "WindowSpan",
]


class AxialEncoding(Bridged, of=linen.AxialEncoding, sizes="grid_shape num_heads head_dim"): ...


class Bert(Bridged, of=linen.Bert): ...


class BucketedBias(Bridged, of=linen.BucketedBias): ...


class Classifier(Bridged, of=linen.Classifier): ...


class Content(Bridged, of=linen.Content): ...


class ContentBias(Bridged, of=linen.ContentBias, sizes="num_heads head_dim"): ...


class ConvolutionalProjections(Bridged, of=linen.ConvolutionalProjections): ...


class DepthwiseConvolution(Bridged, of=linen.DepthwiseConvolution): ...


class DotProducts(Bridged, of=linen.DotProducts): ...


class EncoderBlock(Bridged, of=linen.EncoderBlock): ...


class EncoderDecoder(Bridged, of=linen.EncoderDecoder): ...


class FeedForward(Bridged, of=linen.FeedForward): ...


class FourierPositions(Bridged, of=linen.FourierPositions): ...


class FourierWeights(Bridged, of=linen.FourierWeights): ...


class GaussianSpan(Bridged, of=linen.GaussianSpan, sizes="num_dims num_heads"): ...


class GaussianWeights(Bridged, of=linen.GaussianWeights): ...


class GeluGate(Bridged, of=linen.GeluGate): ...


class GeneralTranslution(Bridged, of=linen.GeneralTranslution): ...


class Glu(Bridged, of=linen.Glu): ...


class KernelEncoding(Bridged, of=linen.KernelEncoding, sizes="kernel_shape num_heads head_dim"): ...


class KeyPositional(Bridged, of=linen.KeyPositional): ...


class LanguageModel(Bridged, of=linen.LanguageModel): ...


class LearnedDecay(Bridged, of=linen.LearnedDecay, sizes="num_heads"): ...


class LearnedEncoding(Bridged, of=linen.LearnedEncoding, sizes="grid_shape num_heads head_dim"): ...


class LearnedPositions(Bridged, of=linen.LearnedPositions): ...


class LearnedWindow(Bridged, of=linen.LearnedWindow, sizes="num_dims num_heads"): ...


class LinearBias(Bridged, of=linen.LinearBias): ...


class LinearProjections(Bridged, of=linen.LinearProjections, sizes="in_features num_heads head_dim"): ...


class LowRankTranslution(Bridged, of=linen.LowRankTranslution): ...


class MaskedLanguageModel(Bridged, of=linen.MaskedLanguageModel): ...


class MixedEnergies(Bridged, of=linen.MixedEnergies): ...


class NormalizedGelu(Bridged, of=linen.NormalizedGelu): ...


class OffsetTable(Bridged, of=linen.OffsetTable): ...


class PairTable(Bridged, of=linen.PairTable): ...


class PlusDepthwise(Bridged, of=linen.PlusDepthwise): ...


class PlusRelative(Bridged, of=linen.PlusRelative): ...


class Positional(Bridged, of=linen.Positional): ...


class PositionalBias(Bridged, of=linen.PositionalBias, sizes="num_heads head_dim"): ...


class PositionalCrossAttention(Bridged, of=linen.PositionalCrossAttention): ...


class PositionalSelfAttention(Bridged, of=linen.PositionalSelfAttention, sizes="in_features num_heads"): ...


class RelativeBias(Bridged, of=linen.RelativeBias, sizes="kernel_shape num_heads"): ...


class RelativeContent(Bridged, of=linen.RelativeContent): ...


class RotaryContent(Bridged, of=linen.RotaryContent): ...


class ScoreNetwork(Bridged, of=linen.ScoreNetwork): ...


class SequenceBlock(Bridged, of=linen.SequenceBlock): ...


class SequenceClassifier(Bridged, of=linen.SequenceClassifier): ...


class SinusoidalEncoding(Bridged, of=linen.SinusoidalEncoding, sizes="num_heads head_dim"): ...


class SinusoidalPositions(Bridged, of=linen.SinusoidalPositions): ...


class Siren(Bridged, of=linen.Siren, sizes="in_features features"): ...


class SirenEncoding(Bridged, of=linen.SirenEncoding, sizes="num_dims num_heads head_dim"): ...


class SpanConvolution(Bridged, of=linen.SpanConvolution): ...


class StackPositions(Bridged, of=linen.StackPositions): ...


class TokenClassifier(Bridged, of=linen.TokenClassifier): ...


class TokenMixing(Bridged, of=linen.TokenMixing): ...


class Translution(Bridged, of=linen.Translution): ...


class VisionTransformer(Bridged, of=linen.VisionTransformer): ...


class WindowSpan(Bridged, of=linen.WindowSpan): ...


class FlatSpan(LearnedWindow, of=linen.FlatSpan, sizes="num_dims num_heads"): ...


class RampSpan(LearnedWindow, of=linen.RampSpan, sizes="num_dims num_heads"): ...
