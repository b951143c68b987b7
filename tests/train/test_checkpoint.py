import os
import pathlib
import socket
import subprocess
import sys

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from posattn_jax.system import checksums
from posattn_jax.system.errors import RunError
from posattn_jax.train.checkpoint import Checkpoints
from posattn_jax.train.step import TrainState
from tests.drills.damages import DAMAGES, delete, empty, flip_a_bit
from tests.support.slow import slow


def test_terms_that_had_numbers_are_read_by_their_names(tmp_path):
    """Parameters and moments of every layer; a stack that has numbers keeps them."""

    def state(names, step):
        layer = {"output": jnp.arange(3.0)} | {name: {"table": jnp.full((2, 2), i)} for i, name in enumerate(names)}
        params = {"blocks_0": {"attention": layer}, "blocks_1": {"attention": {"terms_0": jnp.ones(2)}}}
        return TrainState(step, params, optax.adam(1e-3).init(params), {}, {})

    earlier, present = (
        jax.jit(lambda names=names: state(names, jnp.int32(3)))()
        for names in (("terms_2", "terms_10"), ("terms_content_bias", "terms_positional"))
    )
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(earlier, {})
    found, _ = checkpoints.restore(jax.eval_shape(lambda: present))
    checkpoints.close()
    jax.tree.map(np.testing.assert_array_equal, found, present)


@flax.struct.dataclass
class State:
    step: jax.Array
    params: jax.Array


def make_state(step):
    return State(jnp.int32(step), jnp.arange(100.0) + step)


ABSTRACT = jax.eval_shape(lambda: make_state(0))


def save(workdir, *steps, damage=None, score=None, **fields):
    """Saves one after the other; `damage` is done to each once it is on disk."""
    checkpoints = Checkpoints(workdir, **fields)
    for step in steps:
        checkpoints.save(make_state(step), {"told": step}, score=None if score is None else score(step))
        if damage is not None:
            checkpoints.wait()
            damage(data_file(workdir, step))
    checkpoints.close()


def data_file(workdir: pathlib.Path, step: int) -> pathlib.Path:
    """The largest of those that hold arrays."""
    return max((workdir / "checkpoints" / str(step) / "state").glob("**/d/*"), key=lambda path: path.stat().st_size)


def restored_step(workdir, step=None, **fields):
    """Of which the values are as they were saved."""
    checkpoints = Checkpoints(workdir, **fields)
    try:
        state, progress = checkpoints.restore(ABSTRACT, step)
    finally:
        checkpoints.close()
    np.testing.assert_array_equal(state.params, make_state(int(state.step)).params)
    assert progress == {"told": int(state.step)}
    return int(state.step)


def steps_of(workdir):
    return {int(path.name) for path in (workdir / "checkpoints").iterdir()}


