"""Trainable parameters of the paper's models, exactly as its code has them."""

import itertools
import math

import jax
import pytest

from configs import cifar2d_span, translution
from configs.lib import common_vit
from posattn_jax import Classifier, LowRankTranslution, VisionTransformer
from posattn_jax.config.experiment import build_model, table_shapes
from posattn_jax.config.parts import change, part
from posattn_jax.tasks.classification import Classification
from tests.support.slow import slow

# Of the treatments of configs/cifar2d_span.py.
COUNTS = {
    "baseline_1d": 231_754,
    "siren_1d": 257_482,
    "gaussian_1d": 257_488,
    "span_1d": 257_488,
    "siren_2d": 257_866,
    "gaussian_2d": 257_878,
    "span_2d": 257_878,
}


def model_of(config, num_classes, grid_shape):
    known = {"num_classes": num_classes} | table_shapes(config, grid_shape)
    return build_model(config, (Classifier, VisionTransformer), **known)


CASES = [("baseline_1d", True), ("siren_1d", True), ("span_1d", True), ("span_2d", False)]
CASES += [slow(*case) for case in itertools.product(COUNTS, (True, False)) if case not in CASES]


@pytest.mark.parametrize("treatment, scan_layers", CASES)
def test_parameter_count(treatment, scan_layers):
    config = change(cifar2d_span.get_config(), cifar2d_span.sweep().treatment(treatment).fields)
    config.model.scan_layers = scan_layers
    grid_shape = {"1d": (1024,), "2d": (32, 32)}[config.data.layout]
    task = Classification(model_of(config, 10, grid_shape), grid_shape, num_channels=3)
    params = jax.eval_shape(task.init, jax.random.key(0))
    assert sum(math.prod(array.shape) for array in jax.tree.leaves(params)) == COUNTS[treatment]


# Fan 2025, depth 1, read from a class token: (Transformer, Translution), and what each further layer adds.
TRANSLUTION = {
    "mnist": ((28, 28), 1, 10, (34_476, 242_284), (29_120, 238_016)),
    "cifar10": ((32, 32), 3, 10, (43_914, 251_722), (29_120, 238_016)),
    "cifar100": ((32, 32), 3, 100, (49_764, 257_572), (29_120, 238_016)),
    "moving_mnist": ((64, 64), 1, 10, (38_538, 964_170), (29_120, 958_912)),
}


CASES = [("moving_mnist", 3, True), ("mnist", 1, False), ("cifar100", 3, False), ("cifar10", 3, True)]
FURTHER = itertools.product(TRANSLUTION, (1, 3), (False, True))
CASES += [slow(*case) for case in FURTHER if case not in CASES]


@pytest.mark.parametrize("name, depth, scan_layers", CASES)
def test_parameter_count_of_translution(name, depth, scan_layers):
    shape, channels, num_classes, *counts = TRANSLUTION[name]
    for changes, first, further in zip((common_vit.TRANSFORMER, {}), *counts, strict=True):
        config = common_vit.get_config(name.removeprefix("moving_"))
        change(config, changes | (common_vit.MOVING if name == "moving_mnist" else {}))
        config.model.update(pooling="class", num_blocks=depth, scan_layers=scan_layers)
        task = Classification(model_of(config, num_classes, shape), shape, channels)
        params = jax.eval_shape(task.init, jax.random.key(0))
        assert sum(math.prod(array.shape) for array in jax.tree.leaves(params)) == first + (depth - 1) * further


def test_parameter_count_of_the_authors_low_rank():
    """LoR-Translution's code, lor_v_tiny: 224 x 224 pixels in patches of 56, three heads of 64, rank 8."""
    config = common_vit.get_config("cifar10")
    config.model.update(pooling="class", num_blocks=6, width=192, patch_shape=(56, 56))
    config.model.block.mlp_dim = 768
    config.model.block.attention.update(num_heads=3, use_output=True)
    change(config, {common_vit.VALUES: part(LowRankTranslution, rank=8, down_dim=24, mix_heads=True)})
    task = Classification(model_of(config, 1000, (224, 224)), (224, 224), 3)
    params = jax.eval_shape(task.init, jax.random.key(0))
    assert sum(math.prod(array.shape) for array in jax.tree.leaves(params)) == 4_920_040


def test_parameter_count_of_imagenets_size():
    """Low rank: 57 million; a matrix for every displacement: 1.7 billion."""
    counts = []
    for variant in ("", "full"):
        task = Classification(model_of(translution.get_config(f"imagenet,{variant}"), 1000, (64, 64)), (64, 64), 3)
        params = jax.eval_shape(task.init, jax.random.key(0))
        counts.append(sum(math.prod(array.shape) for array in jax.tree.leaves(params)))
    width, displacements = 384, 31**2
    low_rank = width**2 + width * 64 + displacements * 64 * 48 + 48 * 64
    assert counts[1] - counts[0] == 12 * (displacements * width**2 - low_rank)
    assert counts == [57_443_272, 1_720_378_312]
