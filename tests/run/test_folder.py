"""Which configs go on with a run folder."""

import json

import numpy as np
import pytest

from configs import digits, image_folder
from posattn_jax.config import saved
from posattn_jax.config.parts import change, part
from posattn_jax.data.images import ImageSet
from posattn_jax.data.images.image_folder import ImageFolder
from posattn_jax.run.folder import check_config, check_evaluation
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_json
from posattn_jax.train.schedule import Cosine


def test_a_folder_of_another_run_is_refused(tmp_path):
    config = digits.get_config("tiny")
    write_json(tmp_path / "config.json", config.to_dict())
    check_config(config, tmp_path)
    config.train.bounded_spans = "no"  # which changes no value
    check_config(config, tmp_path)
    config.model.block.attention.span.threshold = 0.2
    with pytest.raises(InputError, match="span.threshold was 0.1 .* 0.2"):
        check_config(config, tmp_path)


def test_a_run_is_made_longer(tmp_path):
    """Where its learning rate does not depend on its length; else a new run begins with its parameters."""
    config = digits.get_config("tiny")
    write_json(tmp_path / "config.json", config.to_dict())
    config.train.total_steps = 9
    check_config(config, tmp_path)
    config.optimizer.schedule = part(Cosine)
    write_json(tmp_path / "config.json", config.to_dict())
    config.train.total_steps = 12
    remedy = f"total_steps was 9 and is now 12; the learning rate .* --config.task.pretrained={tmp_path}$"
    with pytest.raises(InputError, match=remedy):
        check_config(config, tmp_path)
    config.seed += 1
    with pytest.raises(InputError, match="; choose another folder$"):
        check_config(config, tmp_path)


def test_an_evaluation_may_change_the_size_of_images(tmp_path):
    config = image_folder.get_config("tiny")
    write_json(tmp_path / "config.json", config.to_dict())
    config.data.update(height=96, width=24)
    check_evaluation(config, tmp_path)
    with pytest.raises(InputError, match="data.height was 8 .* 96, .*another folder"):
        check_config(config, tmp_path)
    config.data.channels = 1
    with pytest.raises(InputError, match="data.channels was 3 .*--config .*only data.height"):
        check_evaluation(config, tmp_path)
    images = ImageSet(np.zeros((2, 96, 24, 3), np.uint8), np.zeros(2, np.int64), 2)
    large = ImageFolder(height=96, width=24, pool=2).lay_out(images, ("a", "b"))
    assert large.knows["input_shape"] == (48, 12)
    assert ImageFolder(height=8, width=6).input_shape(large) == (8, 6), "of training, in which distances are measured"


def test_a_run_of_an_earlier_version_is_refused(tmp_path):
    config = digits.get_config("tiny")
    write_json(tmp_path / "config.json", config.to_dict() | {"model": {"num_blocks": 3, "span": {"enabled": True}}})
    with pytest.raises(InputError, match="earlier version: model has no kind$"):
        check_config(config, tmp_path)


def test_a_run_goes_on_whose_classes_have_moved(tmp_path):
    """Their names are told in no message: they are the same classes."""
    config = digits.get_config("tiny")
    now, then = "posattn_jax.data.images.image_sets:Images", "posattn_jax.data.image_sets:Images"
    assert config.data.kind == now
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()).replace(now, then))
    check_config(config, tmp_path)
    config.data.kind = then  # as an old command has it
    check_config(config, tmp_path)
    assert saved.get_config(str(tmp_path)).data.kind == now
    with pytest.raises(InputError, match="seed was 9188 and is now 3"):
        check_config(change(config, {"seed": 3}), tmp_path)
