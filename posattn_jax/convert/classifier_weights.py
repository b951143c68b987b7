"""The classifier of Alfons 2022, by the tensor names of the author's code `posattn`."""

import pathlib
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from posattn_jax.convert import blocks, files, tensors
from posattn_jax.convert.files import Weights
from posattn_jax.convert.tensors import Entry, linear, norm, one, same
from posattn_jax.models.classifier import Classifier
from posattn_jax.models.stack import Pooling
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.encodings import SinusoidalEncoding
from posattn_jax.nn.siren import SirenEncoding
from posattn_jax.nn.span import GaussianSpan
from posattn_jax.nn.terms import Content, ContentBias, Positional, PositionalBias, by_name
from posattn_jax.system.errors import InputError

LAYERS = "transformer.layers."
SPARE = r".*\.attention\.v"  # without an encoding, the code has it too, but does not use it


def classifier(
    path: str | pathlib.Path,
    *,
    omega: float = 10.0,
    omega_initial: float = 10.0,
    threshold: float = 0.1,
    pooling: Pooling = "last",
    dropout_rate: float = 0.1,
) -> tuple[Classifier, dict[str, Any]]:
    """Reads a `TransformerClassifier` of github.com/MeenaAlfons/posattn, in one dimension or two.

      model, params = convert.classifier("model.safetensors")
      logits = model.apply({"params": params}, pixels.reshape(b, 32 * 32, 3), (32, 32))

    The tensors show whether its encoding is a SIREN, the baseline's sinusoids or none, and whether it learns a span.

    Args:
      path: a file of its state dict, .safetensors, .npz or .pt. In a .pt, the state dict may be in "model_state_dict".
      omega, omega_initial: those of a SIREN. These and the following arguments are in the author's config only.
      threshold: that of a span.
      pooling: the code's cls_token.
      dropout_rate: the rate of dropout.

    Raises:
      InputError: there is no such file, it has another model, or tensors are missing, of another shape, or unknown.
    """
    weights = files.read(path)
    first = f"{LAYERS}0.0"
    if f"{first}.self_attn.qkv_proj.weight" not in weights.tensors:
        raise InputError(f"{weights.path}: no classifier of posattn: it has no {first}.self_attn.qkv_proj.weight")
    num_heads, _ = weights.shape(f"{first}.self_attn.attention.u", 2)
    width, num_channels = weights.shape("input_net.1.weight", 2)

    def block() -> EncoderBlock:
        span = GaussianSpan(threshold=threshold) if _has(weights, "positional_mask.sigma") else None
        encoding = _encoding(weights, omega, omega_initial)
        terms: tuple[Any, ...] = (Content(), ContentBias())
        if encoding is not None:
            terms = (Content(), Positional(encoding), ContentBias(), PositionalBias())
        attention = PositionalSelfAttention(num_heads, terms=terms, span=span)
        return EncoderBlock(attention, weights.shape(f"{first}.linear_net.0.weight", 2)[0], dropout_rate)

    made = tuple(block() for _ in range(weights.count(LAYERS)))
    num_classes = weights.shape("output_net.4.weight", 2)[0]
    model = Classifier(num_classes, width, made, pooling=pooling, dropout_rate=dropout_rate)
    grid_shape = (2,) * _num_dims(weights)
    shapes = tensors.shapes_of(weights.path, model.init, jnp.zeros((1, 2 ** len(grid_shape), num_channels)), grid_shape)
    entries = _entries(made)
    spare = SPARE if len(made[0].attention.terms) == 2 else ""
    return model, tensors.take(entries, shapes, weights.tensors, weights.path, spare)


def save_classifier(folder: str | pathlib.Path, model: Classifier, params: dict[str, Any]) -> pathlib.Path:
    """Writes model.safetensors of a classifier as `classifier` returns it, with an encoding, by the author's names.

    Raises:
      InputError: it is another model, or a parameter has no name there.
    """
    block = model.blocks[0]
    kinds = [type(term) for term in by_name(block.attention.terms).values()]
    if kinds != [Content, Positional, ContentBias, PositionalBias] or block.norm != "post":
        raise InputError(
            "posattn has no such blocks: expected Content, Positional, ContentBias, PositionalBias, norm=post"
        )
    return files.write(folder, tensors.give(_entries(model.blocks), params), {})


def _has(weights: Weights, name: str) -> bool:
    return f"{LAYERS}0.0.self_attn.attention.{name}" in weights.tensors


def _encoding(weights: Weights, omega: float, omega_initial: float) -> SirenEncoding | SinusoidalEncoding | None:
    network = "positional_encoding.mlp.layers"
    if _has(weights, f"{network}.0.weight"):
        prefix = f"{LAYERS}0.0.self_attn.attention.{network}."
        hidden_features, _ = weights.shape(f"{prefix}0.weight", 2)
        num_layers = weights.count(prefix) // 2 + 1
        return SirenEncoding(
            hidden_features=hidden_features, num_layers=num_layers, omega=omega, omega_initial=omega_initial
        )
    return SinusoidalEncoding() if _has(weights, "positional_encoding.w.weight") else None


def _num_dims(weights: Weights) -> int:
    attention = f"{LAYERS}0.0.self_attn.attention"
    if _has(weights, "positional_mask.sigma"):
        return weights.shape(f"{attention}.positional_mask.sigma", 1)[0]
    if _has(weights, "positional_encoding.mlp.layers.0.weight"):
        return weights.shape(f"{attention}.positional_encoding.mlp.layers.0.weight", 2)[1]
    return 1


def _entries(made: Sequence[EncoderBlock]) -> list[Entry]:
    """The entries of all parameters of a model with these blocks."""
    found = [*linear("embed", "input_net.1"), *linear("head_hidden", "output_net.0")]
    found += [*norm("head_norm", "output_net.1"), *linear("head_output", "output_net.4")]
    for i, block in enumerate(made):
        layer, ours = f"{LAYERS}{i}.0", f"blocks_{i}"
        attention = f"{layer}.self_attn.attention"
        found += blocks.entries(
            ours,
            block.attention.num_heads,
            use_bias=True,
            projections=(f"{layer}.self_attn.qkv_proj",),
            output=f"{layer}.self_attn.o_proj",
            attention_norm=f"{layer}.norm1",
            hidden=f"{layer}.linear_net.0",
            feed_forward=f"{layer}.linear_net.3",
            feed_forward_norm=f"{layer}.norm2",
        )
        for name, term in by_name(block.attention.terms).items():
            found += _of_term(term, f"{ours}/attention/{name}", attention)
        if block.attention.span is not None:
            found.append(same(f"{ours}/attention/span/sigma", f"{attention}.positional_mask.sigma"))
    return found


def _of_term(term: Any, ours: str, attention: str) -> list[Entry]:
    if isinstance(term, ContentBias | PositionalBias):
        name = "u" if isinstance(term, ContentBias) else "v"
        return [same(f"{ours}/{name}", f"{attention}.{name}")]
    if not isinstance(term, Positional):
        return []
    encoding: Any = term.encoding
    if isinstance(encoding, SinusoidalEncoding):
        return linear(f"{ours}/encoding/linear", f"{attention}.positional_encoding.w")
    found = []
    for number in range(encoding.num_layers):  # the sines are between the linear maps
        siren, layer = f"{ours}/encoding/siren", f"{attention}.positional_encoding.mlp.layers.{2 * number}"
        found.append(one(f"{siren}/kernel_{number + 1}", f"{layer}.weight", np.transpose, np.transpose))
        found.append(same(f"{siren}/bias_{number + 1}", f"{layer}.bias"))
    return found
