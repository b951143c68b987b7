"""A small task on made images, for the tests of the loop."""

import copy
import functools

import jax
import numpy as np

from posattn_jax.data.images import GridImages, ImageSet
from posattn_jax.models.classifier import Classifier
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.encodings import LearnedEncoding
from posattn_jax.nn.span import GaussianSpan
from posattn_jax.nn.terms import Content, Positional
from posattn_jax.tasks.classification import Classification
from posattn_jax.train.loop import Trainer
from posattn_jax.train.optimizer import Adam
from posattn_jax.train.program import Program
from posattn_jax.train.seed_map import SeedData
from posattn_jax.train.settings import Settings
from posattn_jax.train.sharding import AXES


def make_images(num_images=96, seed=0):
    """Images whose bright row tells the label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, num_images)
    images = rng.integers(0, 80, (num_images, 4, 4, 1))
    images[np.arange(num_images), labels] += 150
    return GridImages(ImageSet(images.astype(np.uint8), labels, num_classes=4))


def make_task(dropout_rate=0.1, implementation="auto", **fields):
    terms = (Content(), Positional(LearnedEncoding()))
    attention = PositionalSelfAttention(2, terms=terms, span=GaussianSpan(), implementation=implementation)
    block = EncoderBlock(attention, mlp_dim=16, dropout_rate=dropout_rate)
    model = Classifier(num_classes=4, width=8, blocks=(block,), dropout_rate=dropout_rate)
    return Classification(model, (4, 4), num_channels=1, **fields)


def one_device():
    return jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape([1] * len(AXES)), AXES)


def make_settings(*, total_steps=9, batch_size=8, **settings):
    own = {"total_steps": total_steps, "batch_size": batch_size, "accumulation_steps": 2, "eval_batch_size": 8}
    return Settings(**own | {"log_steps": 2} | settings).decided(1)


@functools.cache
def default_program(**settings):
    return Program(
        make_task(),
        Adam(1e-2).make(100, 10),
        [SeedData(1, make_images(), make_images(20))],
        one_device(),
        make_settings(**settings),
    )


NOT_COMPILED = ("total_steps", "log_steps", "checkpoint_steps", "eval_steps", "keep_checkpoints")


def make_trainer(workdir, *, data=None, mesh=None, task=None, optimizer=None, **settings):
    """Of a run in the folder; or of the data of seeds, each in a folder of its own there.

    Runs that differ in when they evaluate and save, and in nothing else, share what is compiled.
    """
    if data or mesh or task or optimizer:
        program = Program(
            task or make_task(),
            optimizer or Adam(1e-2).make(100, 10),
            data or [SeedData(1, make_images(), make_images(20))],
            mesh or one_device(),
            make_settings(**settings),
        )
    else:
        compiled = {name: value for name, value in settings.items() if name not in NOT_COMPILED}
        program = copy.copy(default_program(**compiled))
        program.settings = make_settings(**settings)
    return Trainer(program, [workdir / str(each.seed) for each in data] if data else [workdir])


def train(workdir, **fields):
    trainer = make_trainer(workdir, **fields)
    try:
        trainer.run()
    finally:
        trainer.close()
    return trainer