def tree(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_every_file_has_its_sum(tmp_path):
    save(tmp_path, 1, 2, 3, score=float)
    assert steps_of(tmp_path) == {2, 3}
    folder = tmp_path / "checkpoints" / "3"
    named = {line.split("  ")[1] for line in (folder / checksums.FILE).read_text().splitlines()}
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert named == files - {checksums.FILE} and {"progress/metadata", "metrics/metrics", "state/_METADATA"} < named
    assert checksums.damage(folder) is None
    assert restored_step(tmp_path) == 3


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("file", ["data", slow(checksums.FILE), slow("progress/metadata")])
def test_a_damaged_checkpoint_is_named_and_the_one_before_taken(tmp_path, caplog, damage, file):
    save(tmp_path, 1, 2)
    folder = tmp_path / "checkpoints" / "2"
    path = data_file(tmp_path, 2) if file == "data" else folder / file
    damage(path)
    assert restored_step(tmp_path) == 1
    (told,) = [record.getMessage() for record in caplog.records if record.name.startswith("posattn")]
    name = path.relative_to(folder).as_posix()
    reason = f"{name} {'is missing' if damage is delete else 'has changed: '}"
    if file == checksums.FILE:
        reason = f"it has no {checksums.FILE}" if damage is delete else ""
    assert told.startswith(f"checkpoint 2 cannot be read ({reason}") and told.endswith("checkpoint 1 is used instead")
    assert (tmp_path / "unreadable" / "2").is_dir() and steps_of(tmp_path) == {1}, "nothing is deleted"


def test_the_last_sound_ones_outlive_any_number_of_damaged_ones(tmp_path, caplog):
    save(tmp_path, 1, 2)
    save(tmp_path, *range(3, 8), damage=flip_a_bit)
    assert "checkpoint 3 cannot be read" in caplog.text and "it is moved to" in caplog.text
    assert steps_of(tmp_path) == {2, 7}
    assert restored_step(tmp_path) == 2
    save(tmp_path, 3, 4)
    assert steps_of(tmp_path) == {3, 4} and restored_step(tmp_path) == 4


def test_those_of_earlier_versions_are_read_and_told(tmp_path, caplog):
    save(tmp_path, 1, 2, score=lambda step: -float(step))
    for path in tmp_path.glob(f"checkpoints/*/{checksums.FILE}"):
        path.unlink()
    assert restored_step(tmp_path) == 2
    assert restored_step(tmp_path, 1, read_only=True) == 1
    assert "checkpoint 2 is not verified" in caplog.text
    assert not (tmp_path / "unreadable").exists()
    save(tmp_path, 3, score=lambda step: -float(step))
    assert steps_of(tmp_path) == {1, 2, 3} and restored_step(tmp_path, 1) == 1, "the best is asked for"


def test_reading_only_changes_nothing(tmp_path):
    save(tmp_path, 1, 2)
    flip_a_bit(data_file(tmp_path, 2))
    before = tree(tmp_path)
    assert restored_step(tmp_path, 2, read_only=True) == 1
    checkpoints = Checkpoints(tmp_path, read_only=True)
    name = data_file(tmp_path, 2).relative_to(tmp_path / "checkpoints" / "2")
    with pytest.raises(RunError, match=rf"{tmp_path}/checkpoints/2 .*{name} has changed"):
        checkpoints.read_params(2)
    np.testing.assert_array_equal(checkpoints.read_params(1), make_state(1).params)
    checkpoints.close()
    assert tree(tmp_path) == before


def test_a_score_that_has_changed_makes_no_best(tmp_path, caplog):
    save(tmp_path, 1, 2, score=lambda step: step / 10)
    path = tmp_path / "checkpoints" / "1" / "metrics" / "metrics"
    path.write_text(path.read_text().replace("0.1", "0.9"))
    checkpoints = Checkpoints(tmp_path, read_only=True)
    assert checkpoints.best_step() == 2 and checkpoints.steps_to_average(2) == [2]
    assert "checkpoint 1 is left out: metrics/metrics has changed" in caplog.text
    checkpoints.close()


def test_none_is_there_without_sums(tmp_path, monkeypatch):
    """What a crash, or a full disk, leaves is no checkpoint, and is cleaned up."""
    save(tmp_path, 1)
    checkpoints = Checkpoints(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(checksums, "write", lambda folder: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        checkpoints.save(make_state(2), {"told": 2})
        with pytest.raises(OSError, match="No space left"):
            checkpoints.wait()
    checkpoints.close()
    assert {path.name.split(".")[0] for path in (tmp_path / "checkpoints").iterdir()} == {"1", "2"}
    assert restored_step(tmp_path, read_only=True) == 1
    save(tmp_path, 2)
    assert steps_of(tmp_path) == {1, 2} and restored_step(tmp_path) == 2


def test_a_file_too_many(tmp_path):
    save(tmp_path, 1, 2)
    (tmp_path / "checkpoints" / "2" / "state" / ".nfs0001").write_text("of the file system")
    assert checksums.damage(tmp_path / "checkpoints" / "2") is None
    (tmp_path / "checkpoints" / "2" / "state" / "d" / "more").write_text("")
    assert checksums.damage(tmp_path / "checkpoints" / "2") == f"state/d/more is not in {checksums.FILE}"


def test_emptied_sums_name_a_file(tmp_path):
    save(tmp_path, 1)
    folder = tmp_path / "checkpoints" / "1"
    empty(folder / checksums.FILE)
    assert checksums.damage(folder) == f"_CHECKPOINT_METADATA is not in {checksums.FILE}"


@pytest.mark.slow
def test_two_processes_restore_the_same_step(tmp_path):
    """The first one finds the damage, and moves it away; both take the one before, and save on."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "tests.train.two_processes", address]
    processes = [
        subprocess.Popen(
            [*command, str(number), str(tmp_path)],
            env=os.environ | {"XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    told = [process.communicate(timeout=300) for process in processes]
    for number, (out, err) in enumerate(told):
        assert out.endswith(f"process {number}: 2\n"), err  # Gloo says something before
    assert "checkpoint 3 cannot be read" in told[0][1] and "checkpoint 3" not in told[1][1]
    assert steps_of(tmp_path) == {2, 4} and (tmp_path / "unreadable" / "3").is_dir()
    assert checksums.damage(tmp_path / "checkpoints" / "4") is None
