"""A run in bfloat16: what stays float32, and that it learns as well."""

import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import digits
from configs.lib.common import ENCODING, SPAN
from posattn_jax.config import experiment
from posattn_jax.config.parts import change
from posattn_jax.system.files import read_metrics
from posattn_jax.train.step import init_state, make_train_step
from tests.support.command import ROOT, environment
from tests.support.made_params import made_state
from tests.support.slow import slow


def test_what_stays_float32():
    """Parameters, the optimiser's moments, sums, the loss and its gradient; features alone are rounded."""
    config = digits.get_config("tiny")
    config.model.dtype = "bfloat16"
    source = experiment.load_sources(config)["train"]
    task, optimizer, *_ = experiment.prepare(config, source)
    state = made_state(task, optimizer)
    batch = {name: np.asarray(array)[None] for name, array in source.batch(np.arange(8)).items()}
    after, figures = jax.jit(make_train_step(task, optimizer, 1))(state, batch)
    floats = [x for x in jax.tree.leaves((after, figures)) if jnp.issubdtype(x.dtype, jnp.floating)]
    assert {x.dtype.name for x in floats} == {"float32"}
    config.model.dtype = "float32"
    exact = experiment.make_task(config, source)
    rng = jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(state.rng), 0), 0)  # that of the update
    loss, _ = jax.jit(exact.loss)(state.params, {name: array[0] for name, array in batch.items()}, rng)
    assert float(figures["loss"]) == pytest.approx(float(loss), rel=2e-2)
    assert figures["loss"] != loss


@pytest.mark.slow
@pytest.mark.parametrize("covariance", [slow("diagonal"), "full", slow("precision")])
def test_bfloat16_parameters_leave_spans_and_frequencies_float32(covariance):
    """In the state that is written to disk, and so 200 updates of .001 move a sigma by .2."""
    config = digits.get_config("tiny")
    config.model.update(dtype="bfloat16", param_dtype="bfloat16")
    change(config, {f"{SPAN}.covariance": covariance, f"{ENCODING}.learn_omega": True})
    task = experiment.make_task(config, experiment.load_sources(config)["train"])
    optimizer = optax.adam(1e-3)
    state = jax.jit(lambda: init_state(task, optimizer, jax.random.key(0)))()
    leaves = jax.tree_util.tree_leaves_with_path((state.params, state.opt_state[0]))
    dtypes = {jax.tree_util.keystr(path): array.dtype.name for path, array in leaves}
    kept = {path for path in dtypes if re.search("sigma|cholesky|precision|omega", path)}
    assert len(kept) == 9, "a span and two frequencies, each with two moments"
    assert {dtypes[path] for path in kept} == {"float32"}
    assert {dtypes[path] for path in dtypes.keys() - kept} == {"bfloat16", "int32"}

    def update(carry, _):
        span, moments = carry
        changes, moments = optimizer.update(jax.tree.map(lambda x: -jnp.ones_like(x), span), moments)
        return (optax.apply_updates(span, changes), moments), None

    span = state.params["blocks_0"]["attention"]["span"]
    (after, _), _ = jax.lax.scan(update, (span, optimizer.init(span)), length=200)
    moved = jax.tree.leaves(jax.tree.map(lambda a, b: a - b, after, span))
    np.testing.assert_allclose(moved[0], 0.2, rtol=1e-3)


@pytest.mark.slow
def test_accuracy_is_kept(tmp_path):
    """Digits, whole runs of two seeds: the same to what seeds differ by. After five epochs they differ by more."""
    accuracy = {}
    for dtype in ("float32", "bfloat16"):
        for seed in (9188, 2755):
            workdir = tmp_path / f"{dtype}_{seed}"
            options = (f"--workdir={workdir}", f"--config.seed={seed}", f"--config.model.dtype={dtype}")
            command = [sys.executable, "-m", "posattn_jax.main", "--config=configs/digits.py", *options]
            fully_compiled = environment() | {"XLA_FLAGS": ""}  # as tests compile, bfloat16 takes several times as long
            done = subprocess.run(command, cwd=ROOT, env=fully_compiled, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            rows = [row for row in read_metrics(workdir / "metrics.jsonl") if row["split"] == "validation"]
            accuracy.setdefault(dtype, []).append(max(row["value"] for row in rows if row["name"] == "accuracy"))
    assert min(accuracy["float32"]) > 0.95
    assert np.mean(accuracy["bfloat16"]) == pytest.approx(np.mean(accuracy["float32"]), abs=0.01), accuracy
