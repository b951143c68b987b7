"""Shared by the configs of Translution (Fan 2025): the paper's vision transformer, and our recipe for it."""

from typing import Any

from ml_collections import ConfigDict

from configs.lib import common
from posattn_jax import (
    EncoderBlock,
    GeneralTranslution,
    LinearProjections,
    PositionalSelfAttention,
    Siren,
    Translution,
    VisionTransformer,
)
from posattn_jax.config.parts import part
from posattn_jax.data.images.image_sets import Images
from posattn_jax.data.images.moving_mnist import Stills
from posattn_jax.train.optimizer import Adam
from posattn_jax.train.schedule import Cosine

# The height and width of a patch for each of the paper's data sets.
PATCH = {"mnist": 7, "cifar10": 8, "cifar100": 8}
MOVING = {"data.name": "mnist", "data.scene": part(Stills), "model.patch_shape": (8, 8)}  # Moving MNIST
VALUES = f"{common.ATTENTION}.values"
TRANSFORMER = {VALUES: None, "model.absolute_positions": True}


def get_config(name: str, variant: str = "") -> ConfigDict:
    """Translution of depth 1 on a data set: 30 epochs; "quick": 10 epochs; "tiny": two steps, for tests.

    The paper states no recipe. It classifies the class token, from which a single layer without absolute positions
    cannot see where things are, so pooling is the mean here. The result is that of the test set after the last epoch,
    as in the paper.
    """
    config = common.get_config()
    config.data = part(Images, name=name, validation="test")
    attention = part(
        PositionalSelfAttention,
        num_heads=1,
        values=part(Translution),
        projections=part(LinearProjections, use_bias=False, kernel_init="fan_in"),
        use_output=False,
    )
    config.model = part(
        VisionTransformer,
        width=64,
        num_blocks=1,
        block=part(EncoderBlock, attention=attention, mlp_dim=128, norm="pre", activation="gelu"),
        patch_shape=(PATCH[name],) * 2,
        pooling="mean",
        absolute_positions=False,
        dtype="float32",
        param_dtype="float32",
    )
    config.train.update(total_epochs=30.0, batch_size=128, accumulation_steps=1, eval_batch_size=500)
    config.optimizer = part(Adam, learning_rate=3e-4, weight_decay=0.05, schedule=part(Cosine, warmup_epochs=3.0))
    match variant:
        case "":
            pass
        case "quick":
            config.train.total_epochs = 10.0
        case "tiny":
            config.model.width = 8
            config.model.block.mlp_dim = 16
            config.train.update(total_epochs=0.0, total_steps=2, batch_size=8)
        case _:
            raise ValueError(f'config variant "{variant}": expected none, "quick" or "tiny"')
    return config


def general(**siren: Any) -> ConfigDict:
    """General Translution with 8 matrices."""
    return part(GeneralTranslution, num_bases=8, basis=part(Siren, features=8, **siren))
