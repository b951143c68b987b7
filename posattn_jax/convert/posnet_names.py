"""Maps the tensors and buffers of the code of Schmidt 2023 to the parameters of an `EncoderDecoder`."""

import math

import jax.numpy as jnp
import numpy as np

from posattn_jax.convert.tensors import Entry, constant, from_heads, linear, one, same
from posattn_jax.models.seq2seq import EncoderDecoder
from posattn_jax.nn.blocks import SequenceBlock
from posattn_jax.nn.energies import DotProducts, GaussianWeights, OffsetTable, PairTable
from posattn_jax.nn.gating import Glu, NormalizedGelu
from posattn_jax.nn.mixing import TokenMixing
from posattn_jax.nn.positions import SinusoidalPositions, StackPositions
from posattn_jax.ops.mixing import gaussian_weights
from posattn_jax.system.errors import InputError

TIMED = ".object_to_time"  # the name of a module within one that measures its time
STACKS = {"encoder": "src_embed", "decoder": "tgt_embed"}


def embeddings(family: str) -> tuple[str, str, str]:
    """The names of the matrices of source, target and output. `family` is the name of the model there."""
    timed = _timed(family)
    source, target = (f"{stack}.{embed}{timed}.word_embed.weight" for stack, embed in STACKS.items())
    return source, target, f"decoder.output_projection{timed}.weight"


def entries(model: EncoderDecoder, family: str) -> list[Entry]:
    """The entries of all parameters of a model, and of the buffers, which must agree with the model."""
    timed, length = _timed(family), model.encoder_positions.max_length
    found = [same("output_bias", f"decoder.output_projection{timed}.bias")]
    if model.source_vocabulary_size is None:
        found.append(_tied("embedding/embedding", embeddings(family)))
    else:
        ours = ("source_embedding/embedding", "embedding/embedding", "output_embedding/embedding")
        found += [same(*pair) for pair in zip(ours, embeddings(family), strict=True)]
    last = "lnorm" if timed else "lnorm2"
    for stack, embed in STACKS.items():
        blocks: tuple[SequenceBlock, ...] = getattr(model, f"{stack}_blocks")
        asks = [*(block.mixing for block in blocks), *(block.cross for block in model.decoder_blocks)]
        has_norm = not timed and any(_knows_places_alone(mixing) for mixing in asks)
        positions: StackPositions = getattr(model, f"{stack}_positions")
        found += _of_positions(positions, stack, f"{stack}.{embed}{timed}", model.width, has_norm)
        found += _norm(f"{stack}_norm", f"{stack}.{last}{timed}")
        for i, block in enumerate(blocks):
            found += _of_block(block, f"{stack}_blocks_{i}", f"{stack}.layers.{i}", timed, model, length)
    return found


def _timed(family: str) -> str:
    return "" if family == "PosNet" else TIMED


def _knows_places_alone(mixing: TokenMixing | None) -> bool:
    """Whether the mixer is the `PositionBasedAttention` of the code, which uses only positions."""
    energies = getattr(mixing, "energies", None)
    return isinstance(energies, DotProducts) and not energies.knows_content


def _of_positions(positions: StackPositions, stack: str, embed: str, width: int, has_norm: bool) -> list[Entry]:
    places, ours = np.arange(positions.max_length), f"{stack}_positions"
    if positions.form == "sinusoidal":
        sinusoids = SinusoidalPositions()(jnp.asarray(places[:, None]), width)
        return [constant(f"{embed}.pos_embed", np.asarray(sinusoids, np.float32))]
    found = [constant(f"{embed}.rng", places)]
    if positions.form == "learned":
        found.append(same(f"{ours}/vectors/table", f"{embed}.pos_embed.weight"))
        found += _norm(f"{ours}/norm", f"{stack}.lnorm1") if has_norm else [_unused(f"{ours}/norm", width)]
    return found


def _of_block(
    block: SequenceBlock, ours: str, theirs: str, timed: str, model: EncoderDecoder, length: int
) -> list[Entry]:
    cross, numbers = block.cross, iter(range(1, 4))

    def next_norm(name: str) -> list[Entry]:
        return _norm(f"{ours}/{name}_norm", f"{theirs}.lnorm{next(numbers)}{timed}")

    found = next_norm("mixing")
    found += _of_mixing(block.mixing, f"{ours}/mixing", f"{theirs}.{'self_att' if cross else 'att'}", length)
    if cross is not None:
        found += next_norm("cross")
        if _knows_places_alone(cross) and cross.gate is None:  # the code has none: it ignores the target
            found[-2:] = [_unused(f"{ours}/cross_norm", model.width)]
        found += _of_mixing(cross, f"{ours}/cross", f"{theirs}.cross_att", length, model.length_ratio)
    found += next_norm("feed_forward")
    for name, part in (("hidden", "ff1"), ("output", "ff2")):
        found += linear(f"{ours}/feed_forward/{name}", f"{theirs}.{part}{timed}")
    return found


