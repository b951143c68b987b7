"""From a config's `model` to the mixers of Schmidt 2023."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
from ml_collections import ConfigDict

from posattn_jax.axes import Sizes
from posattn_jax.build.layer import choose, dtype
from posattn_jax.nn.energies import DotProducts, FourierWeights, GaussianWeights, OffsetTable, PairTable
from posattn_jax.nn.gating import GeluGate, Glu, NormalizedGelu
from posattn_jax.nn.mixing import TokenMixing
from posattn_jax.nn.places import LearnedPositions
from posattn_jax.system.errors import InputError

TABLES = ("linear", "glinear")  # made for so many places, and no more
GATED = ("aposnet", "rposnet", "glinear", "lightconv_gelu", "lightconv_global")
NEIGHBOURS = {"encoder": (-1, 0, 1), "decoder": (-1, 0), "cross": (-1, 0, 1)}  # of GaussianNet's heads


def mixer_names(config: ConfigDict, place: str) -> tuple[str, ...]:
    """The mixer of every block at a place."""
    given, number = config.model.mixer[place], config.model.num_blocks
    names = (given,) * number if isinstance(given, str) else tuple(given)
    if len(names) != number:
        raise InputError(f"model.mixer.{place}={names}: expected one mixer, or one for each of {number} blocks")
    return names


def make_mixing(
    config: ConfigDict, name: str, place: str, grid_shape: Sizes, *, own_positions: bool = False
) -> TokenMixing:
    """One mixer, of a stack or across.

    Args:
      config: of the run.
      name: of the mixer.
      place: "encoder", "decoder" or "cross".
      grid_shape: of the places that tables are made for.
      own_positions: whether a mixer that asks for learned positions has some of its own; else its stack gives them.

    Raises:
      InputError: there is none of the name, or not at this place.
    """
    model: Any = config.model
    own: dict[str, Any] = {"dtype": dtype(config, "dtype"), "param_dtype": dtype(config, "param_dtype")}
    param_dtype, context = own["param_dtype"], model.mixer.context
    if context < 0:
        raise InputError(f"model.mixer.context={context}: expected 0 or more")
    dots = functools.partial(DotProducts, context=context, **own)
    kernel = functools.partial(OffsetTable, context, param_dtype=param_dtype)
    table = functools.partial(PairTable, grid_shape, grid_shape, param_dtype=param_dtype)
    learned = LearnedPositions(grid_shape, param_dtype=param_dtype) if own_positions else None
    energies: dict[str, Callable[[], nn.Module]] = {
        "attention": dots,
        "shaw": lambda: dots(keys=("content", "relative")),
        "relative": lambda: dots(keys=("relative",)),
        "aposnet": lambda: dots("position", ("position",)),
        "rposnet": lambda: dots("position", ("relative",), positions=learned),
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
    dropped = "sum_dropout_rate" if name == "fourier" else "dropout_rate"  # as in the authors' code
    return TokenMixing(
        model.num_heads,
        model.head_dim or None,
        energies[name](),
        values,
        GeluGate(**own) if gated else None,
        **{dropped: model.attention_dropout_rate},
        **own,
    )
