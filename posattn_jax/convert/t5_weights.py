"""The relative bias of T5's encoder (Raffel 2020), from files of Hugging Face's `transformers`."""

import logging
import pathlib
from typing import Any

import numpy as np

from posattn_jax.convert import files, tensors
from posattn_jax.convert.tensors import same
from posattn_jax.nn.biases import BucketedBias
from posattn_jax.system.errors import InputError

TABLE = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
NUM_BUCKETS, MAX_DISTANCE = "relative_attention_num_buckets", "relative_attention_max_distance"

_logger = logging.getLogger(__name__)


def t5_bias(path: str | pathlib.Path) -> tuple[BucketedBias, dict[str, Any]]:
    """Reads the term that all layers of T5's encoder share, and its parameters.

    Nothing else of the model is read: a warning says how many tensors are left out.

      term, params = convert.t5_bias("folder")
      layer = PositionalSelfAttention(num_heads, terms=(Content(), term), scale=1.0)

    Args:
      path: a folder with model.safetensors, or such a file. A config.json in the folder has the largest distance.

    Raises:
      InputError: there is no such file, it has no table, or it has a table for each layer (UMT5), or its
        config.json has other numbers of buckets or heads than the table, or a distance that is too small.
    """
    weights = files.read(path)
    if TABLE not in weights.tensors:
        raise InputError(f"{weights.path}: no encoder of T5: it has no {TABLE}")
    if TABLE.replace("block.0", "block.1") in weights.tensors:
        raise InputError(f"{weights.path}: has a table for each layer: expected one that all layers share")
    num_buckets, num_heads = weights.shape(TABLE, 2)
    weights.check({NUM_BUCKETS: num_buckets, "num_heads": num_heads})
    if len(weights.tensors) > 1:
        _logger.warning("%s: left out: %d tensors other than %s", weights.path, len(weights.tensors) - 1, TABLE)
    table = {TABLE: weights.tensors[TABLE]}
    params = tensors.take([same("table", TABLE)], {"table": table[TABLE]}, table, weights.path)
    max_distance = weights.setting(MAX_DISTANCE, 128)
    try:
        return BucketedBias(num_buckets, max_distance), params
    except ValueError as error:
        raise InputError(f"{weights.path}: {error}") from error


def save_t5_bias(folder: str | pathlib.Path, term: BucketedBias, params: dict[str, Any]) -> pathlib.Path:
    """Writes the table to model.safetensors, under its name in T5's encoder, and the term's sizes to config.json.

    Nothing else of T5 is in the file. `transformers` loads it into a T5 with `load_state_dict(..., strict=False)`.

    Returns:
      The path of model.safetensors.

    Raises:
      InputError: the table is not that of a sequence.
    """
    if params["table"].ndim != 2:
        raise InputError(f"table {list(params['table'].shape)}: expected [buckets heads], of a sequence")
    sizes = {NUM_BUCKETS: term.num_buckets, MAX_DISTANCE: term.max_distance}
    return files.write(folder, {TABLE: np.asarray(params["table"])}, sizes)
