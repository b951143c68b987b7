"""From a config's `model` to an encoder-decoder."""

from typing import Any

import flax.linen as nn
from ml_collections import ConfigDict

from posattn_jax.build.layer import check_sizes, choose, dtype
from posattn_jax.build.mixer import make_mixing, mixer_names
from posattn_jax.models.seq2seq import EncoderDecoder, StackPositions
from posattn_jax.nn.blocks import SequenceBlock
from posattn_jax.nn.gating import exact_gelu
from posattn_jax.system.errors import InputError

RELATIVE = ("shaw", "relative")  # a stack of these alone knows no absolute positions, as in the paper


def max_length(config: ConfigDict) -> int:
    """The places that tables of positions have."""
    return config.model.max_length or config.data.buckets[-1]


def make_seq2seq(
    config: ConfigDict,
    vocabulary_size: int,
    source_vocabulary_size: int | None = None,
    length_ratio: float = 1.0,
    pad_id: int = 0,
) -> EncoderDecoder:
    """The encoder-decoder.

    Raises:
      InputError: another kind of model, or sizes that do not fit together.
    """
    model: Any = config.model
    if model.kind != "seq2seq":
        raise InputError(f'model.kind="{model.kind}": expected "seq2seq" with task="{config.task}"')
    for name, expected in (("remat", False), ("scan_layers", False), ("norm", "pre")):
        if model[name] != expected:
            raise InputError(f'model.{name}={model[name]!r}: expected {expected!r} with model.kind="seq2seq"')
    for name in ("dropout_rate", "attention_dropout_rate", "mlp_dropout_rate"):
        if not 0 <= model[name] < 1 and (name, model[name]) != ("mlp_dropout_rate", -1):
            raise InputError(f"model.{name}={model[name]}: expected at least 0 and less than 1")
    if model.positions.kind != "none":
        expected = 'expected "none" with model.kind="seq2seq", which has model.mixer.positions'
        raise InputError(f'model.positions.kind="{model.positions.kind}": {expected}')
    check_sizes(config, "num_blocks", "width", "num_heads", "mlp_dim")
    if not model.head_dim and model.width % model.num_heads:
        raise InputError(f"model.num_heads={model.num_heads} does not divide model.width={model.width}")
    own: dict[str, Any] = {"dtype": dtype(config, "dtype"), "param_dtype": dtype(config, "param_dtype")}
    epsilon = {"layer_norm_epsilon": model.layer_norm_epsilon}
    activation = choose(config, "activation", relu=nn.relu, gelu=exact_gelu)
    mixers = {place: mixer_names(config, place) for place in ("encoder", "decoder", "cross")}
    blocks = {}
    for stack in ("encoder", "decoder"):
        blocks[stack] = tuple(
            SequenceBlock(
                make_mixing(config, mixers[stack][i], stack, (max_length(config),)),
                model.mlp_dim,
                make_mixing(config, mixers["cross"][i], "cross", (max_length(config),)) if stack == "decoder" else None,
                model.dropout_rate,
                model.dropout_rate if model.mlp_dropout_rate == -1 else model.mlp_dropout_rate,
                activation,
                **epsilon,
                **own,
            )
            for i in range(model.num_blocks)
        )

    def positions(own_mixers: tuple[str, ...], *others: str) -> StackPositions:
        as_paper = "none" if set(own_mixers) <= set(RELATIVE) else "sinusoidal"
        kind = choose(
            config,
            "mixer.positions",
            auto="learned" if "rposnet" in (*own_mixers, *others) else as_paper,
            sinusoidal="sinusoidal",
            learned="learned",
            none="none",
        )
        return StackPositions(kind, max_length(config), model.dropout_rate, **epsilon, param_dtype=own["param_dtype"])

    return EncoderDecoder(
        vocabulary_size,
        model.width,
        blocks["encoder"],
        blocks["decoder"],
        positions(mixers["encoder"]),
        positions(mixers["decoder"], *mixers["cross"]),
        source_vocabulary_size=source_vocabulary_size,
        length_ratio=length_ratio,
        pad_id=pad_id,
        dropout_rate=model.dropout_rate,
        **epsilon,
        **own,
    )
