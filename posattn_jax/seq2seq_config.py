"""From a config's `model` to an encoder-decoder and its mixers."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
from ml_collections import ConfigDict

from posattn_jax.errors import InputError
from posattn_jax.layer_config import check_sizes, choose, dtype
from posattn_jax.models.seq2seq import EncoderDecoder, StackPositions
from posattn_jax.nn.blocks import SequenceBlock
from posattn_jax.nn.energies import DotProducts, FourierWeights, GaussianWeights, OffsetTable, PairTable
from posattn_jax.nn.gating import GeluGate, Glu, NormalizedGelu, exact_gelu
from posattn_jax.nn.mixing import TokenMixing

RELATIVE = ("shaw", "relative")  # a stack of these alone knows no absolute positions, as in the paper
TABLES = ("linear", "glinear")  # made for so many places, and no more
GATED = ("aposnet", "rposnet", "glinear", "lightconv_gelu", "lightconv_global")
NEIGHBOURS = {"encoder": (-1, 0, 1), "decoder": (-1, 0), "cross": (-1, 0, 1)}  # of GaussianNet's heads


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
                make_mixing(config, mixers[stack][i], stack),
                model.mlp_dim,
                make_mixing(config, mixers["cross"][i], "cross") if stack == "decoder" else None,
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


def mixer_names(config: ConfigDict, place: str) -> tuple[str, ...]:
    """The mixer of every block at a place."""
    given, number = config.model.mixer[place], config.model.num_blocks
    names = (given,) * number if isinstance(given, str) else tuple(given)
    if len(names) != number:
        raise InputError(f"model.mixer.{place}={names}: expected one mixer, or one for each of {number} blocks")
    return names


def make_mixing(config: ConfigDict, name: str, place: str) -> TokenMixing:
    """One mixer, of a stack or across.

    Raises:
      InputError: there is none of the name, or not at this place.
    """
    model: Any = config.model
    own: dict[str, Any] = {"dtype": dtype(config, "dtype"), "param_dtype": dtype(config, "param_dtype")}
    param_dtype, context, places = own["param_dtype"], model.mixer.context, (max_length(config),)
    if context < 0:
        raise InputError(f"model.mixer.context={context}: expected 0 or more")
    dots = functools.partial(DotProducts, context=context, **own)
    kernel = functools.partial(OffsetTable, context, param_dtype=param_dtype)
    table = functools.partial(PairTable, places, places, param_dtype=param_dtype)
    energies: dict[str, Callable[[], nn.Module]] = {
        "attention": dots,
        "shaw": lambda: dots(keys=("content", "relative")),
        "relative": lambda: dots(keys=("relative",)),
        "aposnet": lambda: dots("position", ("position",)),
        "rposnet": lambda: dots("position", ("relative",)),
        "lightconv": kernel,
        "lightconv_plain": kernel,
        "lightconv_gelu": kernel,
        "lightconv_global": lambda: kernel(outside="clip"),
        "linear": table,
        "glinear": table,
        "gaussian": lambda: GaussianWeights(NEIGHBOURS[place]),
        "fourier": FourierWeights,
    }
    if name not in energies:
        raise InputError(f'model.mixer.{place}="{name}": expected one of {", ".join(energies)}')
    if name == "fourier" and place != "encoder":
        raise InputError(f'model.mixer.{place}="fourier": it needs the whole sequence, and cannot decode step by step')
    gated = name in GATED
    if place != "cross":
        gated = choose(config, "mixer.gate", own=gated, yes=True, no=False)
    values = Glu() if name == "lightconv" else None
    if gated:
        values = NormalizedGelu(layer_norm_epsilon=model.layer_norm_epsilon, **own)
    return TokenMixing(
        model.num_heads,
        model.head_dim or None,
        energies[name](),
        values,
        GeluGate(**own) if gated else None,
        model.attention_dropout_rate,
        **own,
    )
