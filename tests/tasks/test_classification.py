import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import log_softmax

from posattn_jax.models.classifier import Classifier
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.span import GaussianSpan
from posattn_jax.ops.span import span_share
from posattn_jax.tasks.classification import Classification
from posattn_jax.train.optimizer import Adam
from posattn_jax.train.step import init_state, make_train_step
from tests.support.made_params import made_params
from tests.support.slow import slow


def make_task(span=True, covariance="diagonal", per_head=False, **fields):
    span = GaussianSpan(covariance=covariance, per_head=per_head) if span else None
    block = EncoderBlock(PositionalSelfAttention(2, span=span), mlp_dim=8, dropout_rate=0.3)
    model = Classifier(num_classes=3, width=8, blocks=(block,), dropout_rate=0.3)
    return Classification(model, (2, 3), num_channels=2, **fields)


BATCH = {
    "inputs": jnp.asarray(np.random.default_rng(0).normal(size=(5, 6, 2)), jnp.float32),
    "labels": jnp.array([0, 1, 2, 0, 1]),
}


def init(task):
    return made_params(lambda: task.init(jax.random.key(1)))


@pytest.fixture(scope="module")
def plain():
    """A task, parameters, and its loss, traced once for all tests."""
    task = make_task()
    return task, init(task), jax.jit(task.loss)


def test_loss_and_totals(plain):
    task, params, loss_of = plain
    loss, totals = loss_of(params, BATCH, None)
    logits = jax.jit(lambda p: task.model.apply({"params": p}, BATCH["inputs"], (2, 3)))(params)
    losses = -log_softmax(logits, -1)[np.arange(5), BATCH["labels"]]
    np.testing.assert_allclose(loss, losses.mean(), rtol=1e-5)
    summary = task.summarise(totals)
    assert summary["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert summary["accuracy"] == pytest.approx(float((logits.argmax(-1) == BATCH["labels"]).mean()))
    assert not np.allclose(loss_of(params, BATCH, jax.random.key(0))[0], loss), "dropout is on with an rng"


def test_weights_leave_out_padding(plain):
    _, params, loss_of = plain
    padded = {name: np.concatenate([array, array[:2]]) for name, array in BATCH.items()}
    padded["weights"] = np.float32([1, 1, 1, 1, 1, 0, 0])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
        loss_of(params, padded, None),
        loss_of(params, BATCH, None),
    )


def test_span_penalty_shrinks_spans(plain):
    task, params, _ = plain
    priced = dataclasses.replace(task, span_penalty=2.0)
    sigma = params["blocks_0"]["attention"]["span"]["sigma"]
    (free, free_gradient), (bound, bound_gradient) = (
        jax.jit(jax.value_and_grad(lambda p, t=t: t.loss(p, BATCH)[0]))(params) for t in (task, priced)
    )
    np.testing.assert_allclose(bound - free, 2 * span_share(sigma, 0.1), rtol=1e-4)
    free, bound = (g["blocks_0"]["attention"]["span"]["sigma"] for g in (free_gradient, bound_gradient))
    assert (bound > free).all()
    without = make_task(span=False, span_penalty=1.0)
    with pytest.raises(ValueError, match="no span to penalise"):
        jax.eval_shape(lambda: without.loss(without.init(jax.random.key(0)), BATCH))


@pytest.mark.slow
def test_span_penalty_rises_in_its_warmup(plain):
    """An update of training has the penalty of its step; a loss by itself has all of it."""
    optimizer, batch = optax.sgd(1.0), jax.tree.map(lambda x: x[None], BATCH)

    def loss_by_step(**fields):
        task = make_task(**fields)
        state = jax.eval_shape(lambda: init_state(task, optimizer, jax.random.key(1)))
        state = jax.tree.map(jnp.zeros_like, state).replace(params=params)
        update = jax.jit(make_train_step(task, optimizer, 1))
        return lambda step: float(update(state.replace(step=jnp.array(step)), batch)[1]["loss"])

    _, params, loss_of = plain
    rising = {"span_penalty": 2.0, "span_penalty_warmup_steps": 4}
    share = float(span_share(params["blocks_0"]["attention"]["span"]["sigma"], 0.1))
    priced, free = loss_by_step(**rising), loss_by_step()
    for step, part in ((0, 0.0), (1, 0.25), (4, 1.0), (9, 1.0)):
        np.testing.assert_allclose(priced(step) - free(step), 2 * part * share, atol=1e-5)
    whole = jax.jit(make_task(**rising).loss)(params, BATCH)[0] - loss_of(params, BATCH, None)[0]
    np.testing.assert_allclose(whole, 2 * share, rtol=1e-4)


@pytest.mark.parametrize(
    "steps, penalty, message",
    [(-1, 0.5, "span_penalty_warmup_steps=-1"), (3, 0.0, "=3: expected 0 where span_penalty is 0")],
)
def test_a_warmup_of_a_penalty_that_is_none(steps, penalty, message):
    with pytest.raises(ValueError, match=message):
        make_task(span_penalty=penalty, span_penalty_warmup_steps=steps)


@pytest.mark.slow
@pytest.mark.parametrize("per_head", [True, slow(False)])
def test_a_step_turns_a_full_covariance(per_head):
    """Off the diagonal a step changes what lies below alone; the span's figures are those of its box."""
    task = make_task(covariance="full", per_head=per_head, span_penalty=1.0)
    optimizer = Adam(1e-2).make(100, 10)
    state = jax.jit(lambda: init_state(task, optimizer, jax.random.key(1)))()
    batch = jax.tree.map(lambda x: x[None], BATCH)
    after, figures = jax.jit(make_train_step(task, optimizer, 1))(state, batch)
    cholesky = np.asarray(after.params["blocks_0"]["attention"]["span"]["cholesky"])
    assert np.isfinite(figures["loss"])
    assert (cholesky[..., 1, 0] != 0).all() and (cholesky[..., 0, 1] == 0).all()
    (half,) = jax.jit(task.half_spans)(after.params)
    spans = task.spans(jax.device_get(jax.jit(task.describe)(after.params)))["block_0"]
    assert half.shape == (2,) and np.shape(spans["sigma"]) == (2 if per_head else 1, 2, 2)
    np.testing.assert_array_equal(np.max(spans["size"], 0), 2 * half + 1)


def test_spans_in_positions(plain):
    task, params, _ = plain
    made = jax.device_get(jax.jit(task.describe)(params))
    assert task.spans(made) == {
        "block_0": {"sigma": pytest.approx([0.3, 0.3]), "size": [3, 5], "pair_share": [1.0], "score_share": [1.0]}
    }
    assert make_task(span=False).spans({"block_0": {}}) == {}
