import os
import shutil
import signal

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from posattn_jax.data.pipeline.batches import EpochOrder
from posattn_jax.system.errors import InputError, RunError
from posattn_jax.system.files import read_metrics
from posattn_jax.train.checkpoint import Checkpoints
from posattn_jax.train.evaluator import Evaluator
from posattn_jax.train.interruption import Interrupted
from posattn_jax.train.settings import Settings
from posattn_jax.train.sharding import MeshAxes
from tests.support.recorded import figures_of
from tests.train.made_run import make_task, make_trainer, train

STEPS_PER_EPOCH = 6  # 96 examples in updates of 16


def assert_same(a, b):
    chex.assert_trees_all_equal(jax.device_get(a), jax.device_get(b))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of one and a half epochs: its folder and last state."""
    workdir = tmp_path_factory.mktemp("whole")
    return workdir, train(workdir).state


@pytest.mark.slow
def test_learns(tmp_path):
    train(tmp_path, total_steps=60)
    rows = figures_of(tmp_path)
    accuracy = [row["value"] for row in rows if (row["split"], row["name"]) == ("validation", "accuracy")]
    assert len(accuracy) == 10
    assert max(accuracy) > 0.7  # chance is .25
    names = {(row["split"], row["name"]) for row in rows}
    assert {("train", "loss"), ("span", "block_0/sigma_1"), ("span", "block_0/size_0")} <= names


def test_a_speed_is_stored_where_it_was_measured(tmp_path):
    train(tmp_path, total_steps=3, log_steps=1)
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if row["split"] == "speed"]
    steps = {name: [row["step"] for row in rows if row["name"] == name] for name in {row["name"] for row in rows}}
    assert steps == {"images_per_second": [2, 3], "waiting_for_data": [2, 3], "seconds": [1, 2, 3]}
    assert all(row["value"] > 0 for row in rows if row["name"] == "images_per_second")


@pytest.mark.slow
def test_the_latest_two_checkpoints_and_the_best_are_kept(tmp_path):
    train(tmp_path, total_steps=60)
    rows = [row for row in figures_of(tmp_path) if (row["split"], row["name"]) == ("validation", "accuracy")]
    best = max(rows, key=lambda row: (row["value"], -row["step"]))["step"]
    kept = {int(path.name) for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit()}
    assert kept == {best, 54, 60}


class Stop(Exception):
    pass


@pytest.mark.parametrize("stop", [*(pytest.param(stop, marks=pytest.mark.slow) for stop in (2, STEPS_PER_EPOCH)), 8])
def test_resumes_bit_for_bit(whole, tmp_path, stop):
    """Killed after any step, with a checkpoint every two, a run ends as if never stopped."""
    trainer = make_trainer(tmp_path, checkpoint_steps=2)
    update = trainer.program.update

    def update_or_die(*arguments):
        if trainer.step == stop:
            raise Stop
        return update(*arguments)

    trainer.program.update = update_or_die
    with pytest.raises(Stop):
        trainer.run()
    trainer.close()
    resumed = make_trainer(tmp_path, checkpoint_steps=2)
    assert resumed.step == stop
    resumed.run()
    resumed.close()
    assert_same(resumed.state, whole[1])
    assert figures_of(tmp_path) == figures_of(whole[0])


@pytest.mark.slow
def test_metrics_after_the_checkpoint_are_dropped(whole, tmp_path):
    train(tmp_path, total_steps=STEPS_PER_EPOCH)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "epoch": 1.2, "split": "train", "name": "loss", "value": 1.0}\n{"step": 8, "ep')
    train(tmp_path)
    assert figures_of(tmp_path) == figures_of(whole[0])


@pytest.mark.parametrize("signum", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_signals_save_and_stop(whole, tmp_path, signum, capsys):
    trainer = make_trainer(tmp_path)
    update = trainer.program.update

    def update_and_signal(*arguments):
        if trainer.step == 2:
            for _ in range(2 if signum == signal.SIGTERM else 1):  # the second changes nothing
                os.kill(os.getpid(), signum)
        return update(*arguments)

    trainer.program.update = update_and_signal
    with pytest.raises(Interrupted, match=rf"{signum.name} at step 3; saved") as caught:
        trainer.run()
    assert caught.value.exit_code == 128 + signum
    assert capsys.readouterr().err.count(f"{signum.name}: stops") == 1
    trainer.close()
    resumed = train(tmp_path)
    assert_same(resumed.state, whole[1])
    assert figures_of(tmp_path) == figures_of(whole[0])


def test_nan_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path):
    explodes = optax.chain(
        optax.adam(1e-2),
        optax.scale_by_schedule(lambda step: np.float32(1.0) + (step >= STEPS_PER_EPOCH) * np.float32("inf")),
    )
    with pytest.raises(RunError, match=r"parameter_norm is (inf|nan) at step 7: .*step 6 is kept"):
        train(tmp_path, optimizer=explodes)
    restored = make_trainer(tmp_path, optimizer=explodes)
    assert restored.step == 6
    assert all(np.isfinite(array).all() for array in jax.tree.leaves(jax.device_get(restored.state.params)))
    restored.close()


def damage(folder, how):
    step = folder / "checkpoints" / "9"
    if how == "truncated data":
        for path in (step / "state").glob("**/d/*"):
            path.write_bytes(path.read_bytes()[:100])
    elif how == "truncated metadata":
        (step / "state" / "_METADATA").write_text('{"tree_metadata"')
    else:
        for path in step.rglob("*"):
            if path.is_file():
                path.unlink()


@pytest.mark.parametrize(
    "how", [*(pytest.param(f"truncated {part}", marks=pytest.mark.slow) for part in ("data", "metadata")), "emptied"]
)
def test_an_unreadable_checkpoint_falls_back_to_the_one_before(whole, tmp_path, how, caplog):
    workdir = shutil.copytree(whole[0], tmp_path / "run")
    damage(workdir, how)
    resumed = make_trainer(workdir)
    assert resumed.step == 6
    assert "checkpoint 9 cannot be read" in caplog.text
    assert (workdir / "unreadable" / "9").exists(), "nothing is deleted"
    resumed.run()
    resumed.close()
    assert_same(resumed.state, whole[1])


@pytest.mark.slow
def test_a_bad_update_at_the_end_of_an_epoch_is_not_saved(tmp_path):
    explodes = optax.chain(
        optax.adam(1e-2), optax.scale_by_schedule(lambda step: jnp.where(step == STEPS_PER_EPOCH - 1, jnp.inf, 1.0))
    )
    with pytest.raises(RunError, match=r"at step 6: .*no checkpoint"):
        train(tmp_path, optimizer=explodes)


@pytest.mark.slow
def test_the_best_outlives_restarts(tmp_path, monkeypatch):
    """The scores are on disk: a new process knows which checkpoint is the best, and keeps it."""
    trainer = make_trainer(tmp_path, total_steps=30)
    scores = iter([0.2, 0.9, 0.3, 0.4, 0.5])
    monkeypatch.setattr(Evaluator, "of_each", lambda *_: [{"loss": 1.0, "accuracy": next(scores)}])
    trainer.run()
    trainer.close()
    resumed = make_trainer(tmp_path, total_steps=36)
    scores = iter([0.1])
    resumed.run()
    resumed.close()
    checkpoints = Checkpoints(tmp_path, read_only=True)
    assert checkpoints.best_step() == 12
    assert int(checkpoints.restore(resumed.program.abstract, 12)[0].step) == 12
    checkpoints.close()


@pytest.mark.slow
def test_an_unreadable_best_falls_back_to_a_newer_one(tmp_path):
    trainer = train(tmp_path, total_steps=12)
    checkpoints = Checkpoints(tmp_path, read_only=True)
    (tmp_path / "checkpoints" / "6" / "state" / "_METADATA").write_text("")
    assert int(checkpoints.restore(trainer.program.abstract, 6)[0].step) == 12
    assert (tmp_path / "checkpoints" / "6").exists(), "read only"
    checkpoints.close()


def test_a_run_is_not_shortened(whole, tmp_path):
    workdir = shutil.copytree(whole[0], tmp_path / "run")
    with pytest.raises(InputError, match="train.total_steps=8: .* 9 steps"):
        make_trainer(workdir, total_steps=8)


def test_a_run_is_not_shortened_to_where_it_was_not_evaluated(tmp_path):
    stopped = make_trainer(tmp_path)
    stopped.run(until=4)
    stopped.close()
    with pytest.raises(InputError, match=r"train.total_steps=4: .* 4 steps, without an evaluation .*: expected more$"):
        make_trainer(tmp_path, total_steps=4)


def test_a_run_whose_examples_had_another_order_does_not_go_on(whole, tmp_path, monkeypatch):
    workdir = shutil.copytree(whole[0], tmp_path / "run")
    monkeypatch.setattr(EpochOrder, "version", 3)
    with pytest.raises(InputError, match="read the examples in another order"):
        make_trainer(workdir)


def test_no_readable_checkpoint_is_an_error(whole, tmp_path):
    workdir = shutil.copytree(whole[0], tmp_path / "run")
    steps = [path for path in (workdir / "checkpoints").iterdir() if path.name.isdigit()]
    for step in steps:
        (step / "state" / "_METADATA").write_text("")
    with pytest.raises(RunError, match="no checkpoint in .* can be read"):
        make_trainer(workdir)
    assert steps and all(step.exists() for step in steps), "nothing is moved"


SIZES = [((2, 2, 2), 8), ((8, 1, 1), 4), ((8, 1, 1), 8)]


@pytest.mark.slow
@pytest.mark.parametrize("sizes, batch_size", SIZES, ids=str)
def test_eight_devices_lose_as_one_does(tmp_path, sizes, batch_size):
    """Dropout included; but two micro-batches of 4 become one of 8, with other dropout and doubled gradient."""
    rate = 0.0 if batch_size == 4 else 0.1
    runs = [(tmp_path / "one", None), (tmp_path / "eight", MeshAxes(*sizes).make())]
    trainers = [train(folder, mesh=mesh, batch_size=batch_size, task=make_task(rate)) for folder, mesh in runs]
    losses = [[row["value"] for row in figures_of(folder) if row["name"] == "loss"] for folder, _ in runs]
    np.testing.assert_allclose(losses[1], losses[0], atol=1e-5)
    if sizes == (2, 2, 2):
        kernel = trainers[1].state.params["blocks_0"]["feed_forward"]["hidden"]["kernel"]
        moment = trainers[1].state.opt_state[0][0].mu["blocks_0"]["feed_forward"]["hidden"]["kernel"]
        assert kernel.shape == (8, 16) and kernel.addressable_shards[0].data.shape == (4, 8)
        assert moment.addressable_shards[0].data.shape == (4, 8)


@pytest.mark.slow
def test_resumes_on_other_devices(whole, tmp_path):
    train(tmp_path, total_steps=STEPS_PER_EPOCH, mesh=MeshAxes(2, 2, 2).make())
    resumed = train(tmp_path)
    chex.assert_trees_all_close(jax.device_get(resumed.state.params), jax.device_get(whole[1].params), atol=1e-4)


@pytest.mark.parametrize("name", ["total_steps", "eval_batch_size", "log_steps", "keep_checkpoints"])
def test_bad_settings(name):
    fields = {
        "total_steps": 1,
        "batch_size": 1,
        "accumulation_steps": 1,
        "eval_batch_size": 1,
        "log_steps": 1,
    }
    with pytest.raises(ValueError, match=f"{name}=0"):
        Settings(**fields | {name: 0}).decided(10)


def test_steps_per_epoch():
    """Examples that do not fill the last update are left out of an epoch."""
    for num_examples, examples_per_step, expected in ((40_000, 40, 1000), (95, 16, 5), (3, 16, 1)):
        assert EpochOrder(num_examples, examples_per_step, seed=0).steps_per_epoch == expected
