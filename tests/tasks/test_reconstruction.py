import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import reconstruction
from posattn_jax.config import experiment
from posattn_jax.config.parts import change
from posattn_jax.data.pipeline.batches import Source, evaluation_batches
from posattn_jax.nn.siren import Siren
from posattn_jax.ops.encodings import frequencies, relative_sinusoids
from posattn_jax.tasks.reconstruction import Reconstruction
from posattn_jax.tasks.task import Task
from posattn_jax.train.optimizer import Adam
from posattn_jax.train.seed_map import SeedData
from posattn_jax.train.step import init_state, make_train_step
from tests import oracle
from tests.support.recorded import figures_of
from tests.train.made_run import train


def load(grid_shape=(4, 4), **fields):
    """The task of the tiny config on a grid, and its offsets."""
    config = reconstruction.get_config("tiny")
    config.data.grid_shape = grid_shape
    change(config, fields)
    source = experiment.load_sources(config)["train"]
    return experiment.make_task(config, source), source


def whole(source):
    return {name: jnp.asarray(array) for name, array in source.batch(np.arange(len(source))).items()}


def test_source_is_the_baselines_encoding():
    """E of every offset is linear in its sinusoids, and the seed draws how."""
    task, source = load((3, 4))
    assert isinstance(source, Source) and isinstance(task, Task)
    assert source.grid_shape == (3, 4) and len(source) == 5 * 7
    batch = source.batch(np.array([0, 34, 17]))
    np.testing.assert_allclose(batch["inputs"], [[-1, -1], [1, 1], [0, 0]])
    features = np.asarray(relative_sinusoids((3, 4), 8)).reshape(35, 8)
    inputs = np.concatenate([features, np.ones((35, 1))], axis=1)
    fitted = inputs @ np.linalg.lstsq(inputs, source.targets, rcond=None)[0]
    np.testing.assert_allclose(fitted, source.targets, atol=1e-5)
    np.testing.assert_array_equal(source.targets, load((3, 4))[1].targets)
    assert not np.allclose(source.targets, load((3, 4), seed=1)[1].targets)


def test_loss_and_gradients_equal_the_oracle(float64):
    rng = np.random.default_rng(0)
    task = Reconstruction(Siren(3, hidden_features=2, param_dtype=jnp.float64), (2, 2))
    params = {name: np.asarray(array) for name, array in jax.jit(task.init)(jax.random.key(0)).items()}
    x, targets, weights = rng.uniform(-1, 1, (4, 2)), rng.normal(size=(4, 3)), np.array([1, 1, 0, 1.0])

    def loss(params):
        total = 0
        for i in range(4):
            if weights[i]:
                features = oracle.siren(params, x[i])
                for c in range(3):
                    total = total + (features[c] - targets[i, c]) ** 2
        return total / (3 * 3)

    expected, gradients = oracle.value_and_gradients(loss, params)
    batch = {"inputs": x, "targets": targets, "weights": weights}
    (value, _), found = jax.jit(jax.value_and_grad(task.loss, has_aux=True))(params, batch)
    np.testing.assert_allclose(value, np.squeeze(expected), atol=1e-12)
    for name, gradient in found.items():
        np.testing.assert_allclose(gradient, gradients[name], atol=1e-10, err_msg=name)


def test_totals_add_up_over_unequal_batches():
    """The last of the batches is padded; "explained" is about the means over all offsets, not over a batch's."""
    task, source = load((3, 3))
    params = jax.jit(task.init)(jax.random.key(0))
    totals, loss = task.zero_totals(), jax.jit(task.loss)
    for batch in evaluation_batches(source, 10):
        totals = jax.tree.map(np.add, totals, jax.device_get(loss(params, batch)[1]))
    fitted = jax.jit(task.model.apply)({"params": params}, source.coordinates)
    errors = np.asarray(fitted, float) - source.targets
    variation = np.sum((source.targets - source.targets.mean(0, dtype=float)) ** 2)
    summary = task.summarise(jax.device_get(totals))
    assert summary["loss"] == pytest.approx(np.mean(errors**2), rel=1e-5)
    assert summary["explained"] == pytest.approx(1 - np.sum(errors**2) / variation, rel=1e-5)


def test_the_mean_explains_nothing():
    task, source = load((4,))
    shapes = jax.eval_shape(lambda: task.init(jax.random.key(0)))
    params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    params["bias_3"] = source.targets.mean(0).astype(np.float32)
    assert task.summarise(jax.jit(task.loss)(params, whole(source))[1])["explained"] == pytest.approx(0, abs=1e-5)


