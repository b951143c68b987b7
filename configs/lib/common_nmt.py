"""Shared by the configs of translation (Schmidt 2023): sizes, mixers, and the paper's training."""

import math
from typing import Any

from ml_collections import ConfigDict

from configs.lib import common
from configs.lib.common_mixers import mixing
from posattn_jax import EncoderDecoder, SequenceBlock, StackPositions, TokenMixing
from posattn_jax.config.parts import change, part
from posattn_jax.data.text.translations import Translations
from posattn_jax.tasks.translation import Translation
from posattn_jax.train.optimizer import Adam
from posattn_jax.train.schedule import InverseSqrt

# The rows of the paper's tables: the mixer of both stacks. Cross-attention is always attention.
MIXERS: dict[str, dict[str, Any]] = {
    "transformer": {},
    "shaw": {"encoder": "shaw", "decoder": "shaw"},
    "relative": {"encoder": "relative", "decoder": "relative"},
    "fourier": {"encoder": "fourier", "decoder": "attention"},
    "gaussian": {"encoder": "gaussian", "decoder": "gaussian"},
    "linear": {"encoder": "linear", "decoder": "linear"},
    "glinear": {"encoder": "glinear", "decoder": "glinear"},
    "lightconv": {"encoder": "lightconv", "decoder": "lightconv"},
    "lightconv_plain": {"encoder": "lightconv_plain", "decoder": "lightconv_plain"},
    "lightconv_gelu": {"encoder": "lightconv_gelu", "decoder": "lightconv_gelu"},
    "lightconv_global": {"encoder": "lightconv_global", "decoder": "lightconv_global"},
    "aposnet": {"encoder": "aposnet", "decoder": "aposnet"},
    "rposnet": {"encoder": "rposnet", "decoder": "rposnet"},
}
# Table 6: with a gate if the mixer has none, or without the gate that it has.
for _name in ("transformer", "shaw", "relative"):
    MIXERS[f"{_name}_gated"] = MIXERS[_name] | {"is_gated": True}
for _name in ("aposnet", "rposnet"):
    MIXERS[f"{_name}_ungated"] = MIXERS[_name] | {"is_gated": False}
# Table 4: the places of rPosNet: encoder, decoder and cross-attention.
for _row in ("e", "d", "c", "ec", "dc", "edc"):
    MIXERS[f"rposnet_{_row}"] = {place: "rposnet" for place in ("encoder", "decoder", "cross") if place[0] in _row}
# Ours: other mixers instead of cross-attention.
MIXERS |= {"aposnet_c": {"cross": "aposnet"}, "mixed_c": {"cross": "mixed"}}
# What the paper's tables compare, by the word of a variant: Tables 2 and 3 without a word, 4, 5 and 6.
COMPARED: dict[str, tuple[str, ...]] = {
    "": ("transformer", "shaw", "fourier", "gaussian", "linear", "lightconv", "glinear", "aposnet", "rposnet"),
    "placements": ("transformer", "rposnet", *(f"rposnet_{row}" for row in ("e", "d", "c", "ec", "dc", "edc"))),
    "features": ("lightconv_plain", "lightconv", "lightconv_gelu", "lightconv_global", "rposnet"),
    "gates": tuple(f"{name}{gate}" for name in ("transformer", "shaw", "relative") for gate in ("", "_gated"))
    + tuple(f"{name}{gate}" for name in ("aposnet", "rposnet") for gate in ("_ungated", "")),
}
LABELS = {
    "transformer": "Transformer",
    "shaw": "Shaw et al. (2018)",
    "relative": "Relative self-attention",
    "fourier": "FourierNet",
    "gaussian": "GaussianNet",
    "linear": "LinearNet",
    "glinear": "gLinearNet",
    "lightconv": "LightConv",
    "lightconv_plain": "Light convolution",
    "lightconv_gelu": "Light convolution, GELU gate",
    "lightconv_global": "Light convolution, GELU gate, global context",
    "aposnet": "aPosNet",
    "rposnet": "rPosNet",
    "transformer_gated": "Transformer, gated",
    "shaw_gated": "Shaw et al. (2018), gated",
    "relative_gated": "Relative self-attention, gated",
    "aposnet_ungated": "aPosNet without gate",
    "rposnet_ungated": "rPosNet without gate",
    "rposnet_e": "rPosNet in the encoder alone",
    "rposnet_d": "rPosNet in the decoder alone",
    "rposnet_c": "rPosNet across alone",
    "rposnet_ec": "rPosNet in the encoder and across",
    "rposnet_dc": "rPosNet in the decoder and across",
    "rposnet_edc": "rPosNet everywhere",
    "aposnet_c": "aPosNet across alone",
    "mixed_c": "content and rPosNet across",
}

# Width, feed-forward width, heads and dropout; updates; the evaluations averaged and the updates between them;
# micro-batches that make an update, and target tokens of each, on the paper's GPUs (1, 2, 4) together; and the scale of
# the learning rate.
SIZES: dict[str, dict[str, Any]] = {
    "small": {"model": (512, 1024, 8, 0.3), "steps": 30_000, "average": (30, 300), "batch": (8, 2048), "scale": 2.0},
    "base": {"model": (512, 2048, 8, 0.1), "steps": 150_000, "average": (7, 1000), "batch": (8, 3400), "scale": 1.0},
    "big": {"model": (1024, 4096, 16, 0.3), "steps": 300_000, "average": (20, 600), "batch": (4, 6800), "scale": 1.0},
}
WARMUP_STEPS = 4000


