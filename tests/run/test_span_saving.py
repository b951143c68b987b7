"""What a span saved: measured where there is one, and nothing where there is nothing to tell."""

import jax
import numpy as np
import pytest

from configs import char_lm
from configs.lib.common import NO_SPAN, SPAN
from posattn_jax import WindowSpan
from posattn_jax.config import experiment
from posattn_jax.config.parts import change, part
from posattn_jax.run import span_saving
from posattn_jax.train.step import TrainState, init_state


@pytest.fixture
def one_device(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    monkeypatch.setattr(span_saving, "TURNS", (1, 1))


def made(config, step):
    sources = experiment.load_sources(config)
    task, optimizer, _, _ = experiment.prepare(config, sources["train"])
    state = jax.jit(lambda: init_state(task, optimizer, jax.random.key(config.seed)))()
    return state.replace(step=np.int32(step)), sources["train"]


@pytest.mark.slow
def test_both_are_measured(one_device, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"some text " * 60)
    config = change(
        char_lm.get_config("tiny"),
        {"data.dir": str(tmp_path), "task.span_penalty": 0.1, "task.span_penalty_warmup_steps": 5},
    )
    saved = span_saving.measure(config, *made(config, 100))
    assert set(saved) == {"with_span", "without_span"} and min(saved.values()) > 0
    assert config.task.span_penalty == 0.1 and config.model.block.attention.span is not None


@pytest.mark.parametrize(
    "fields, step, devices",
    [(NO_SPAN, 100, 1), ({SPAN: part(WindowSpan, half_span=(1,))}, 100, 1), ({}, 99, 1), ({}, 100, 8)],
    ids=["no span", "a span that is given", "a short run", "several devices"],
)
def test_nothing_is_measured(one_device, monkeypatch, fields, step, devices):
    monkeypatch.setattr(jax, "device_count", lambda: devices)
    monkeypatch.setattr(span_saving, "_updates", None)
    state = TrainState(step=np.int32(step), params=None, opt_state=None, rng=None, totals=None)
    assert span_saving.measure(change(char_lm.get_config("tiny"), fields), state, None) is None
