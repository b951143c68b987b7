"""The loss of the next token, against loops; and what a run is told of it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax import EncoderBlock, GaussianSpan, LanguageModel, PositionalSelfAttention, span_share
from posattn_jax.tasks.causal_lm import CausalLanguageModelling
from tests.support.made_params import made_params


def make_task(span=None, **fields):
    blocks = (EncoderBlock(PositionalSelfAttention(num_heads=2, span=span), mlp_dim=16, norm="pre", dropout_rate=0.2),)
    model = LanguageModel(vocabulary_size=11, width=8, blocks=blocks, dropout_rate=0.2)
    return CausalLanguageModelling(model=model, input_shape=(6,), **fields)


def make_batch(**more):
    rng = np.random.default_rng(0)
    return {name: jnp.asarray(rng.integers(0, 11, (3, 6))) for name in ("tokens", "targets")} | more


def test_the_loss_is_the_mean_over_tokens_and_totals_add_up():
    task = make_task()
    params = made_params(lambda: task.init(jax.random.key(0)))
    batch = make_batch(weights=jnp.array([1.0, 1.0, 0.0]))
    loss, totals = jax.jit(task.loss)(params, batch)
    logits = np.asarray(jax.jit(task.apply)(params, batch)[0], np.float64)
    losses, correct = [], 0
    for row in range(2):
        for place in range(6):
            exps = np.exp(logits[row, place])
            losses.append(-math.log(exps[int(batch["targets"][row, place])] / exps.sum()))
            correct += int(logits[row, place].argmax() == batch["targets"][row, place])
    assert float(loss) == pytest.approx(np.mean(losses), rel=1e-5)
    metrics = task.summarise({name: float(total) + float(total) for name, total in totals.items()})
    assert metrics == pytest.approx(
        {"loss": np.mean(losses), "bits": np.mean(losses) / math.log(2), "accuracy": correct / 12}, rel=1e-5
    )
    assert task.summarise(task.zero_totals()) == {"loss": 0, "bits": 0, "accuracy": 0}


def test_dropout_is_on_with_an_rng():
    task, batch = make_task(), make_batch()
    params, loss = made_params(lambda: task.init(jax.random.key(0))), jax.jit(task.loss)
    losses = [float(loss(params, batch, rng)[0]) for rng in (None, None, jax.random.key(0), jax.random.key(1))]
    assert losses[0] == losses[1] and len(set(losses)) == 3


def test_a_penalty_is_of_the_share_of_pairs():
    span = GaussianSpan(initial_sigma=0.1)
    task, batch = make_task(span), make_batch()
    params = made_params(lambda: task.init(jax.random.key(0)))
    loss, without = (jax.jit(each.loss)(params, batch)[0] for each in (make_task(span, span_penalty=3.0), task))
    difference = loss - without
    assert float(difference) == pytest.approx(3 * float(span_share(jnp.array([0.1]), 0.1)), rel=1e-4)
    half = 0.1 * math.sqrt(-2 * math.log(0.1))
    assert float(difference) == pytest.approx(3 * (1 - (1 - half) ** 2), rel=1e-4)
