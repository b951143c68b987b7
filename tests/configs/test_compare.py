"""The comparison of methods: each trains an update, in each kind of model that takes it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from configs import compare
from posattn_jax.config import experiment
from posattn_jax.config.parts import change
from posattn_jax.sweeps import costs
from posattn_jax.train.step import init_state, make_train_step
from tests.configs.test_configs import made_source
from tests.support.slow import slow

PLAN = compare.sweep("tiny")
# One of each part that an update of another config does not train.
FAST = ("shaw",)


def config_of(name, variant="tiny"):
    return change(compare.get_config(variant).lock(), compare.sweep(variant).treatment(name).fields)


@pytest.mark.slow
@pytest.mark.parametrize("name", [each.name if each.name in FAST else slow(each.name) for each in PLAN.treatments])
def test_an_update(name):
    """The loss is finite, and every parameter has a gradient, but for a bias that no softmax sees."""
    config = config_of(name)
    source = made_source(config)
    task, optimizer, _, settings = experiment.prepare(config, source)
    state = jax.jit(lambda: init_state(task, optimizer, jax.random.key(config.seed)))()
    batch = jax.tree.map(lambda x: jnp.asarray(x)[None], source.batch(np.arange(settings.batch_size)))
    after, figures = jax.jit(make_train_step(task, optimizer, 1))(state, batch)
    assert np.isfinite(figures["loss"]) and figures["gradient_norm/all"] > 0
    moved = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), after.params, state.params)
    still = [path for path, has_moved in flatten_dict(moved, sep=".").items() if not has_moved]
    assert all(path.endswith("bias") for path in still), still


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["", "cifar", "text"])
def test_every_method_of_a_variant_is_another_model(unchecked, variant):
    plan, made = compare.sweep(variant), set()
    for treatment in plan.treatments:
        config = config_of(treatment.name, variant)
        config.model.num_blocks = 1
        source = made_source(config)
        made.add((config.data.get("layout"), repr(experiment.make_task(config, source))))  # which traces it
    assert len(made) == len(plan.treatments) >= 29


@pytest.mark.parametrize("variant", ["", "cifar", "text", "tiny"])
def test_a_low_rank_is_lower_than_the_features_of_a_head(variant):
    config = config_of("low_rank", variant)
    assert (
        0 < config.model.block.attention["values"].rank < config.model.width // config.model.block.attention.num_heads
    )


def test_the_rows_of_table_1():
    """Alfons 2022: all ten, in its order."""
    rows = ["gehring", "vaswani", "shaw", "music_transformer", "ramachandran", "transformer_xl", "zhao"]
    rows += ["fourier_features", "baseline", "siren"]
    names = [treatment.name for treatment in PLAN.treatments]
    assert names[1:11] == rows


def test_unknown_variant():
    with pytest.raises(ValueError, match='"huge": .*"cifar", "text" or "tiny"'):
        compare.get_config("huge")


@pytest.mark.slow
def test_costs_are_measured_once(tmp_path, capsys, monkeypatch):
    """As a user calls it: what is there already is kept."""
    arguments = ["costs", "--config=configs/compare.py:tiny", f"--workdir={tmp_path}", "--updates=1"]
    assert costs.main([*arguments, "--treatments=none,gehring"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("none: operations ") and "gehring: operations" in said
    monkeypatch.setattr(costs, "measure", lambda config, updates: {"operations": 1.0, "temp_bytes": 2.0})
    assert costs.main([*arguments, "--treatments=none,vaswani"]) == 0
    assert capsys.readouterr().out == "vaswani: operations 1, temp_bytes 2\n"
