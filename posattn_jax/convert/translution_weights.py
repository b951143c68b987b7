"""The vision transformer of Fan 2025, as the authors' code names its tensors."""

import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Shape
from posattn_jax.convert import files, tensors
from posattn_jax.convert.files import Weights
from posattn_jax.convert.tensors import Entry, linear, norm, one, without_first
from posattn_jax.models.vit import VisionTransformer
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.gating import exact_gelu
from posattn_jax.nn.projections import LinearProjections
from posattn_jax.nn.terms import Content, RelativeContent
from posattn_jax.nn.translution import Translution
from posattn_jax.system.errors import InputError

STACKS = ("translution", "transformer")
CLASSES = 3  # matrices of pairs with the class token, after those of displacements


def translution(
    path: str | pathlib.Path, grid_shape: Shape, patch_shape: Shape, num_heads: int | None = None
) -> tuple[VisionTransformer, dict[str, Any]]:
    """The `ViT` of github.com/hehefan/Translution: Translution of values, or of queries, keys and values; or neither.

      model, params = convert.translution("model.safetensors", (224, 224), (16, 16), num_heads=3)
      logits = model.apply({"params": params}, pixels.reshape(b, 224 * 224, 3), (224, 224))

    Its low-rank forms, and the mean instead of the class token, which there counts as one of the tokens, are not read.

    Args:
      path: a file of its state dict, .safetensors, .npz or .pt.
      grid_shape: the height and width of its images.
      patch_shape: of its patches.
      num_heads: h; None: 1, of a model without an output projection.

    Raises:
      InputError: no such file, another model, or tensors that are missing, of another shape, or unknown; no number of
        heads, or one that does not divide the width of queries.
    """
    weights = files.read(path)
    stack = next((each for each in STACKS if f"{each}.layers.0.0.norm.weight" in weights.tensors), None)
    if stack is None:
        raise InputError(f"{weights.path}: no ViT of Translution: it has no translution.layers.0.0.norm.weight")
    first = f"{stack}.layers.0"
    use_output = f"{first}.0.to_out.0.weight" in weights.tensors
    if use_output and num_heads is None:
        raise InputError(f"{weights.path}: does not say how many heads it has: expected num_heads")
    width, inner, kind = _projections(weights, f"{first}.0")
    heads = num_heads or 1
    if inner % heads:
        raise InputError(f"num_heads={heads}: does not divide {inner}, the width of queries in {weights.path}")

    def block() -> EncoderBlock:
        attention = PositionalSelfAttention(
            heads,
            inner // heads,
            terms=(RelativeContent() if kind == "all" else Content(),),
            values=None if kind == "none" else Translution(),
            projections=LinearProjections(use_bias=False),
            use_output=use_output,
        )
        mlp_dim, _ = weights.shape(f"{first}.1.net.1.weight", 2)
        return EncoderBlock(attention, mlp_dim, norm="pre", activation=exact_gelu)

    model = VisionTransformer(
        weights.shape("mlp_head.weight", 2)[0],
        width,
        tuple(block() for _ in range(weights.count(f"{stack}.layers."))),
        tuple(patch_shape),
        absolute_positions="pos_embedding" in weights.tensors,
    )
    num_features, size = weights.shape("to_patch_embedding.2.weight", 2)[1], int(np.prod(patch_shape))
    if num_features % size:
        raise InputError(f"patch_shape={tuple(patch_shape)}: {weights.path} has patches of {num_features} numbers")
    pixels = jnp.zeros((1, int(np.prod(grid_shape)), num_features // size))
    shapes = tensors.shapes_of(weights.path, model.init, pixels, tuple(grid_shape))
    return model, tensors.take(_entries(model, stack, grid_shape), shapes, weights.tensors, weights.path)


def save_translution(
    folder: str | pathlib.Path, model: VisionTransformer, params: dict[str, Any], grid_shape: Shape
) -> pathlib.Path:
    """Writes model.safetensors of a model as `translution` makes it, by the authors' names.

    Raises:
      InputError: parameters that have no name there, or are missing.
    """
    stack = "transformer" if model.blocks[0].attention.values is None else "translution"
    return files.write(folder, tensors.give(_entries(model, stack, grid_shape), params), {})


def _projections(weights: Weights, layer: str) -> tuple[int, int, str]:
    """The width, that of queries of all heads, and which of them have a matrix for every displacement."""
    for name, number, kind in (("to_qkv", 3, "none"), ("to_qk", 2, "values")):
        if f"{layer}.{name}.weight" in weights.tensors:
            inner, width = weights.shape(f"{layer}.{name}.weight", 2)
            return width, inner // number, kind
    _, width, inner = weights.shape(f"{layer}.to_q.unique_params", 3)
    return width, inner, "all"


def _entries(model: VisionTransformer, stack: str, grid_shape: Shape) -> list[Entry]:
    found = [
        *norm("patch_norm", "to_patch_embedding.1"),
        *linear("embed", "to_patch_embedding.2"),
        *norm("embed_norm", "to_patch_embedding.3"),
        without_first("class_token", "cls_token"),
        *norm("final_norm", f"{stack}.norm"),
        *linear("head", "mlp_head"),
    ]
    if model.absolute_positions:
        found.append(without_first("position_embedding", "pos_embedding"))
    for i, block in enumerate(model.blocks):
        ours, layer = f"blocks_{i}", f"{stack}.layers.{i}"
        found += [
            *norm(f"{ours}/attention_norm", f"{layer}.0.norm"),
            *_of_attention(block.attention, f"{ours}/attention", f"{layer}.0", model.token_grid(grid_shape)),
            *norm(f"{ours}/feed_forward_norm", f"{layer}.1.net.0"),
            *linear(f"{ours}/feed_forward/hidden", f"{layer}.1.net.1"),
            *linear(f"{ours}/feed_forward/output", f"{layer}.1.net.4"),
        ]
    return found


def _of_attention(attention: PositionalSelfAttention, ours: str, theirs: str, grid_shape: Shape) -> list[Entry]:
    """There the score of query t and key s is (x_s W^q_{t-s}) . (x_t W^k_{s-t}): their queries are our keys."""
    heads, found = attention.num_heads, []
    number = len(attention.needed())
    if number:

        def kernel(weight):
            return weight.T.reshape(weight.shape[1], number, heads, -1)

        name = "to_qkv" if number == 3 else "to_qk"
        kernel_of = one(
            f"{ours}/projections/kernel", f"{theirs}.{name}.weight", kernel, lambda k: k.reshape(len(k), -1).T
        )
        found.append(kernel_of)
    else:
        query, key = (f"{ours}/terms_0/{part}" for part in ("query", "key"))
        found.append(_table(f"{query}_matrices", f"{query}_class_matrices", f"{theirs}.to_k", heads, grid_shape, False))
        found.append(_table(f"{key}_matrices", f"{key}_class_matrices", f"{theirs}.to_q", heads, grid_shape, True))
    if attention.values is not None:
        values = f"{ours}/values"
        found.append(
            _table(f"{values}/matrices", f"{values}/class_matrices", f"{theirs}.to_v", heads, grid_shape, True)
        )
    if attention.use_output:
        output, bias = linear(f"{ours}/output", f"{theirs}.to_out.0")
        from_heads = one(
            *output.ours,
            *output.theirs,
            lambda weight: weight.T.reshape(heads, -1, len(weight)),
            lambda kernel: kernel.reshape(-1, kernel.shape[-1]).T,
        )
        found += [from_heads, bias]
    return found


def _table(matrices: str, of_class: str, theirs: str, num_heads: int, grid_shape: Shape, of_keys: bool) -> Entry:
    """Their table is of query minus key, in one axis, and then of pairs with the class token.

    These are of it with itself, of it as the first of the pair, and as the second: what is made of queries has pairs,
    and displacements, the other way round.
    """
    sizes, order = tuple(2 * size - 1 for size in grid_shape), [0, 1, 2] if of_keys else [0, 2, 1]
    turn = (slice(None, None, -1 if of_keys else 1),) * len(sizes)

    def pack(table: np.ndarray) -> list[np.ndarray]:
        split = table.reshape(*table.shape[:2], num_heads, -1)
        return [split[:-CLASSES].reshape(*sizes, *split.shape[1:])[turn], split[-CLASSES:][order]]

    def unpack(table: np.ndarray, classes: np.ndarray) -> list[np.ndarray]:
        flat = table[turn].reshape(-1, *table.shape[len(sizes) :])
        joined = np.concatenate([flat, classes[order]])
        return [joined.reshape(*joined.shape[:2], -1)]

    return Entry((matrices, of_class), (f"{theirs}.unique_params",), pack, unpack)