def _of_mixing(mixing: TokenMixing, ours: str, theirs: str, length: int, length_ratio: float = 1.0) -> list[Entry]:
    energies, heads = mixing.energies or DotProducts(), mixing.num_heads
    timed = TIMED if energies.knows_content or isinstance(energies, OffsetTable) else ""
    halves = 2 if isinstance(mixing.values, Glu) else 1
    found = _to_heads(f"{ours}/value", f"{theirs}.W_v{timed}", heads, halves)
    found += from_heads(f"{ours}/output", f"{theirs}.W_o{timed}", heads)
    if mixing.gate is not None:
        found += _to_heads(f"{ours}/gate/linear", f"{theirs}.W_g{timed}", heads)
    if isinstance(mixing.values, NormalizedGelu):
        found += _norm(f"{ours}/values/norm", f"{theirs}.lnorm_v{timed}")
    own = f"{ours}/energies"
    if isinstance(energies, DotProducts):
        query = "W_q" if energies.query == "content" else "W_q2" if "relative" in energies.keys else "W_q1"
        found += _to_heads(f"{own}/query", f"{theirs}.{query}{timed}", heads)
        if energies.keys != ("relative",):
            found += _to_heads(f"{own}/key", f"{theirs}.W_k{timed}", heads)
        if "relative" in energies.keys:
            to_heads, joined = lambda table: table.reshape(len(table), heads, -1), lambda x: x.reshape(len(x), -1)
            found.append(one(f"{own}/relative", f"{theirs}.rel_embed.weight", to_heads, joined))
            found.append(constant(f"{theirs}.rng", np.arange(2 * energies.context + 1)))
        if "relative" in energies.keys or not energies.knows_content:
            each = heads if energies.knows_content else 1
            found.append(constant(f"{theirs}.indices", _indices(length, energies.context, each, length_ratio)))
    elif isinstance(energies, OffsetTable):
        found.append(one(f"{own}/table", f"{theirs}.W", lambda w: w[:, None], lambda table: table[:, 0]))
        found.append(constant(f"{theirs}.indices", _indices(length, energies.context, heads)))
        outside = np.abs(np.subtract.outer(np.arange(length), np.arange(length))) > energies.context
        found.append(constant(f"{theirs}.gather_m", outside[None, None]))
    elif isinstance(energies, PairTable):
        found.append(one(f"{own}/table", f"{theirs}.W", lambda w: w[0], lambda table: table[None]))
    elif isinstance(energies, GaussianWeights):
        found.append(constant(f"{theirs}.W", _gaussians(energies, heads, length)))
    return found


def _norm(ours: str, theirs: str) -> list[Entry]:
    """The entries of a layer norm. Theirs uses the unbiased variance, n / (n - 1) times ours with n features."""

    def factor(array: np.ndarray) -> float:
        return math.sqrt((len(array) - 1) / len(array))

    scale = one(f"{ours}/scale", f"{theirs}.a", lambda a: _scaled(a, factor(a)), lambda s: _scaled(s, 1 / factor(s)))
    return [scale, same(f"{ours}/bias", f"{theirs}.b")]


def _scaled(array: np.ndarray, factor: float) -> np.ndarray:
    return (array.astype(np.float64) * factor).astype(np.float32)


def _unused(ours: str, width: int) -> Entry:
    """An entry of a layer norm that the code does not have, and that changes no output."""
    arrays = np.ones(width, np.float32), np.zeros(width, np.float32)
    return Entry((f"{ours}/scale", f"{ours}/bias"), (), lambda: arrays, lambda *_: ())


def _tied(ours: str, theirs: tuple[str, ...]) -> Entry:
    def pack(first: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
        for name, other in zip(theirs[1:], others, strict=True):
            if not np.array_equal(first, other):
                raise InputError(f"tiew=True, but {name} is another matrix than {theirs[0]}")
        return [first]

    return Entry((ours,), theirs, pack, lambda array: [array] * len(theirs))


def _to_heads(ours: str, theirs: str, num_heads: int, halves: int = 1) -> list[Entry]:
    """The entries of a linear map to heads. Their weights are [halves h d, c]; ours have the halves within a head."""

    def kernel(weight: np.ndarray) -> np.ndarray:
        split = weight.reshape(halves, num_heads, -1, weight.shape[1])
        return split.transpose(3, 1, 0, 2).reshape(weight.shape[1], num_heads, -1)

    def weight(kernel: np.ndarray) -> np.ndarray:
        split = kernel.reshape(len(kernel), num_heads, halves, -1)
        return split.transpose(2, 1, 3, 0).reshape(-1, len(kernel))

    return [
        one(f"{ours}/kernel", f"{theirs}.weight", kernel, weight),
        one(
            f"{ours}/bias",
            f"{theirs}.bias",
            lambda bias: kernel(bias[:, None])[0],
            lambda bias: weight(bias[None])[:, 0],
        ),
    ]


def _indices(length: int, context: int, num_heads: int, length_ratio: float = 1.0) -> np.ndarray:
    """The row of a table for every pair of positions, [1 h t s]."""
    places = np.arange(length)
    anchor = np.floor(np.float32(length_ratio) * places.astype(np.float32)).astype(int)
    rows = np.clip(places - anchor[:, None], -context, context) + context
    return np.broadcast_to(rows, (1, num_heads, length, length))


def _gaussians(energies: GaussianWeights, num_heads: int, length: int) -> np.ndarray:
    places = np.arange(length)
    centres = np.resize(energies.centres, (num_heads, 1)).astype(float)
    offsets = jnp.asarray(places - places[:, None])[None, :, :, None]
    return np.asarray(gaussian_weights(offsets, jnp.asarray(centres), energies.sigma), np.float32)
