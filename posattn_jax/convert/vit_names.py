"""The tensor names of vision transformers of others: Hugging Face's `ViTModel`, timm, big_vision."""

import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from posattn_jax.convert import blocks
from posattn_jax.convert.tensors import Entry, Tensors, linear, norm, one, renamed, same, without_first
from posattn_jax.models.vit import VisionTransformer


class Names(NamedTuple):
    """The names of one library.

    Attributes:
      patches: the name of the weights that embed patches. Every file has it, after a prefix.
      entries: a function from a model and a prefix to the entries of all parameters.
      spare: a pattern for the names of tensors that may be left out.
    """

    patches: str
    entries: Callable[[VisionTransformer, str], list[Entry]]
    spare: str = ""


def of_hugging_face(model: VisionTransformer, prefix: str) -> list[Entry]:
    """The entries of `ViTModel` or, with a head, of `ViTForImageClassification`, whose prefix is "vit."."""
    found = [
        without_first("class_token", f"{prefix}embeddings.cls_token"),
        without_first("position_embedding", f"{prefix}embeddings.position_embeddings"),
        *_patches(model, f"{prefix}embeddings.patch_embeddings.projection"),
        *norm("final_norm", f"{prefix}layernorm"),
    ]
    for i, block in enumerate(model.blocks):
        layer = f"{prefix}encoder.layer.{i}"
        found += blocks.entries(
            f"blocks_{i}",
            block.attention.num_heads,
            blocks.has_bias(block),
            projections=tuple(f"{layer}.attention.attention.{name}" for name in ("query", "key", "value")),
            output=f"{layer}.attention.output.dense",
            attention_norm=f"{layer}.layernorm_before",
            hidden=f"{layer}.intermediate.dense",
            feed_forward=f"{layer}.output.dense",
            feed_forward_norm=f"{layer}.layernorm_after",
        )
    return found + (linear("head", "classifier") if model.num_classes else [])


def of_timm(model: VisionTransformer, prefix: str) -> list[Entry]:
    """The entries of timm's `VisionTransformer` with a class token, such as `vit_base_patch16_224`."""
    found = [
        without_first("class_token", f"{prefix}cls_token"),
        without_first("position_embedding", f"{prefix}pos_embed"),
        *_patches(model, f"{prefix}patch_embed.proj"),
        *norm("final_norm", f"{prefix}norm"),
    ]
    for i, block in enumerate(model.blocks):
        layer = f"{prefix}blocks.{i}"
        found += blocks.entries(
            f"blocks_{i}",
            block.attention.num_heads,
            blocks.has_bias(block),
            projections=(f"{layer}.attn.qkv",),
            output=f"{layer}.attn.proj",
            attention_norm=f"{layer}.norm1",
            hidden=f"{layer}.mlp.fc1",
            feed_forward=f"{layer}.mlp.fc2",
            feed_forward_norm=f"{layer}.norm2",
        )
    return found + (linear("head", f"{prefix}head") if model.num_classes else [])


def of_big_vision(model: VisionTransformer, prefix: str) -> list[Entry]:
    """The entries of big_vision's `vit.py` with pool_type "gap" or "tok". It joins the class token last."""
    height, width = model.patch_shape
    found = [
        one(
            "embed/kernel",
            f"{prefix}embedding/kernel",
            lambda kernel: kernel.reshape(-1, kernel.shape[-1]),
            lambda kernel: kernel.reshape(height, width, -1, kernel.shape[-1]),
        ),
        same("embed/bias", f"{prefix}embedding/bias"),
        _positions(model, prefix),
        *_flax("final_norm", f"{prefix}Transformer/encoder_norm", "scale", "bias"),
    ]
    for i in range(len(model.blocks)):
        layer, ours = f"{prefix}Transformer/encoderblock_{i}", f"blocks_{i}"
        attention, mlp = f"{layer}/MultiHeadDotProductAttention_0", f"{layer}/MlpBlock_0"
        own = f"{ours}/attention/projections"
        for name, axis in (("kernel", 1), ("bias", 0)):
            theirs = tuple(f"{attention}/{part}/{name}" for part in ("query", "key", "value"))
            found.append(_stacked(f"{own}/{name}", theirs, axis))
        found += _flax(f"{ours}/attention/output", f"{attention}/out", "kernel", "bias")
        found += _flax(f"{ours}/attention_norm", f"{layer}/LayerNorm_0", "scale", "bias")
        found += _flax(f"{ours}/feed_forward/hidden", f"{mlp}/Dense_0", "kernel", "bias")
        found += _flax(f"{ours}/feed_forward/output", f"{mlp}/Dense_1", "kernel", "bias")
        found += _flax(f"{ours}/feed_forward_norm", f"{layer}/LayerNorm_1", "scale", "bias")
    return found + (_flax("head", f"{prefix}head", "kernel", "bias") if model.num_classes else [])


