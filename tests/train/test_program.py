"""Several updates in a dispatch, and device-resident examples."""

import jax
import numpy as np
import pytest

from posattn_jax.data.batches import Resident
from posattn_jax.train.program import Program
from posattn_jax.train.sharding import MeshAxes
from tests.support.recorded import figures_of
from tests.train.made_run import make_images, make_trainer, train


def values(workdir):
    return {(row["step"], row["split"], row["name"]): row["value"] for row in figures_of(workdir)}


SETTINGS = {"total_steps": 17, "log_steps": 7, "checkpoint_steps": 10, "eval_steps": 12}


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run")
    train(workdir, **SETTINGS)
    return workdir


@pytest.fixture(scope="module")
def dispatched(tmp_path_factory):
    """The folder of a run of blocks of at most 4 updates on device-resident examples, and how many each block had."""
    workdir, counts, dispatch = tmp_path_factory.mktemp("run"), [], Program.update

    def counting(self, state, batches, count, *arguments):
        counts.append(count)
        return dispatch(self, state, batches, count, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Program, "update", counting)
        train(workdir, **SETTINGS, dispatch_steps=4, resident_mib=1)
    return workdir, counts


def assert_same_values(workdir, one_by_one):
    expected, made = values(one_by_one), values(workdir)
    assert made.keys() == expected.keys()
    for key, value in expected.items():
        assert made[key] == pytest.approx(value, rel=1e-5, abs=1e-6), key


def test_neither_changes_what_is_computed(dispatched, one_by_one):
    assert_same_values(dispatched[0], one_by_one)


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"dispatch_steps": 4}, {"resident_mib": 1}], ids=str)
def test_one_of_them_changes_nothing_either(tmp_path, one_by_one, fields):
    train(tmp_path, **SETTINGS, **fields)
    assert_same_values(tmp_path, one_by_one)


@pytest.mark.slow
def test_a_run_that_was_stopped_inside_a_block_ends_bit_for_bit(tmp_path):
    """Blocks are 4 updates from the 6th on, and 4 from the 2nd."""
    for name, stops in (("whole", ()), ("stopped", (6,))):
        for total_steps in (*stops, 17):
            train(tmp_path / name, total_steps=total_steps, log_steps=100, dispatch_steps=4, resident_mib=1)
    state = [make_trainer(tmp_path / name, total_steps=17).state for name in ("whole", "stopped")]
    jax.tree.map(np.testing.assert_array_equal, *map(jax.device_get, state))


def test_several_updates_are_one_dispatch(dispatched):
    """The first alone, after which the clock starts; then up to where something is due."""
    assert dispatched[1] == [1, 4, 2, 3, 2, 2, 3]


@pytest.mark.slow
def test_examples_are_resident_on_every_device(tmp_path, one_by_one):
    train(tmp_path, **SETTINGS, resident_mib=1, dispatch_steps=3, mesh=MeshAxes().make())
    expected = values(one_by_one)
    assert values(tmp_path) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_a_batch_of_the_table_is_that_of_the_source():
    images = make_images()
    assert isinstance(images, Resident)
    ids = np.array([5, 0, 95, 5])
    rows = {name: jax.numpy.asarray(array)[ids] for name, array in images.table().items()}
    made, expected = jax.jit(images.read)(rows), images.batch(ids)
    assert made.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(made[name], array, atol=1e-6)
        assert made[name].dtype == array.dtype
    assert images.num_bytes == sum(array.nbytes for array in images.table().values())
