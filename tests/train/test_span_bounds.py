import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.ops.span import bound_for
from posattn_jax.system.files import read_metrics
from posattn_jax.train.program import SpanBounds
from tests.support.made_params import made_params
from tests.train.made_run import make_task, make_trainer


def test_a_bound_leaves_room_and_does_not_tremble():
    assert bound_for((0, 1, 3, 11, 30)) == (1, 2, 4, 12, 32)
    assert bound_for((12,)) == (16,)
    assert bound_for((11,), (16,)) == (16,)  # one size too large: kept
    assert bound_for((7,), (16,)) == (8,)  # more than one: smaller
    assert bound_for((15,), (16,)) == (16,)
    assert bound_for((16,), (16,)) == (24,)  # no room left


def test_bounds_follow_the_spans():
    task = make_task()
    params = made_params(lambda: task.init(jax.random.key(0)))

    def with_sigma(value):
        return jax.tree_util.tree_map_with_path(
            lambda path, x: jnp.full_like(x, value) if "sigma" in str(path[-1]) else x, params
        )

    bounds = SpanBounds(task, with_sigma(0.1))
    assert bounds.value == ((2, 2),)
    bounds.follow(with_sigma(0.4))
    assert bounds.value == ((2, 2),)  # seen one update later
    bounds.follow(with_sigma(0.4))
    assert bounds.value == ((4, 4),)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["patch"])
def test_a_bounded_run_is_the_same_run(tmp_path, implementation):
    """With a span that grows on the way, so that the bounds change."""
    losses = {}
    for name, bounded in (("free", False), ("bounded", True)):
        task = make_task(implementation=implementation if bounded else "dense", span_penalty=-5.0)
        trainer = make_trainer(tmp_path / name, total_steps=8, task=task, bounded_spans="yes" if bounded else "no")
        if bounded:
            first = trainer._span_bounds
        trainer.run()
        if bounded:
            assert trainer._span_bounds > first
        trainer.close()
        losses[name] = [
            row["value"] for row in read_metrics(tmp_path / name / "metrics.jsonl") if row["name"] == "loss"
        ]
    np.testing.assert_allclose(losses["bounded"], losses["free"], rtol=1e-4)
