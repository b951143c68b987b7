"""A config's bad fields, each told in one line that names the field, what was given and what is allowed."""

import pytest

from configs import digits, reconstruction
from posattn_jax import experiment
from posattn_jax.errors import InputError


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("task", "regression", 'task="regression": expected "classification" or "reconstruction"'),
        ("seed", -1, "seed=-1: expected 0 or more"),
        ("data.pool", 3, r"data.pool=3: does not divide the image size \(8, 8\)"),
        ("data.layout", "3d", 'data.layout="3d": expected "1d" or "2d"'),
        (
            "data.name",
            "digit",
            'data.name="digit": expected digits, mnist, .*moving_mnist, moving_mnist_clips or tfds/NAME',
        ),
        ("data.shift", "left", 'data.shift="left": expected "none" or "halves"'),
        ("data.seed", -1, "data.seed=-1: expected 0 or more"),
        ("model.num_blocks", 0, "model.num_blocks=0: expected at least 1"),
        ("model.num_heads", 3, "model.num_heads=3 does not divide model.width=8"),
        ("model.readout", "first", 'readout="first": expected "last", "mean" or "max"'),
        ("model.norm", "middle", 'norm="middle": expected "post" or "pre"'),
        ("model.terms", ("content", "rotary"), "model.terms=.*: expected some of"),
        ("model.implementation", "fast", 'implementation="fast": expected one of auto, dense, factorised'),
        ("model.encoding.kind", "rope", 'model.encoding.kind="rope": expected'),
        ("model.encoding.omega", 0.0, "model: omega=0.0, omega_initial=10.0: expected other values than 0"),
        ("model.encoding.hidden_features", -1, "model: hidden_features=-1: expected at least 1"),
        ("model.span.threshold", 1.5, "threshold=1.5: expected less than 1"),
        ("model.span.covariance", "round", 'model: covariance="round": expected "diagonal" or "full"'),
        ("model.span.initial_sigma", 0.0, "model.span.initial_sigma=0: expected another value"),
        ("model.dropout_rate", 1.0, "model.dropout_rate=1.0: expected at least 0 and less than 1"),
        ("model.attention_dropout_rate", 1.5, "model.attention_dropout_rate=1.5: expected at least 0"),
        ("model.dtype", "int8", 'model.dtype="int8": expected "float32" or "bfloat16"'),
        ("train.total_steps", -1, "train.total_steps=-1"),
        ("train.accumulation_steps", 0, "train.accumulation_steps=0: expected at least 1"),
        ("optimizer.schedule", "step", 'optimizer.schedule="step": expected "constant", "cosine" or "linear"'),
    ],
)
def test_bad_field(unchecked, field, value, message):
    config = digits.get_config("tiny")
    config.update_from_flattened_dict({field: value})
    with pytest.raises(InputError, match=message):
        sources = experiment.load_sources(config)
        experiment.make_task(config, sources["train"])
        settings = experiment.make_settings(config, 100)
        experiment.make_optimizer(config, settings, 100)


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("seed", -1, "seed=-1: expected 0 or more"),
        ("data.grid_shape", (), r"data.grid_shape=\(\): expected one to 3 sizes, each at least 1"),
        ("data.grid_shape", (4, 0), r"data.grid_shape=\(4, 0\): expected one to 3 sizes, each at least 1"),
        ("data.grid_shape", (1, 1), r"data.grid_shape=\(1, 1\): expected more than one position"),
        ("model.width", 0, "model.width=0: expected at least 1"),
        ("model.width", 7, 'num_features=7: combine="concat" needs a multiple of 2 dimensions'),
        ("model.param_dtype", "int8", 'model.param_dtype="int8": expected "float32" or "bfloat16"'),
        ("model.encoding.combine", "mean", 'combine="mean": expected "sum" or "concat"'),
        ("model.encoding.hidden_features", -1, "model: hidden_features=-1: expected at least 1"),
        ("model.encoding.num_layers", 1, "model: num_layers=1: a SIREN has at least 2"),
        ("model.encoding.omega_initial", 0.0, "model: omega=10.0, omega_initial=0.0: expected other values than 0"),
        ("model.encoding.bias_init", "ones", 'model: bias_init="ones": expected "zeros" or "ckconv"'),
    ],
)
def test_bad_field_of_a_reconstruction(unchecked, field, value, message):
    config = reconstruction.get_config("tiny")
    config.update_from_flattened_dict({field: value})
    with pytest.raises(InputError, match=f"^{message}"):
        experiment.make_task(config, experiment.load_sources(config)["train"])


def test_a_price_needs_a_span():
    config = digits.get_config("tiny")
    config.model.span.enabled = False
    config.model.span.penalty = 0.1
    sources = experiment.load_sources(config)
    with pytest.raises(InputError, match=r"model.span.penalty=0.1: model.span.enabled is False"):
        experiment.make_task(config, sources["train"])
