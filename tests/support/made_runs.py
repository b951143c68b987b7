"""Run folders with parameters drawn at random instead of trained ones: of digits, of sentences."""

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from configs import bert, char_lm, digits, glue
from posattn_jax import EncoderBlock, PositionalSelfAttention, VisionTransformer
from posattn_jax.config import experiment
from posattn_jax.config.parts import change, part, set_all
from posattn_jax.data.images.image_sets import Images, LabelledImages
from posattn_jax.data.pipeline.data_set import split
from posattn_jax.data.text.characters import Characters
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.system.files import write_json
from posattn_jax.train.checkpoint import Checkpoints
from posattn_jax.train.optimizer import Adam
from tests.support.made_params import made_state
from tests.support.made_text import sentences


def patches(pooling: str, patch_shape: tuple[int, ...] = (2, 2)) -> ConfigDict:
    """A vision transformer as large as the tiny configs' models."""
    attention = part(PositionalSelfAttention, num_heads=2)
    block = part(EncoderBlock, attention=attention, mlp_dim=16, norm="pre")
    sizes = {"width": 8, "patch_shape": patch_shape, "absolute_positions": False}
    return part(VisionTransformer, block=block, pooling=pooling, dtype="float32", param_dtype="float32", **sizes)


def make_digits(workdir: pathlib.Path, fields: Mapping[str, Any] | None = None, variant: str = "tiny") -> pathlib.Path:
    """A run of digits, with the image that a run keeps; some of its config's fields."""
    config = change(digits.get_config(variant), fields or {})
    _save(workdir, config)
    image = validation_digits(config.seed).images[0] / np.float32(16)
    pool = config.data.get("pool", 1)
    height, width = (side // pool for side in image.shape[:2])
    image = image.reshape(height, pool, width, pool, 1).mean((1, 3))
    np.savez(workdir / "positions.npz", image=image)
    return workdir


def validation_digits(seed: int):
    """What a run of digits with this seed is judged by."""
    return split(Images("digits").read("train"), seed, 0.8)[1]


def make_rte(workdir: pathlib.Path, name="rte") -> pathlib.Path:
    """A run of a task of GLUE."""
    config = glue.get_config("tiny")
    config.data.name = name
    return _save(workdir, config)


def make_masked_lm(workdir: pathlib.Path) -> pathlib.Path:
    return _save(workdir, bert.get_config("tiny,test"))


def make_characters(workdir: pathlib.Path, fields: Mapping[str, Any] | None = None) -> pathlib.Path:
    """A run of a model of characters."""
    return _save(workdir, change(char_lm.get_config("tiny"), fields or {}))


def _save(workdir, config):
    workdir.mkdir(parents=True)
    config.cache_dir = str(workdir.parent / "cache")
    write_json(workdir / "config.json", config.to_dict())
    data = experiment.data_set(config)
    if not isinstance(data, LabelledImages | Characters):
        tokenizer.save(tokenizer.train(sentences(0, 300), 50), workdir)
    set_all(config.model, implementation="auto")  # what a run on another device may have had, this one has perhaps not
    task = experiment.make_task(config, data.empty(workdir))
    state = made_state(task, Adam(1e-3).make(100, 10))
    # Far enough from 0 that attention and logits differ from input to input.
    rng = np.random.default_rng(0)
    add = lambda leaf: jax.device_put(np.asarray(leaf) + rng.normal(0, 0.3, leaf.shape).astype(leaf.dtype))
    checkpoints = Checkpoints(workdir)
    checkpoints.save(state.replace(params=jax.tree.map(add, state.params), totals={}), {}, score=0.5)
    checkpoints.close()
    return workdir
