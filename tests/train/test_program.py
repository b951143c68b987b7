"""Several updates in a dispatch, and device-resident examples."""

import jax
import numpy as np
import pytest

from posattn_jax.data.pipeline.batches import Resident
from posattn_jax.data.text.characters import ByteSequences
from posattn_jax.data.text.corpus import SentencePairs
from posattn_jax.data.text.sequences import Sentences
from posattn_jax.data.text.tagged import TaggedSequences
from posattn_jax.data.text.words import WordSequences
from posattn_jax.data.tokenizers.tokenizer import Tokenizer
from posattn_jax.tasks.reconstruction import Offsets
from posattn_jax.train.program import Program
from posattn_jax.train.sharding import MeshAxes
from tests.support.recorded import figures_of
from tests.train.made_run import make_images, make_task, make_trainer, train


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
def test_merged_micro_batches_are_one(tmp_path, one_by_one):
    """Each keeps its dropout, so a run's figures are the same but for rounding, which its updates make larger."""
    train(tmp_path, **SETTINGS, merged_batches="yes")
    assert make_trainer(tmp_path, **SETTINGS, merged_batches="yes").program.micro_batches == (1, 16)
    expected, made = values(one_by_one), values(tmp_path)
    assert made.keys() == expected.keys()
    for key, value in expected.items():
        assert made[key] == pytest.approx(value, rel=1e-3, abs=1e-5), key


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


@pytest.mark.parametrize(("resident_mib", "most"), [(1, 64), (0, 16)])
def test_how_many_updates_an_accelerator_gets_at_once(tmp_path, monkeypatch, resident_mib, most):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    fields = {"task": make_task(implementation="dense"), "bounded_spans": "no"}
    assert make_trainer(tmp_path, **fields, resident_mib=resident_mib).program.most == most


@pytest.mark.slow
def test_examples_are_resident_on_every_device(tmp_path, one_by_one):
    train(tmp_path, **SETTINGS, resident_mib=1, dispatch_steps=3, mesh=MeshAxes().make())
    expected = values(one_by_one)
    assert values(tmp_path) == pytest.approx(expected, rel=1e-4, abs=1e-4)


class Subwords(Tokenizer):
    """Of which only the special tokens are known, and where words begin."""

    begins_word = np.arange(30) % 2 == 0

    def __init__(self):
        pass


SUBWORDS = Subwords()
PAIRS = np.array([(0, 2), (2, 1), (3, 2)])  # the first line, and the number of lines
LINES = [np.arange(4, 4 + n, dtype=np.int32) for n in (3, 1, 7, 2, 9)]
SOURCES = {
    "images": make_images(),
    "bytes": ByteSequences(np.arange(50, dtype=np.uint8), 7),
    "pairs": SentencePairs(np.concatenate(LINES), np.cumsum([0, 3, 1, 7, 2, 9]), PAIRS, 9, SUBWORDS),
    "sentences": Sentences([[line] for line in LINES], np.arange(5.0), np.zeros(5, np.int32), 8, SUBWORDS),
    "words": WordSequences(np.concatenate(LINES), np.cumsum([0, 3, 1, 7, 2, 9]), np.arange(5), 12, SUBWORDS),
    "offsets": Offsets(np.arange(7, dtype=np.float32)[:, None], np.arange(14, dtype=np.float32).reshape(7, 2), (4,)),
    "tagged": TaggedSequences([(line, line % 3) for line in LINES], ("a", "b", "c"), 8, SUBWORDS),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_batch_of_the_table_is_that_of_the_source(name):
    source = SOURCES[name]
    assert isinstance(source, Resident)
    ids = np.array([2, 0, len(source) - 1, 2])
    rows = {name: jax.numpy.asarray(array)[ids] for name, array in source.table().items()}
    made, expected = jax.jit(source.read)(rows), source.batch(ids)
    assert made.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(made[name], array, atol=1e-6)
        assert made[name].dtype == jax.numpy.asarray(array).dtype
    assert source.num_bytes == sum(array.nbytes for array in source.table().values())


def test_a_source_without_examples_takes_no_room():
    assert ByteSequences(np.zeros(0, np.uint8), 7).num_bytes == 0
