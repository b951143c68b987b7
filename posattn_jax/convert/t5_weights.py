"""The relative bias of T5's encoder (Raffel 2020), from files of Hugging Face's `transformers`."""

import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np

from posattn_jax.convert import files
from posattn_jax.nn.buckets import BucketedBias
from posattn_jax.system.errors import InputError

TABLE = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"


def t5_bias(path: str | pathlib.Path) -> tuple[BucketedBias, dict[str, Any]]:
    """Reads the term that all layers of T5's encoder share, and its parameters. Nothing else of the model is read.

      term, params = convert.t5_bias("folder")
      layer = PositionalSelfAttention(num_heads, terms=(Content(), term), scale=1.0)

    Args:
      path: a folder with model.safetensors, or such a file. A config.json in the folder has the largest distance.

    Raises:
      InputError: there is no such file, or it has no table.
    """
    weights = files.read(path)
    if TABLE not in weights.tensors:
        raise InputError(f"{weights.path}: no encoder of T5: it has no {TABLE}")
    table = np.asarray(weights.tensors[TABLE], np.float32)
    term = BucketedBias(len(table), weights.config.get("relative_attention_max_distance", 128))
    return term, {"table": jnp.asarray(table)}