def test_a_siren_can_be_the_baseline():
    """In one dimension (Alfons 2022, section 6): its first layer the sinusoids, a cosine a shifted sine; then W and b.

    sin(w_j (offset + S - 1)) = sin(omega (x W_1 + b_1)) with omega W_1 = w_j (S - 1) and omega b_1 = w_j (S - 1).
    """
    _, source = load((6,))
    task = Reconstruction(Siren(8, num_layers=2), (6,))
    angles = np.repeat(np.asarray(frequencies(8)), 2) * 5 / task.model.omega_initial
    shifts = np.tile([0, math.pi / 2], 4) / task.model.omega_initial
    inputs = np.concatenate([np.asarray(relative_sinusoids((6,), 8)), np.ones((11, 1))], axis=1)
    projection = np.linalg.lstsq(inputs, source.targets, rcond=None)[0]
    params = {
        "kernel_1": angles[None],
        "bias_1": angles + shifts,
        "kernel_2": projection[:-1],
        "bias_2": projection[-1],
    }
    params = {name: jnp.asarray(array, jnp.float32) for name, array in params.items()}
    assert task.summarise(jax.jit(task.loss)(params, whole(source))[1])["explained"] == pytest.approx(1, abs=1e-6)


def fit(workdir, seeds=(1,), **settings):
    """The states after two epochs of 12 updates and a half, with the E of each seed."""
    made = [load((100,), seed=seed) for seed in seeds]
    data = [SeedData(seed, source, source) for seed, (_, source) in zip(seeds, made, strict=True)]
    fields = {"total_steps": 30, "log_steps": 5, "eval_steps": 12} | settings
    return jax.device_get(train(workdir, task=made[0][0], data=data, **fields).states)


@pytest.mark.slow
def test_offsets_on_the_device_change_no_bit(tmp_path):
    """Nor do blocks of several updates."""
    settings = {"read": {"resident_mib": 0}, "resident": {"resident_mib": 1, "dispatch_steps": 16}}
    states = [fit(tmp_path / name, **each)[0] for name, each in settings.items()]
    jax.tree.map(np.testing.assert_array_equal, *states)
    figures = [figures_of(tmp_path / name / "1") for name in settings]
    assert figures[0] == figures[1] and {row["name"] for row in figures[0]} == {"loss", "explained", "all"}


@pytest.mark.slow
def test_vmapped_seeds_fit_their_own_encodings(tmp_path):
    states = fit(tmp_path / "vmapped", seeds=(1, 2), resident_mib=1)
    for seed, state in zip((1, 2), states, strict=True):
        (alone,) = fit(tmp_path / "alone", seeds=(seed,))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), state, alone)
        made, expected = (figures_of(tmp_path / name / str(seed)) for name in ("vmapped", "alone"))
        values = [[row.pop("value") for row in rows] for rows in (made, expected)]
        assert made == expected and made
        np.testing.assert_allclose(*values, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("grid_shape", [(8,), (3, 4)], ids=str)
def test_training_fits_a_small_grid(grid_shape):
    task, source = load(grid_shape, **{"model.hidden_features": 32})
    optimizer = Adam(1e-2).make(100, 10)
    train_step = jax.jit(make_train_step(task, optimizer, 1))
    state = jax.jit(lambda: init_state(task, optimizer, jax.random.key(0)))()
    batch = {name: array[None] for name, array in whole(source).items()}
    for _ in range(200):
        state, _ = train_step(state, batch)
    assert task.summarise(jax.jit(task.loss)(state.params, whole(source))[1])["explained"] > 0.95


def test_describes_the_fit_where_pictures_look_for_it():
    task, source = load((3, 4))
    params = jax.jit(task.init)(jax.random.key(0))
    made = jax.jit(task.describe)(params)
    encoding = made["block_0"]["relative_encoding"]
    assert encoding.shape == (5, 7, 1, 8)
    fitted = jax.jit(task.model.apply)({"params": params}, whole(source)["inputs"])  # row-major, as the source is
    np.testing.assert_allclose(encoding.reshape(35, 8), fitted, atol=1e-6)
    assert task.spans(made) == {} and task.half_spans(params) == [] and task.within(()) is task


def test_settings_of_the_siren_are_read():
    task, _ = load(
        **{
            "model.hidden_features": 5,
            "model.num_layers": 4,
            "model.omega": 3.0,
            "model.omega_initial": 7.0,
            "model.bias_init": "ckconv",
            "model.learn_omega": True,
        }
    )
    assert task.model == Siren(8, 5, 4, 3.0, 7.0, "ckconv", True)
