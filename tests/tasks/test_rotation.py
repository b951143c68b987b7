"""By how much an image is turned, against loops over images and quarter turns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from configs import rotation
from posattn_jax.config import experiment
from posattn_jax.config.parts import change, part
from posattn_jax.system.errors import InputError
from posattn_jax.tasks.rotation import Rotation
from posattn_jax.use import trained
from tests.support.made_runs import make_digits


def load(**fields):
    config = change(rotation.get_config("tiny"), fields)
    source = experiment.load_sources(config)["train"]
    return experiment.make_task(config, source), source


@pytest.mark.slow
def test_loss_and_accuracy_equal_the_oracle():
    task, source = load()
    params = jax.jit(task.init)(jax.random.key(0))
    moved = lambda x: np.asarray(x) + 0.3 * np.random.default_rng(x.size).normal(size=x.shape)
    params = jax.tree.map(lambda x: jnp.asarray(moved(x), x.dtype), params)
    batch = source.batch(np.arange(3)) | {"weights": np.array([1.0, 0.0, 1.0], np.float32)}
    apply = jax.jit(lambda inputs: task.apply(params, {"inputs": inputs})[0])
    side, losses, correct = source.grid_shape[0], [], 0
    for example in (0, 2):
        image = batch["inputs"][example].reshape(side, side)
        for turns in range(4):
            turned = np.array([[image[turns_back(r, c, turns, side)] for c in range(side)] for r in range(side)])
            logits = np.asarray(apply(turned.reshape(1, side * side, 1)), float)[0]
            losses.append(-log_softmax(logits)[turns])
            correct += int(np.argmax(logits) == turns)
    loss, totals = jax.jit(task.loss)(params, batch)
    assert task.model.num_classes == 4
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-5)
    assert float(totals["count"]) == 8 and float(totals["correct"]) == correct


def turns_back(row, column, turns, side):
    """Where a pixel was before so many quarter turns to the left."""
    for _ in range(turns):
        row, column = column, side - 1 - row
    return row, column


@pytest.mark.slow
def test_gradients_reach_every_parameter_and_labels_mean_nothing():
    task, source = load()
    params, batch = jax.jit(task.init)(jax.random.key(0)), source.batch(np.arange(4))
    other = batch | {"labels": batch["labels"][::-1]}
    gradient = jax.jit(jax.grad(lambda params, batch: task.loss(params, batch)[0]))
    for found, same in zip(*(jax.tree.leaves(gradient(params, each)) for each in (batch, other)), strict=True):
        np.testing.assert_array_equal(found, same)
        assert jnp.isfinite(found).all()
    assert float(jnp.abs(gradient(params, batch)["head_output"]["kernel"]).max()) > 0


@pytest.mark.slow
def test_a_run_tells_by_how_much_an_image_is_turned(tmp_path):
    run = trained.of_run(make_digits(tmp_path / "run", {"task": part(Rotation)}))
    assert run.names == ("0 degrees", "90 degrees", "180 degrees", "270 degrees") and run.task.model.num_classes == 4
    assert run.prediction(np.array([0.0, 0.0, 9.0, 0.0]))["name"] == "180 degrees"


def test_images_that_cannot_be_turned():
    with pytest.raises(InputError, match=r"^task.input_shape=\(16,\): .*square"):
        load(**{"data.layout": "1d"})
