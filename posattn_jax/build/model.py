"""From a config's `model` to the model it describes."""

import math
from typing import Any

import flax.linen as nn
from ml_collections import ConfigDict

from posattn_jax.axes import Sizes
from posattn_jax.build.layer import check_sizes, choose, dtype, linear_init, make_attention
from posattn_jax.build.mixer import make_mixing, mixer_names
from posattn_jax.models.bert import Bert
from posattn_jax.models.classifier import Classifier
from posattn_jax.models.vit import VisionTransformer
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.gating import exact_gelu
from posattn_jax.nn.places import FourierPositions, LearnedPositions, SinusoidalPositions
from posattn_jax.system.errors import InputError


def make_stack(config: ConfigDict, grid_shape: Sizes) -> dict[str, Any]:
    """The fields that all models share: their width, their positions, their blocks and how these are run.

    Args:
      config: of the run.
      grid_shape: that of the tokens in training, which tables of places are made for.

    Raises:
      InputError: sizes that do not fit together.
    """
    model: Any = config.model
    for name in ("dropout_rate", "attention_dropout_rate", "mlp_dropout_rate"):
        if not 0 <= model[name] < 1 and (name, model[name]) != ("mlp_dropout_rate", -1):
            raise InputError(f"model.{name}={model[name]}: expected at least 0 and less than 1")
    check_sizes(config, "num_blocks", "width", "num_heads", "mlp_dim")
    if not model.head_dim and model.width % model.num_heads:
        raise InputError(f"model.num_heads={model.num_heads} does not divide model.width={model.width}")
    names = mixer_names(config, "encoder")
    blocks = tuple(make_block(config, name, grid_shape) for name in names)
    others = sorted(set(names) - {"attention"})
    if others and config.mesh.grid != 1:
        raise InputError(f'mesh.grid={config.mesh.grid}: expected 1 with model.mixer.encoder="{others[0]}"')
    if "attention" not in names and model.span.enabled:
        raise InputError(f'model.span.enabled=True: expected False with model.mixer.encoder="{others[0]}"')
    return {
        "width": model.width,
        "positions": make_positions(config, grid_shape),
        "blocks": blocks,
        "remat": model.remat,
        "scan_layers": model.scan_layers,
        "dtype": dtype(config, "dtype"),
        "param_dtype": dtype(config, "param_dtype"),
    }


def make_block(config: ConfigDict, mixer: str, grid_shape: Sizes) -> EncoderBlock:
    """One encoder block: of attention, or of another mixer."""
    model: Any = config.model
    if mixer == "attention":
        attention = make_attention(config)
    else:
        attention = make_mixing(config, mixer, "encoder", grid_shape, own_positions=True)
    return EncoderBlock(
        attention,
        model.mlp_dim,
        model.dropout_rate,
        model.norm,
        choose(config, "activation", relu=nn.relu, gelu=exact_gelu),
        mlp_dropout_rate=None if model.mlp_dropout_rate == -1 else model.mlp_dropout_rate,
        kernel_init=linear_init(config),
        layer_norm_epsilon=model.layer_norm_epsilon,
        dtype=dtype(config, "dtype"),
        param_dtype=dtype(config, "param_dtype"),
    )


def make_positions(config: ConfigDict, grid_shape: Sizes) -> nn.Module | None:
    """The absolute positions that are added to the embedded inputs."""
    positions: Any = config.model.positions
    fields: dict[str, Any] = {"param_dtype": dtype(config, "param_dtype")}
    make = choose(
        config,
        "positions.kind",
        none=lambda: None,
        learned=lambda: LearnedPositions(grid_shape, **fields),
        sinusoidal=SinusoidalPositions,
        fourier=lambda: FourierPositions(
            positions.num_features or None, positions.hidden_features or None, positions.gamma, **fields
        ),
    )
    if positions.kind != "none" and config.model.absolute_positions:
        raise InputError(f'model.positions.kind="{positions.kind}": expected "none" with model.absolute_positions=True')
    return make()


def make_bert(config: ConfigDict, vocabulary_size: int, length: int) -> Bert:
    """The encoder of token ids.

    Raises:
      InputError: another kind of model, or sizes that do not fit together.
    """
    model: Any = config.model
    if model.kind != "bert":
        raise InputError(f'model.kind="{model.kind}": expected "bert" with task="{config.task}"')
    if model.linear_init != "normal":
        raise InputError(f'model.linear_init="{model.linear_init}": expected "normal" with model.kind="bert"')
    if not 0 < model.embedding_scale < math.inf:
        raise InputError(f"model.embedding_scale={model.embedding_scale}: expected a finite number above 0")
    return Bert(
        vocabulary_size,
        embedding_dim=model.embedding_dim or None,
        embedding_scale=model.embedding_scale,
        max_length=model.max_length or length,
        absolute_positions=model.absolute_positions,
        dropout_rate=model.dropout_rate,
        layer_norm_epsilon=model.layer_norm_epsilon,
        **make_stack(config, (model.max_length or length,)),
    )


def make_model(config: ConfigDict, num_classes: int, grid_shape: Sizes) -> Classifier | VisionTransformer:
    """The classifier of data on a grid; raises as `make_stack`."""
    model: Any = config.model
    if model.kind == "vit":  # which tells itself where patches do not fit
        grid_shape = tuple(max(1, size // max(1, patch)) for size, patch in zip(grid_shape, model.patch_shape))  # noqa: B905
    fields = make_stack(config, grid_shape) | {"num_classes": num_classes, "readout": model.readout}
    make = choose(
        config,
        "kind",
        classifier=lambda: Classifier(dropout_rate=model.dropout_rate, **fields),
        vit=lambda: VisionTransformer(
            patch_shape=tuple(model.patch_shape), absolute_positions=model.absolute_positions, **fields
        ),
    )
    return make()
