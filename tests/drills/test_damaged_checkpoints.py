"""Every file of a checkpoint damaged in every way, one at a time: what is noticed, and what is lost."""

import collections
import shutil

import chex
import jax
import pytest

from tests.drills.damages import DAMAGES, flip_a_bit
from tests.support.recorded import figures_of
from tests.train.made_run import make_trainer

TOTAL = 9  # steps: an evaluation after 6, and the last


def resumed(trainer, workdir):
    """The step at which a run was taken up, and what it came to; the trainer has its compiled programs already."""
    trainer.open([workdir])
    began = trainer.step
    try:
        trainer.run()
    finally:
        trainer.close()
    return began, jax.device_get(trainer.state), figures_of(workdir)


def tell(drill, counts):
    """One line a damage, with the numbers that `docs/reliability.md` has."""
    for name, count in counts.items():
        print(f"{drill}, {name}: " + ", ".join(f"{what} {number}" for what, number in sorted(count.items())))


@pytest.mark.slow
def test_every_file_in_every_way(tmp_path, caplog):
    """A run goes on from the checkpoint before, and ends bit for bit as if it was never stopped."""
    trainer = make_trainer(tmp_path / "whole", total_steps=TOTAL)
    trainer.run()
    trainer.close()
    state = jax.device_get(trainer.state)
    rows = figures_of(tmp_path / "whole")
    newest = tmp_path / "whole" / "checkpoints" / str(TOTAL)
    files = sorted(path.relative_to(newest) for path in newest.rglob("*") if path.is_file())
    assert len(files) > 15

    counts = collections.defaultdict(collections.Counter)
    for damage in DAMAGES:
        for file in files:
            workdir = tmp_path / "damaged"
            shutil.copytree(tmp_path / "whole", workdir)
            damage(workdir / "checkpoints" / str(TOTAL) / file)
            caplog.clear()
            began, at_the_end, its_rows = resumed(trainer, workdir)
            told = [record.getMessage() for record in caplog.records if record.name.startswith("posattn")]
            assert began == 6 and len(told) == 1, (damage.__name__, file)
            assert told[0].startswith("checkpoint 9 cannot be read (") and told[0].endswith(
                "): checkpoint 6 is used instead"
            )
            chex.assert_trees_all_equal(at_the_end, state)
            assert its_rows == rows
            count = counts[damage.__name__]
            count.update({"tried": 1, "noticed": 1, "steps lost": TOTAL - began, "runs lost": 0})
            shutil.rmtree(workdir)
    tell("checkpoint", counts)


@pytest.mark.slow
def test_every_new_checkpoint_damaged_while_the_run_goes_on(tmp_path, caplog):
    """Ten in a row: the last sound one is still there, and the run is taken up from it."""
    trainer = make_trainer(tmp_path / "run", total_steps=12, checkpoint_steps=1)
    save, damaged = trainer.members[0].checkpoints.save, []

    def save_and_damage(state, progress, score=None):
        save(state, progress, score)
        if (step := int(state.step)) > 2:
            trainer.members[0].checkpoints.wait()
            flip_a_bit(max((tmp_path / "run" / "checkpoints" / str(step)).glob("state/**/d/*")))
            damaged.append(step)

    trainer.members[0].checkpoints.save = save_and_damage
    trainer.run()
    trainer.close()
    assert damaged == list(range(3, 13))
    kept = {int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept == {2, 12}
    began, state, _ = resumed(trainer, tmp_path / "run")
    assert began == 2
    whole = make_trainer(tmp_path / "whole", total_steps=12, checkpoint_steps=1)
    whole.run()
    whole.close()
    chex.assert_trees_all_equal(state, jax.device_get(whole.state))
    tell("all newer checkpoints", {"flip_a_bit": {"tried": len(damaged), "runs lost": 0, "steps lost": 12 - began}})
