"""Trainable parameters of the paper's models, exactly as its code has them."""

import math

import jax
import pytest

from configs import (
    cifar1d_baseline,
    cifar1d_siren,
    cifar1d_span,
    cifar1d_span_nothreshold,
    cifar2d_siren,
    cifar2d_span,
    cifar2d_span_nothreshold,
)
from posattn_jax import experiment
from posattn_jax.tasks.classification import Classification

COUNTS = {
    cifar1d_baseline: 231_754,
    cifar1d_siren: 257_482,
    cifar1d_span_nothreshold: 257_488,
    cifar1d_span: 257_488,
    cifar2d_siren: 257_866,
    cifar2d_span_nothreshold: 257_878,
    cifar2d_span: 257_878,
}


@pytest.mark.parametrize("module", COUNTS, ids=lambda module: module.__name__)
@pytest.mark.parametrize("scan_layers", [False, True])
def test_parameter_count(module, scan_layers):
    config = module.get_config()
    config.model.scan_layers = scan_layers
    grid_shape = {"1d": (1024,), "2d": (32, 32)}[config.data.layout]
    task = Classification(experiment.make_model(config, num_classes=10), grid_shape, num_channels=3)
    params = jax.eval_shape(task.init, jax.random.key(0))
    assert sum(math.prod(array.shape) for array in jax.tree.leaves(params)) == COUNTS[module]
