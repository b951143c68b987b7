import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs.lib import common
from posattn_jax.config import experiment
from posattn_jax.config.parts import change
from posattn_jax.nn.layers import dropout_rngs
from posattn_jax.system.errors import InputError
from posattn_jax.train.optimizer import Adam, gradient_norms
from posattn_jax.train.schedule import Constant, Cosine, InverseSqrt, Linear, to_steps
from posattn_jax.train.settings import Settings
from posattn_jax.train.sharding import MeshAxes, num_shards
from posattn_jax.train.step import init_state, make_train_step, plan_micro_batches
from tests.support.made_params import made_state
from tests.support.slow import slow
from tests.train.made_run import make_images, make_task


@functools.cache
def step(micro_batches):
    """A task without dropout, and one update by plain gradient descent: gradients are the difference of parameters."""
    task = make_task(dropout_rate=0.0)
    batch = make_images().batch(np.arange(16))
    batch = {name: a.reshape(micro_batches, 16 // micro_batches, *a.shape[1:]) for name, a in batch.items()}
    optimizer = optax.sgd(1.0)
    state = made_state(task, optimizer)
    after, figures = jax.jit(make_train_step(task, optimizer, 2))(state, batch)
    grads = jax.tree.map(np.subtract, *jax.device_get((state.params, after.params)))
    return task, state, grads, after, figures


def test_gradients_of_micro_batches_are_summed():
    task, state, grads, after, figures = step(2)
    batch = make_images().batch(np.arange(16))
    gradient = jax.jit(jax.grad(lambda p, b: task.loss(p, b)[0]))
    halves = slice(0, 8), slice(8, 16)
    means = [gradient(state.params, {name: array[half] for name, array in batch.items()}) for half in halves]
    jax.tree.map(lambda g, a, b: np.testing.assert_allclose(g, a + b, atol=1e-6), grads, *means)
    np.testing.assert_allclose(figures["gradient_norm/all"], jax.jit(optax.global_norm)(grads), rtol=1e-4)
    assert after.step == 1 and after.totals["count"] == 16


def test_one_batch_with_doubled_gradient_equals_two():
    one, two = (step(micro_batches)[2] for micro_batches in (1, 2))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), one, two)


@pytest.mark.slow
def test_micro_batches_differ_in_dropout():
    task = make_task(dropout_rate=0.5)
    batch = make_images().batch(np.zeros(16, int))  # the same image again and again
    optimizer = optax.sgd(0.0)
    state = jax.jit(lambda: init_state(task, optimizer, jax.random.key(0)))()
    train_step = jax.jit(make_train_step(task, optimizer, 2))

    def total(num_micro_batches):
        same = {name: a[: 8 * num_micro_batches].reshape(-1, 8, *a.shape[1:]) for name, a in batch.items()}
        return float(train_step(state, same)[0].totals["loss"])

    assert total(1) == total(1)
    assert total(2) != pytest.approx(2 * total(1), rel=1e-6)


@pytest.mark.parametrize("fields", [{}, slow({"remat": True}), slow({"scan_layers": True})], ids=str)
def test_merged_micro_batches_are_the_same_update(fields):
    """Each with its own dropout, and with the penalty on spans once for each."""
    task = make_task(dropout_rate=0.5, span_penalty=0.3)
    task = dataclasses.replace(task, model=task.model.clone(**fields))
    batch = make_images().batch(np.zeros(24, int))  # one image again and again: only dropout differs
    optimizer = optax.sgd(1.0)
    state = made_state(task, optimizer)

    def updated(micro_batches, is_merged):
        cut = {name: a.reshape(micro_batches, -1, *a.shape[1:]) for name, a in batch.items()}
        return jax.jit(make_train_step(task, optimizer, 3, is_merged=is_merged))(state, cut)

    merged, one_by_one = updated(1, True), updated(3, False)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), merged[1], one_by_one[1])
    chex.assert_trees_all_close(merged[0].params, one_by_one[0].params, atol=1e-5)
    chex.assert_trees_all_close(merged[0].totals, one_by_one[0].totals, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("treatment", common.span_paper_sweep().treatments, ids=lambda treatment: treatment.name)
def test_five_merged_updates_of_the_span_papers_treatments(treatment):
    config = change(common.apply_variant(common.get_config(), "digits"), treatment.fields)
    config.model.num_blocks = 2
    grid_shape = (64,) if config.data.layout == "1d" else (8, 8)
    knows = {"input_shape": grid_shape, "num_channels": 1, "num_classes": 10}
    task, optimizer = experiment.task_of(config, knows, grid_shape), Adam(1e-3).make(100, 100)
    start = made_state(task, optimizer)

    def losses(shape, is_merged):
        step, state = jax.jit(make_train_step(task, optimizer, 2, is_merged=is_merged)), start
        for seed in range(5):
            rng = np.random.default_rng(seed)
            inputs, labels = rng.normal(size=(*shape, 64, 1)).astype(np.float32), rng.integers(10, size=shape)
            state, figures = step(state, {"inputs": inputs, "labels": labels})
            yield float(figures["loss"])

    assert list(losses((1, 40), True)) == pytest.approx(list(losses((2, 20), False)), rel=1e-5)


@pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey])
def test_rngs_of_one_key_and_of_several(make_key):
    keys = jax.random.split(make_key(0), 2)
    assert list(dropout_rngs(keys[0])) == ["dropout"] and list(dropout_rngs(keys)) == ["dropout", "dropout_1"]
    assert jnp.all(dropout_rngs(keys)["dropout_1"] == keys[1]) and dropout_rngs(None) is None