def get_config(mixers: str = "transformer", size: str = "base", is_tiny: bool = False) -> ConfigDict:
    """Translation as in the paper, with one of `MIXERS` and of `SIZES`; or two updates with rPosNet, for tests."""
    config = common.get_config()
    config.data = part(Translations)
    config.task = part(Translation)
    config.train.eval_batch_size = 64
    config.optimizer = part(Adam, b2=0.98, eps=1e-9, schedule=part(InverseSqrt))
    recipe = SIZES[size]
    (keep, every), (accumulate, batch_size) = recipe["average"], recipe["batch"]
    config.train.update(keep_checkpoints=keep, eval_steps=every, accumulation_steps=accumulate, batch_size=batch_size)
    if is_tiny:
        config.data.update(vocabulary_size=60, buckets=(24, 72))
        set_model(config, "rposnet_edc", 8, 16, 2, 0.1, num_blocks=1, max_length=72)
        set_schedule(config, steps=2, warmup=2)
        config.train.update(batch_size=576, eval_batch_size=8, accumulation_steps=2, keep_checkpoints=2, eval_steps=1)
        config.task.decoding.update(beam_size=2, batch_size=8)
        return config
    set_model(config, mixers, *recipe["model"], context=context_of(mixers, size))
    set_schedule(config, recipe["steps"], WARMUP_STEPS, recipe["scale"])
    return config


def context_of(mixers: str, size: str) -> int:
    """8 for Shaw's big models, as in the authors' code; the paper's 8 for other big models does not fit Table 3."""
    return 8 if size == "big" and mixers.startswith("shaw") else 16


def set_model(
    config: ConfigDict,
    mixers: str,
    width: int,
    mlp_dim: int,
    num_heads: int,
    dropout_rate: float,
    *,
    weight_dropout_rate: float | None = None,
    num_blocks: int = 6,
    context: int = 16,
    max_length: int = 128,
) -> None:
    """Sets the model with one of `MIXERS`.

    Args:
      config: the config of the run.
      mixers: the name of the mixers.
      width, mlp_dim, num_heads: the sizes of the model.
      dropout_rate: the dropout rate of branches, and of words with their positions.
      weight_dropout_rate: the dropout rate of the weights; None: the same.
      num_blocks: the number of blocks of each stack.
      context: see `common_mixers.mixing`.
      max_length: the number of places in tables of positions.
    """
    mixed = part(TokenMixing, num_heads=num_heads)
    block = {"mixing": mixed, "mlp_dim": mlp_dim, "dropout_rate": dropout_rate, "mlp_dropout_rate": 0.0}
    positions = {"max_length": max_length, "dropout_rate": dropout_rate}
    config.model = part(
        EncoderDecoder,
        width=width,
        encoder_block=part(SequenceBlock, **block),
        num_encoder_blocks=num_blocks,
        decoder_block=part(SequenceBlock, cross=mixed, **block),
        num_decoder_blocks=num_blocks,
        encoder_positions=part(StackPositions, **positions),
        decoder_positions=part(StackPositions, **positions),
        length_ratio=None,
        dropout_rate=dropout_rate,
        dtype="float32",
        param_dtype="float32",
    )
    rate = dropout_rate if weight_dropout_rate is None else weight_dropout_rate
    change(config, mixer_fields(mixers, num_heads, rate, context, max_length))


def mixer_fields(name: str, num_heads: int, dropout_rate: float, context: int, max_length: int) -> dict[str, Any]:
    """The fields that one of `MIXERS` sets: the mixers of every place, and the absolute positions of the stacks.

    As in the paper, a stack with relative attention has no absolute positions, and a stack with rPosNet learned ones.
    """
    mixers: dict[str, Any] = dict.fromkeys(("encoder", "decoder", "cross"), "attention") | MIXERS[name]
    is_gated = mixers.pop("is_gated", None)
    sizes: dict[str, Any] = {"context": context, "grid_shape": (max_length,)}

    def form(*names: str) -> str:
        if {"rposnet", "mixed"} & set(names):
            return "learned"
        return "none" if names[0] in ("shaw", "relative") else "sinusoidal"

    paths = {"encoder": "encoder_block.mixing", "decoder": "decoder_block.mixing", "cross": "decoder_block.cross"}
    return {
        f"model.{paths[place]}": mixing(
            mixers[place],
            num_heads,
            dropout_rate,
            place=place,
            is_gated=None if place == "cross" else is_gated,
            **sizes,
        )
        for place in paths
    } | {
        "model.encoder_positions.form": form(mixers["encoder"]),
        "model.decoder_positions.form": form(mixers["decoder"], mixers["cross"]),
    }


def set_schedule(config: ConfigDict, steps: int, warmup: int, scale: float = 1.0) -> None:
    """Sets the number of updates, and a learning rate with the peak scale / sqrt(c warmup) (Vaswani 2017)."""
    config.train.update(total_steps=steps)
    config.optimizer.learning_rate = scale / math.sqrt(config.model.width * warmup)
    config.optimizer.schedule.warmup_steps = warmup
