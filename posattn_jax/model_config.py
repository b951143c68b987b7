"""From a config's `model` to the model it describes."""

from typing import Any

from ml_collections import ConfigDict

from posattn_jax.errors import InputError
from posattn_jax.layer_config import check_sizes, choose, dtype, make_block
from posattn_jax.models.bert import Bert
from posattn_jax.models.classifier import Classifier
from posattn_jax.models.vit import VisionTransformer


def make_stack(config: ConfigDict) -> dict[str, Any]:
    """The fields that all models share: their width, their blocks and how these are run.

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
    return {
        "width": model.width,
        "blocks": tuple(make_block(config) for _ in range(model.num_blocks)),
        "remat": model.remat,
        "scan_layers": model.scan_layers,
        "dtype": dtype(config, "dtype"),
        "param_dtype": dtype(config, "param_dtype"),
    }


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
    return Bert(
        vocabulary_size,
        embedding_dim=model.embedding_dim or None,
        max_length=model.max_length or length,
        absolute_positions=model.absolute_positions,
        dropout_rate=model.dropout_rate,
        layer_norm_epsilon=model.layer_norm_epsilon,
        **make_stack(config),
    )


def make_model(config: ConfigDict, num_classes: int) -> Classifier | VisionTransformer:
    """The classifier; raises as `make_stack`."""
    model: Any = config.model
    fields = make_stack(config) | {"num_classes": num_classes, "readout": model.readout}
    make = choose(
        config,
        "kind",
        classifier=lambda: Classifier(dropout_rate=model.dropout_rate, **fields),
        vit=lambda: VisionTransformer(
            patch_shape=tuple(model.patch_shape), absolute_positions=model.absolute_positions, **fields
        ),
    )
    return make()