@pytest.mark.parametrize(
    "batch_size, accumulation_steps, shards, expected", [(20, 2, 1, (2, 20)), (20, 2, 4, (2, 20)), (20, 2, 8, (1, 40))]
)
def test_plan(batch_size, accumulation_steps, shards, expected):
    assert plan_micro_batches(batch_size, accumulation_steps, shards) == expected


def test_bad_plan():
    with pytest.raises(InputError, match=r"batch_size=20 x .*accumulation_steps=2: .* 3"):
        plan_micro_batches(20, 2, 3)
    with pytest.raises(ValueError, match="^batch_size=0: "):
        Settings(batch_size=0)


def test_mesh():
    assert dict(MeshAxes().make().shape) == {"data": 8, "fsdp": 1, "model": 1, "grid": 1}
    assert dict(MeshAxes(2, -1, 2).make().shape) == {"data": 2, "fsdp": 2, "model": 2, "grid": 1}
    assert dict(MeshAxes(1, 1, 2, -1).make().shape) == {"data": 1, "fsdp": 1, "model": 2, "grid": 4}
    assert num_shards(MeshAxes(2, 2, 2).make()) == 4
    with pytest.raises(InputError, match="mesh.data=3, .* mesh.grid=1: .* 8"):
        MeshAxes(3).make()


def test_durations():
    assert to_steps("train.total", 0, 2.5, 100) == 250
    assert to_steps("train.total", 7, 2.5, 100) == 7
    assert to_steps("train.total", 0, 0.07, 100) == 7 and to_steps("train.total", 0, 0.071, 100) == 8
    with pytest.raises(InputError, match=r"train.total_steps=-1"):
        to_steps("train.total", -1, 0, 100)


def test_learning_rates(unchecked):
    constant, cosine, linear = (kind(warmup_steps=10)(1.0, 110, 1) for kind in (Constant, Cosine, Linear))
    for rate in (constant, cosine, linear):
        assert rate(0) == 0 and rate(5) == pytest.approx(0.5) and rate(10) == pytest.approx(1)
    assert constant(110) == 1 and cosine(60) == pytest.approx(0.5) and linear(110) == pytest.approx(0)
    assert Constant()(0.3, 10, 1)(0) == pytest.approx(0.3)
    noam = InverseSqrt(warmup_epochs=2.0)(2.0 / np.sqrt(512 * 10), 110, 5)
    for step in (1, 5, 10, 11, 40, 500):  # Vaswani 2017, section 5.3
        assert noam(step) == pytest.approx(2.0 * 512**-0.5 * min(step**-0.5, step * 10**-1.5))
    with pytest.raises(InputError, match="InverseSqrt needs a warm-up"):
        InverseSqrt()(1.0, 10, 1)


@pytest.mark.parametrize("field, value", [("learning_rate", -1.0), ("clip_norm", -1.0), ("weight_decay", -0.1)])
def test_an_optimizer_that_would_climb(field, value):
    with pytest.raises(ValueError, match=f"^{field}={value}: expected 0 or more"):
        Adam(**{field: value})


def test_a_mean_of_gradients_that_would_grow():
    with pytest.raises(ValueError, match=r"^b2=1.0: expected 0 or more, and less than 1"):
        Adam(b2=1.0)


def test_optimizer_is_the_papers_adam():
    params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    grads = {"kernel": jnp.array([[1.0, -3.0], [0.5, 2.0]]), "bias": jnp.array([4.0, -4.0])}
    adam = Adam(1e-3).make(100, 10)
    updates, _ = jax.jit(lambda: adam.update(grads, adam.init(params), params))()
    for name, update in updates.items():  # the first step of Adam is the sign of the gradient
        np.testing.assert_allclose(update, -1e-3 * np.sign(grads[name]), rtol=1e-4)


