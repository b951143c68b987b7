"""Vmapped seeds: each as if it were alone."""

import dataclasses
import os
import signal

import chex
import jax
import numpy as np
import pytest

from posattn_jax.data.images import GridImages
from posattn_jax.system.errors import InputError, RunError
from posattn_jax.train.interruption import Interrupted
from posattn_jax.train.seed_map import SeedData
from posattn_jax.train.sharding import MeshAxes
from tests.support.lanes import on_lanes
from tests.support.recorded import figures_of
from tests.support.slow import slow
from tests.train.made_run import make_images, make_task, make_trainer

SEEDS = (1, 2)
SETTINGS = {"total_steps": 20, "checkpoint_steps": 5, "log_steps": 5}  # an epoch has 6 steps


def make_data(seeds):
    """With examples of their own, as where the seed decides which are held out."""
    return [SeedData(seed, make_images(96, seed), make_images(20, seed + 100)) for seed in seeds]


def begin(workdir, seeds=SEEDS, **fields):
    return make_trainer(workdir, data=make_data(seeds), **SETTINGS | fields)


def finish(workdir, seeds=SEEDS, until=None, **fields):
    trainer = begin(workdir, seeds, **fields)
    try:
        trainer.run(until)
    finally:
        trainer.close()
    return dict(zip(seeds, jax.device_get(trainer.states), strict=True))


def checkpoints_of(workdir):
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit())


def assert_as_alone(workdir, states, alone, atol=1e-6):
    """The same figures at the same steps, the same checkpoints, keys and positions in the data; close parameters."""
    folder, expected = alone
    for seed, state in states.items():
        rows, expected_rows = figures_of(workdir / str(seed)), figures_of(folder / str(seed))
        values = [[row.pop("value") for row in each] for each in (rows, expected_rows)]
        assert rows == expected_rows and rows
        np.testing.assert_allclose(*values, rtol=1e-5, atol=atol)
        assert checkpoints_of(workdir / str(seed)) == checkpoints_of(folder / str(seed))
        np.testing.assert_array_equal(state.rng, expected[seed].rng)
        chex.assert_trees_all_close(state, expected[seed], atol=atol, rtol=1e-5)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Each seed on its own: the folder of their folders, and their last states."""
    folder = tmp_path_factory.mktemp("alone")
    return folder, {seed: finish(folder, (seed,))[seed] for seed in SEEDS}


def test_they_begin_bit_for_bit_as_alone(tmp_path):
    vmapped, fresh = begin(tmp_path / "vmapped"), [begin(tmp_path / "alone", (seed,)) for seed in SEEDS]
    chex.assert_trees_all_equal(jax.device_get(vmapped.states), [jax.device_get(each.state) for each in fresh])
    for member, each in zip(vmapped.members, fresh, strict=True):
        for _ in range(7):
            chex.assert_trees_all_equal(next(member.batches), next(each.members[0].batches))
    for trainer in (vmapped, *fresh):
        trainer.close()


@pytest.mark.parametrize(
    "fields",
    [
        slow({}),
        slow({"dispatch_steps": 4, "resident_mib": 1}),
        slow({"bounded_spans": "yes"}),
        slow({"mesh": MeshAxes().make()}),
    ],
    ids=lambda fields: ",".join(fields),
)
def test_they_end_as_alone(tmp_path, alone, fields):
    """20 updates with dropout, three evaluations and as many checkpoints as alone."""
    atol = 1e-4 if "mesh" in fields else 1e-6
    assert_as_alone(tmp_path, finish(tmp_path, **fields), alone, atol)


@pytest.mark.slow
def test_they_train_with_the_kernels_of_a_gpu(tmp_path):
    """On lanes. Each seed has the span that it learns."""
    fields = {"task": make_task(implementation="fused"), "total_steps": 2}
    with on_lanes():
        vmapped = finish(tmp_path / "vmapped", **fields)
        for seed in SEEDS:
            alone = finish(tmp_path / "alone", (seed,), **fields)[seed]
            chex.assert_trees_all_close(vmapped[seed].params, alone.params, atol=1e-4)
    dense = finish(tmp_path / "dense", **fields | {"task": make_task(implementation="dense")})
    chex.assert_trees_all_close(vmapped[1].params, dense[1].params, atol=1e-3)


@pytest.mark.parametrize(
    "before, after", [slow([SEEDS], [(1,), (2,)]), slow([(1,), (2,)], [SEEDS])], ids=["parted", "joined"]
)
def test_what_some_began_others_end(tmp_path, alone, before, after):
    """Stopped at a step at which nothing is due."""
    states = {}
    for seeds in before:
        finish(tmp_path, seeds, until=8)
        assert all(8 in checkpoints_of(tmp_path / str(seed)) for seed in seeds)
    for seeds in after:
        states |= finish(tmp_path, seeds)
    assert_as_alone(tmp_path, states, alone)


@pytest.mark.slow
def test_interrupted_they_end_bit_for_bit(tmp_path):
    whole = finish(tmp_path / "whole", total_steps=9)
    trainer = begin(tmp_path / "stopped", total_steps=9)
    update = trainer.program.update

    def update_and_signal(*arguments):
        if trainer.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(*arguments)

    trainer.program.update = update_and_signal
    with pytest.raises(Interrupted, match="SIGTERM at step 3; saved"):
        trainer.run()
    trainer.close()
    chex.assert_trees_all_equal(finish(tmp_path / "stopped", total_steps=9), whole)
    for seed in SEEDS:
        assert figures_of(tmp_path / "stopped" / str(seed)) == figures_of(tmp_path / "whole" / str(seed))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* encountered in divide")
def test_what_is_not_finite_names_its_seed(tmp_path):
    first, second = make_data(SEEDS)
    black = GridImages(dataclasses.replace(second.train_source.images, max_value=0))  # what is black is 0 / 0
    trainer = make_trainer(tmp_path, data=[first, dataclasses.replace(second, train_source=black)], **SETTINGS)
    with pytest.raises(RunError, match=r"^seed 2: \w+ is nan at step 1: .*no checkpoint"):
        trainer.run()
    trainer.close()


@pytest.mark.slow
def test_a_run_that_is_ahead_is_not_joined(tmp_path):
    finish(tmp_path, (2,), until=3)
    with pytest.raises(RunError, match=r"different steps, \[0, 3\]"):
        begin(tmp_path)
    with pytest.raises(InputError, match="^seed 2: train.total_steps=2: .* 3 steps"):
        begin(tmp_path, total_steps=2)
