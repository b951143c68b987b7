"""Functions that the models share: running a stack of encoder blocks, and pooling its tokens."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp

from posattn_jax.axes import Array, Features, Float, KeyMask, Shape
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.precompute import own_params, precompute_encoding
from posattn_jax.ops import grid

Pooling = Literal["last", "mean", "max"]


def run_blocks(
    model: Any, x: Features, grid_shape: Shape, *, span_bounds: Sequence[Shape] | None = None, **fields: Any
) -> tuple[Features, dict[str, dict[str, Array]]]:
    """Runs the blocks of a model, in its `__call__`.

    Args:
      model: has `blocks`, in order. With `remat` the backward pass computes each block again instead of storing its
        intermediates. With `scan_layers` the blocks, which must then be equal, run as one loop: it compiles once,
        their parameters are stacked, also of blocks that are one and the same module, and the same key draws other
        dropout than without it.
      x: [b t c].
      grid_shape: S.
      span_bounds: one per block, see `PositionalSelfAttention`; blocks of one loop use the largest.
      **fields: further arguments of every block's call.

    Returns:
      The features, and the intermediates of each block, as "block_0", "block_1", ...
    """

    def run_within(span_bound: Shape | None):
        def run(block: EncoderBlock, x: Features) -> Any:
            return block(x, grid_shape, span_bound=span_bound, return_intermediates=True, **fields)

        return nn.remat(run, prevent_cse=not model.scan_layers) if model.remat else run

    blocks = model.blocks
    if model.scan_layers:
        largest = None if span_bounds is None else tuple(max(bounds) for bounds in zip(*span_bounds, strict=True))
        x, intermediates = _scan(run_within(largest), blocks, x)
    else:
        intermediates = []
        for block, span_bound in zip(blocks, span_bounds or [None] * len(blocks), strict=True):
            x, out = run_within(span_bound)(block, x)
            intermediates.append(out)
    return x, {f"block_{i}": out for i, out in enumerate(intermediates)}


def _scan(run, blocks: Sequence[EncoderBlock], x: Features) -> tuple[Features, list[dict[str, Array]]]:
    if not blocks or not all(_alike(block, blocks[0]) for block in blocks):
        raise ValueError("scan_layers=True needs blocks, all alike")
    scanned = nn.scan(
        run,
        variable_axes={"params": 0},
        split_rngs={True: True},
        length=len(blocks),
        metadata_params={nn.meta.PARTITION_NAME: None},  # the axis of the blocks is not split
    )
    x, stacked = scanned(blocks[0], x)
    return x, [{name: array[i] for name, array in stacked.items()} for i in range(len(blocks))]


def _alike(a: Any, b: Any) -> bool:
    """Whether two modules have equal fields, whatever their parents and names are."""
    if isinstance(a, nn.Module):
        names = [field.name for field in dataclasses.fields(a) if field.name not in ("parent", "name")]
        return type(a) is type(b) and all(_alike(getattr(a, name), getattr(b, name)) for name in names)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return _alike((*a, *a.values()), (*b, *b.values()))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_alike, a, b))
    return a == b


def with_tables(model: Any, params: Mapping[str, Any], intermediates: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The same model on one grid, with the relative encodings of its blocks as tables: see `precompute_encoding`.

    Args:
      model: a model whose call is `run_blocks` of its `blocks`.
      params: the parameters of the model.
      intermediates: those of each of its blocks, with encodings of the whole grid.
    """
    encodings, params = [out.get("relative_encoding") for out in intermediates.values()], dict(params)
    stacked = None if None in encodings or not model.scan_layers else jnp.stack(encodings)
    blocks, changed = [], {}
    for i, block in enumerate(model.blocks):
        if not isinstance(block.attention, PositionalSelfAttention):
            blocks.append(block)
            continue
        name = "blocks_0" if model.scan_layers else f"blocks_{i}"  # the parameters of blocks in one loop are stacked
        of_block = own_params(params, name)
        attention, own = precompute_encoding(
            block.attention, own_params(of_block, "attention"), stacked if model.scan_layers else encodings[i]
        )
        blocks.append(block.clone(attention=attention))
        changed[name] = {**of_block, "attention": own}
    return model.clone(blocks=tuple(blocks)), params | changed


def add_positions(x: Features, positions: Callable | None, grid_shape: Shape, num_class_tokens: int = 0) -> Features:
    """Adds the vectors of their positions to the features. Class tokens have no position.

    Args:
      x: [b t c].
      positions: a module (places [n p], c) -> [n c], such as `SinusoidalPositions()`; None: no vectors.
      grid_shape: S.
      num_class_tokens: how many tokens precede the grid.
    """
    if positions is None:
        return x
    places = jnp.asarray(grid.positions(grid_shape), jnp.int32)
    added = positions(places, x.shape[-1]).astype(x.dtype)
    return x + jnp.pad(added, [(num_class_tokens, 0), (0, 0)])


def pool(x: Features, pooling: Pooling, key_mask: KeyMask | None = None) -> Float[Array, "b c"]:
    """One feature vector per example: that of the last token kept, or the mean or maximum of those kept."""
    where = None if key_mask is None else key_mask[..., None]
    match pooling:
        case "last":
            if key_mask is None:
                return x[:, -1]
            last = x.shape[1] - 1 - jnp.argmax(key_mask[:, ::-1], axis=1)
            return jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]
        case "mean":
            return jnp.mean(x, axis=1, where=where)
        case "max":
            return jnp.max(x, axis=1, where=where, initial=-jnp.inf)
        case _:
            raise ValueError(f'pooling="{pooling}": expected "last", "mean" or "max"')