def test_moments_of_bfloat16_parameters_fall(unchecked):
    """In bfloat16 the second moment stayed where it was, and these steps were a quarter of what they should be."""
    params = {"kernel": jnp.zeros(1, jnp.bfloat16)}
    optimizer = Adam().make(10, 1)
    gradients = jnp.concatenate([jnp.ones(1000), jnp.full(3000, 1e-2)]).astype(jnp.bfloat16)

    def update(state, gradient):
        updates, state = optimizer.update({"kernel": gradient[None]}, state, params)
        return state, updates["kernel"][0]

    _, updates = jax.jit(lambda: jax.lax.scan(update, optimizer.init(params), gradients))()
    second = np.convolve(np.asarray(gradients, float) ** 2, 1e-3 * 0.999 ** np.arange(4000))[3999]
    assert float(updates[-1]) == pytest.approx(-1e-5 / np.sqrt(second / (1 - 0.999**4000)), rel=1e-2)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_spans_and_terms_have_learning_rates_of_their_own(weight_decay):
    """At every step of a schedule, in proportion; other parameters keep theirs."""
    params = {"span": {"sigma": jnp.full(2, 0.3)}, "kernel": jnp.ones((2, 2))}
    params |= {name: {"a": jnp.full(2, 0.3)} for name in ("terms_1", "terms_positional", "values")}
    rates = {"learning_rate": 1e-2, "weight_decay": weight_decay, "schedule": Linear(warmup_steps=3)}
    own = {"span_learning_rate": 1e-3, "terms_learning_rate": 2e-2}
    plain, own = (Adam(**rates, **more).make(10, 10) for more in ({}, own))
    states, updated = [plain.init(params), own.init(params)], (jax.jit(plain.update), jax.jit(own.update))
    for step in range(5):
        grads = jax.tree.map(lambda array: jnp.sin(array + step), params)  # noqa: B023
        (expected, states[0]), (updates, states[1]) = (
            update(grads, state, params) for update, state in zip(updated, states, strict=True)
        )
        np.testing.assert_array_equal(updates["kernel"], expected["kernel"])
        np.testing.assert_allclose(updates["span"]["sigma"], 0.1 * expected["span"]["sigma"], rtol=1e-6)
        for name in ("terms_1", "terms_positional", "values"):
            np.testing.assert_allclose(updates[name]["a"], 2 * expected[name]["a"], rtol=1e-6)
    assert expected["span"]["sigma"].all()
    with pytest.raises(ValueError, match="terms_learning_rate=0.02: .*learning_rate"):
        Adam(learning_rate=0.0, terms_learning_rate=2e-2)


def test_clipping_spares_spans():
    """Their gradients neither are clipped nor make those of weights smaller; with `clips_spans` they do."""
    gradients = {"kernel": jnp.asarray([0.6, 0.8]), "attention": {"span": {"sigma": jnp.asarray([10.0])}}}
    for clips_spans, clip_norm, kernel, sigma in (
        (False, 1.0, 1.0, 1.0),
        (False, 0.5, 0.5, 1.0),
        (True, 1.0, 101**-0.5, 101**-0.5),
        (False, 0.0, 1.0, 1.0),
    ):
        adam = Adam(1.0, eps=1e6, clip_norm=clip_norm, clips_spans=clips_spans).make(100, 10)
        updates, _ = adam.update(gradients, adam.init(gradients), gradients)  # with a huge eps it divides by it alone
        np.testing.assert_allclose(updates["kernel"], -1e-6 * kernel * gradients["kernel"], rtol=1e-3)
        np.testing.assert_allclose(updates["attention"]["span"]["sigma"], -1e-5 * sigma, rtol=1e-3)
    norms = gradient_norms(gradients | {"encoding": {"omega_1": jnp.asarray(3.0)}})
    assert {name: round(float(norm), 3) for name, norm in norms.items()} == {
        "all": 10.488,
        "rest": 1.0,
        "span": 10.0,
        "omega": 3.0,
    }
    assert gradient_norms({"kernel": jnp.ones(1)}).keys() == {"all"}


def test_decay_spares_biases_and_spans_and_clipping_bounds_the_norm():
    """Of any shape: those of heads, and of stacked layers, have more axes than one."""
    spared = {"bias": jnp.ones(2), "span": {"cholesky": jnp.ones((2, 2))}}
    names = ("bias", "bias_0", "query_bias", "key_value_bias", "scale", "u", "v", "log_a")
    spared |= {name: {last: jnp.ones((3, 2))} for name, last in enumerate(names)}
    params = {"kernel": jnp.ones((2, 2)), **{str(name): each for name, each in spared.items()}}
    zeros = jax.tree.map(jnp.zeros_like, params)
    decay = Adam(1e-1, weight_decay=0.5).make(100, 10)
    decayed, _ = jax.jit(lambda: decay.update(zeros, decay.init(params), params))()
    np.testing.assert_allclose(decayed["kernel"], -0.05, rtol=1e-5)
    for array in jax.tree.leaves({name: each for name, each in decayed.items() if name != "kernel"}):
        np.testing.assert_array_equal(array, 0)
    # With a huge eps Adam divides by it alone.
    clipped = Adam(1.0, eps=1e6, clip_norm=1.0, clips_spans=True).make(100, 10)
    large = jax.tree.map(lambda a: 100 * a, params)
    updates, _ = jax.jit(lambda: clipped.update(large, clipped.init(params), params))()
    np.testing.assert_allclose(optax.global_norm(updates), 1e-6, rtol=1e-3)
