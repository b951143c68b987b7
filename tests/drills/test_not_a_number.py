"""NaN in an image: the run stops before anything of it is saved, and goes on once the data is fixed."""

import jax
import numpy as np
import pytest

from posattn_jax.data.images import GridImages
from posattn_jax.system.errors import RunError
from tests.support.recorded import figures_of
from tests.train.made_run import make_images, make_trainer, train


@pytest.mark.slow
def test_a_damaged_image(tmp_path, monkeypatch):
    """Each of some images in turn: whichever update it comes to first is where the run stops."""
    fields = {"total_steps": 9, "checkpoint_steps": 1}
    whole = train(tmp_path / "whole", **fields)
    sound, num_images, stopped_at = GridImages.batch, len(make_images()), []
    for damaged in range(0, num_images, 12):

        def batch(source, ids, damaged=damaged):
            made = sound(source, ids)
            if len(source) == num_images:  # the training images
                made["inputs"] = np.where((np.asarray(ids) == damaged)[:, None, None], np.nan, made["inputs"])
            return made

        monkeypatch.setattr(GridImages, "batch", batch)
        trainer = make_trainer(tmp_path / str(damaged), **fields)
        with pytest.raises(RunError, match=r"is nan at step \d: .*(is kept|was saved yet)") as error:
            trainer.run()
        trainer.close()
        stopped_at.append(int(str(error.value).split("at step ")[1][0]))
        monkeypatch.setattr(GridImages, "batch", sound)
        resumed = make_trainer(tmp_path / str(damaged), **fields)
        assert resumed.step < stopped_at[-1], "nothing of the bad update was saved"
        resumed.run()
        resumed.close()
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(resumed.state), jax.device_get(whole.state))
        assert figures_of(tmp_path / str(damaged)) == figures_of(tmp_path / "whole")
    print(f"a damaged image: {len(stopped_at)} times, stopped at the updates {stopped_at}")
    assert len(set(stopped_at)) > 2