def _patches(model: VisionTransformer, theirs: str) -> list[Entry]:
    """The entries of a strided convolution [c k, height, width] as a linear map of patches [height width k]."""
    height, width = model.patch_shape
    kernel = one(
        "embed/kernel",
        f"{theirs}.weight",
        lambda weight: weight.transpose(2, 3, 1, 0).reshape(-1, len(weight)),
        lambda kernel: kernel.reshape(height, width, -1, kernel.shape[-1]).transpose(3, 2, 0, 1),
    )
    return [kernel, same("embed/bias", f"{theirs}.bias")]


def _positions(model: VisionTransformer, prefix: str) -> Entry:
    theirs = f"{prefix}pos_embedding"
    if model.pooling != "class":
        return without_first("position_embedding", theirs)
    return Entry(
        ("class_token", "position_embedding"),
        (f"{prefix}cls", theirs),
        lambda token, added: (token[0], np.concatenate([np.zeros_like(added[0, :1]), added[0]])),
        lambda token, added: ((token + added[:1])[None], added[None, 1:]),
    )


def _stacked(ours: str, theirs: tuple[str, ...], axis: int) -> Entry:
    return Entry(
        (ours,),
        theirs,
        lambda *tensors: [np.stack(tensors, axis)],
        lambda array: [np.take(array, i, axis) for i in range(len(theirs))],
    )


def _flax(ours: str, theirs: str, *names: str) -> list[Entry]:
    """The entries of parameters that have the same names in Flax."""
    return [same(f"{ours}/{name}", f"{theirs}/{name}") for name in names]


Format = Literal["hugging_face", "timm", "big_vision"]
NAMES: dict[Format, Names] = {
    "hugging_face": Names(
        "embeddings.patch_embeddings.projection.weight", of_hugging_face, r"(vit\.)?pooler\.dense\..*"
    ),
    "timm": Names("patch_embed.proj.weight", of_timm),
    "big_vision": Names("embedding/kernel", of_big_vision),
}
# Names in big_vision before 2022, and in the first code of the vision transformer.
_OLD = ((r"MultiHeadDotProductAttention_1/", "MultiHeadDotProductAttention_0/"), (r"MlpBlock_3/", "MlpBlock_0/"))
_OLD += ((r"(encoderblock_\d+/)LayerNorm_2/", r"\1LayerNorm_1/"), (r"Transformer/posembed_input/", ""))


def modern(tensors: Tensors, where: Any) -> dict[str, Any]:
    """Turns tensors of older big_vision files into those of files since 2022.

    In older files, which their names tell, positions have a row for the class token. It is added to the token here.
    """

    def new_name(name: str) -> str:
        for old, new in _OLD:
            name = re.sub(old, new, name)
        return name

    found = renamed(tensors, new_name, where)
    positions = next((name for name in found if name.endswith("pos_embedding")), None)
    if positions is None:
        return found
    token = f"{positions.removesuffix('pos_embedding')}cls"
    if token in found and any("posembed_input/" in name for name in tensors):
        found[token] = found[token] + found[positions][:, :1]
        found[positions] = found[positions][:, 1:]
    return found
