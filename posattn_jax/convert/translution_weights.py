"""The vision transformer of Fan 2025, by the tensor names of the authors' code."""

import math
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Shape
from posattn_jax.convert import files, tensors
from posattn_jax.convert.blocks import check_alike
from posattn_jax.convert.files import Weights
from posattn_jax.convert.tensors import Entry, constant, from_heads, linear, norm, one, without_first
from posattn_jax.models.vit import VisionTransformer
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.gating import exact_gelu
from posattn_jax.nn.parts import PARTS, Part
from posattn_jax.nn.projections import LinearProjections
from posattn_jax.nn.relative_content import RelativeContent
from posattn_jax.nn.terms import Content, RotaryContent, by_name
from posattn_jax.nn.translution import LowRankTranslution, Translution
from posattn_jax.ops.grid import check_grid
from posattn_jax.system.errors import InputError

STACKS = ("translution", "transformer")
CLASSES = 3  # the number of matrices for pairs with the class token, after those of displacements
ROPE = ("cos", "sin")  # buffers of a layer, for the angle of every place and feature
SPARE = r".*\.rope\.(cos|sin)_cached"  # layers of Translution with RoPE have them too, but do not use them


def translution(
    path: str | pathlib.Path,
    grid_shape: Shape,
    patch_shape: Shape,
    num_heads: int | None = None,
    is_transposed: bool = False,
) -> tuple[VisionTransformer, dict[str, Any]]:
    """Reads a `ViT` of github.com/hehefan/Translution: Translution, LoR-Translution, RoPE, plain attention, or hybrid.

      model, params = convert.translution("model.safetensors", (224, 224), (16, 16), num_heads=3)
      logits = model.apply({"params": params}, pixels.reshape(b, 224 * 224, 3), (224, 224))

    Any of queries, keys and values may have matrices for displacements, of full or of low rank. Models that pool by the
    mean, in which the class token counts as one of the tokens there, and the language models of that code are not read.

    Args:
      path: a file of its state dict, .safetensors, .npz or .pt.
      grid_shape: the height and width of its images.
      patch_shape: the height and width of its patches.
      num_heads: h. None: 1, for a model without an output projection.
      is_transposed: whether the code before 29 November 2025 wrote the file. If both queries and keys have matrices for
        displacements, its `to_q` makes keys, and its `to_k` queries. The tensors do not show this.

    Raises:
      InputError: there is no such file, it has another model, or tensors are missing, of another shape, or unknown. Or
        the number of heads is missing, or does not divide the width of queries.
    """
    try:
        grid_shape, patch_shape = check_grid(grid_shape), check_grid(patch_shape, "patch_shape")
    except ValueError as error:
        raise InputError(str(error)) from error
    weights = files.read(path)
    stack = next((each for each in STACKS if f"{each}.layers.0.0.norm.weight" in weights.tensors), None)
    if stack is None:
        raise InputError(f"{weights.path}: no ViT of Translution: it has no translution.layers.0.0.norm.weight")
    first = f"{stack}.layers.0"
    use_output = f"{first}.0.to_out.0.weight" in weights.tensors
    if use_output and num_heads is None:
        raise InputError(f"{weights.path}: does not say how many heads it has: expected num_heads")
    inner, heads = _inner(weights, f"{first}.0"), 1 if num_heads is None else num_heads
    if heads < 1 or inner % heads:
        raise InputError(f"num_heads={heads}: does not divide {inner}, the width of queries in {weights.path}")

    def block(number: int) -> EncoderBlock:
        layer = f"{stack}.layers.{number}"
        mlp_dim, _ = weights.shape(f"{layer}.1.net.1.weight", 2)
        attention = _attention(weights, f"{layer}.0", heads, inner // heads, use_output)
        return EncoderBlock(attention, mlp_dim, norm="pre", activation=exact_gelu)

    num_classes, width = weights.shape("mlp_head.weight", 2)
    model = VisionTransformer(
        num_classes,
        width,
        tuple(block(number) for number in range(weights.count(f"{stack}.layers."))),
        patch_shape,
        absolute_positions="pos_embedding" in weights.tensors,
    )
    num_features, size = weights.shape("to_patch_embedding.2.weight", 2)[1], math.prod(patch_shape)
    if num_features % size:
        raise InputError(f"patch_shape={patch_shape}: {weights.path} has patches of {num_features} numbers")
    pixels = jnp.zeros((1, math.prod(grid_shape), num_features // size))
    shapes = tensors.shapes_of(weights.path, model.init, pixels, grid_shape)
    found = _entries(model, stack, grid_shape, is_transposed)
    return model, tensors.take(found, shapes, weights.tensors, weights.path, SPARE)


def save_translution(
    folder: str | pathlib.Path, model: VisionTransformer, params: dict[str, Any], grid_shape: Shape
) -> pathlib.Path:
    """Writes model.safetensors of a model as `translution` returns it, by the authors' names.

    Raises:
      InputError: it is another model, or parameters have no name there, or are missing.
    """
    attention = model.blocks[0].attention
    is_plain = attention.values is None and isinstance(_last(attention)[1], Content | RotaryContent)
    stack = "transformer" if is_plain else "translution"
    given = tensors.give(_entries(model, stack, grid_shape), params)
    weights = Weights(pathlib.Path(folder), given, {})

    def nearest(block: EncoderBlock, layer: str) -> EncoderBlock:
        own = block.attention
        made = _attention(weights, layer, own.num_heads, _inner(weights, layer) // own.num_heads, own.use_output)
        return EncoderBlock(made.clone(head_dim=own.head_dim), block.mlp_dim, norm="pre", activation=exact_gelu)

    blocks = tuple(nearest(block, f"{stack}.layers.{i}.0") for i, block in enumerate(model.blocks))
    check_alike(model, model.clone(blocks=blocks, positions=None, layer_norm_epsilon=1e-5), "the code of Translution")
    return files.write(folder, given, {})


def _inner(weights: Weights, layer: str) -> int:
    """The width of the queries of all heads."""
    for name in ("qkv", "qk", "qv", "q"):
        if f"{layer}.to_{name}.weight" in weights.tensors:
            return weights.shape(f"{layer}.to_{name}.weight", 2)[0] // len(name)
    return weights.shape(f"{layer}.to_q.unique_params", 3)[2]


def _attention(
    weights: Weights, layer: str, num_heads: int, head_dim: int, use_output: bool
) -> PositionalSelfAttention:
    """The attention layer that the names of its tensors describe."""

    def has(name: str) -> bool:
        return f"{layer}.{name}" in weights.tensors

    full, low = ({part: has(f"to_{part[0]}{n}.unique_params") for part in PARTS} for n in ("", "2"))
    rank = next((weights.shape(f"{layer}.to_{part[0]}1.weight", 2)[0] // num_heads for part in PARTS if low[part]), 0)
    terms: tuple[Any, ...] = (Content(),)
    if full["query"] or full["key"]:
        terms = (RelativeContent(relative_query=full["query"], relative_key=full["key"]),)
    elif low["query"] or low["key"]:
        terms += (RelativeContent(relative_query=low["query"], relative_key=low["key"], rank=rank),)
    elif has(f"rope.{ROPE[0]}_cached") and not full["value"]:  # with value matrices, they are unused
        terms = (RotaryContent(),)
    values = None
    if full["value"]:
        values = Translution()
    elif low["value"]:
        values = LowRankTranslution(rank=rank, down_dim=num_heads * rank, mix_heads=True)
    return PositionalSelfAttention(
        num_heads,
        head_dim=head_dim,
        terms=terms,
        values=values,
        projections=LinearProjections(use_bias=False),
        use_output=use_output,
        scale=0.5 / math.sqrt(head_dim) if len(terms) > 1 else None,
    )


def _entries(model: VisionTransformer, stack: str, grid_shape: Shape, is_transposed: bool = False) -> list[Entry]:
    token_grid = model.token_grid(grid_shape)
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
            *_of_attention(block.attention, f"{ours}/attention", f"{layer}.0", token_grid, is_transposed),
            *norm(f"{ours}/feed_forward_norm", f"{layer}.1.net.0"),
            *linear(f"{ours}/feed_forward/hidden", f"{layer}.1.net.1"),
            *linear(f"{ours}/feed_forward/output", f"{layer}.1.net.4"),
        ]
    return found


def _last(attention: Any) -> tuple[str, Any]:
    """The last term, and the name of its parameters."""
    return [*by_name(attention.terms).items()][-1]


def _of_attention(attention: Any, ours: str, theirs: str, grid_shape: Shape, is_transposed: bool) -> list[Entry]:
    """The entries of a layer. There, a score is (x_t W^q_{s-t}) . (x_s W^k_{t-s}), and a value is x_s W^v_{t-s}."""
    (name_of_content, content), heads, values = _last(attention), attention.num_heads, attention.values
    found = _of_projections(attention, ours, theirs)

    def tables(part: Part, names: tuple[str, str], name: str) -> Entry:
        return _table(*names, f"{theirs}.to_{name}", heads, grid_shape, part != "query")

    if isinstance(content, RelativeContent):
        path = f"{ours}/{name_of_content}"
        sides: dict[Part, bool] = {"query": content.relative_query, "key": content.relative_key}
        is_transposed = is_transposed and all(sides.values()) and content.rank is None
        for part, relative in sides.items():
            name = "qk"[(part == "key") != is_transposed]
            if content.rank is not None:
                found.append(_matrix(f"{path}/{part}_down", f"{theirs}.to_{name}1.weight"))
                name = f"{name}2"
            if relative:
                found.append(tables(part, (f"{path}/{part}_matrices", f"{path}/{part}_class_matrices"), name))
    if isinstance(values, LowRankTranslution):
        found.append(_matrix(f"{ours}/values/down", f"{theirs}.to_v1.weight"))
        found.append(tables("value", (f"{ours}/values/relative", f"{ours}/values/class_matrices"), "v2"))
        shape = (heads, values.rank, heads, attention.head_dim)
        up = one(
            f"{ours}/values/joint_up",
            f"{theirs}.to_v3.weight",
            lambda weight: weight.T.reshape(shape),
            lambda up: up.reshape(shape[0] * shape[1], -1).T,
        )
        found.append(up)
    elif values is not None:
        found.append(tables("value", (f"{ours}/values/matrices", f"{ours}/values/class_matrices"), "v"))
    if isinstance(content, RotaryContent):
        found += _of_angles(theirs, grid_shape, attention.head_dim, content.base)
    if attention.use_output:
        found += from_heads(f"{ours}/output", f"{theirs}.to_out.0", heads)
    return found


def _matrix(ours: str, theirs: str) -> Entry:
    return one(ours, theirs, np.transpose, np.transpose)


def _of_projections(attention: PositionalSelfAttention, ours: str, theirs: str) -> list[Entry]:
    """The entries of the linear maps, which are fused there, together with the shared matrix of low-rank values."""
    heads, parts, paths = attention.num_heads, attention.needed(), [f"{ours}/projections/kernel"]
    is_low = isinstance(attention.values, LowRankTranslution)
    if is_low:
        paths.append(f"{ours}/values/matrix")
    names = "".join(part[0] for part in PARTS if part in parts or (is_low and part == "value"))
    if not names:
        return []
    turned = isinstance(next(iter(by_name(attention.terms).values())), RotaryContent)

    def pack(weight: np.ndarray) -> list[np.ndarray]:
        kernel = weight.T.reshape(weight.shape[1], len(names), heads, -1)
        if turned:
            kernel = _turned(kernel, _order(kernel.shape[-1]))
        return [kernel[:, : len(parts)], kernel[:, -1]][: len(paths)]

    def unpack(kernel: np.ndarray, *matrix: np.ndarray) -> list[np.ndarray]:
        joined = np.concatenate([kernel, *(each[:, None] for each in matrix)], 1)
        if turned:
            joined = _turned(joined, np.argsort(_order(joined.shape[-1])))
        return [joined.reshape(len(joined), -1).T]

    return [Entry(tuple(paths), (f"{theirs}.to_{names}.weight",), pack, unpack)]


def _order(head_dim: int) -> np.ndarray:
    """Their index of each of our features. Features that rotate together are neighbours here, and d / 2 apart there."""
    return np.arange(head_dim).reshape(2, -1).T.reshape(-1)


def _turned(kernel: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Reorders the features of queries and keys."""
    return np.concatenate([kernel[:, :2][..., order], kernel[:, 2:]], 1)


def _of_angles(theirs: str, grid_shape: Shape, head_dim: int, base: float) -> list[Entry]:
    each = head_dim // len(grid_shape)
    places = np.moveaxis(np.indices(grid_shape), 0, -1)
    angles = places[..., None] * base ** (-np.arange(0, each, 2) / each)
    angles = np.tile(angles.reshape(*grid_shape, -1), 2)[None]
    made = {"cos": np.cos, "sin": np.sin}
    return [constant(f"{theirs}.rope.{name}_cached", made[name](angles).astype(np.float32)) for name in ROPE]


def _table(matrices: str, of_class: str, theirs: str, num_heads: int, grid_shape: Shape, of_keys: bool) -> Entry:
    """The entry of a table. Theirs is indexed by query minus key, in one axis, and then has pairs with the class token.

    These pairs are: the token with itself, the token first, and the token second. For matrices of queries, pairs and
    displacements are the other way round.
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
