"""Which configs go on with a run folder."""

import pytest

from configs import digits
from posattn_jax.run.folder import check_config
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_json


def test_a_folder_of_another_run_is_refused(tmp_path):
    config = digits.get_config("tiny")
    write_json(tmp_path / "config.json", config.to_dict())
    check_config(config, tmp_path)
    config.train.bounded_spans = "no"  # which changes no value
    check_config(config, tmp_path)
    config.model.block.attention.span.threshold = 0.2
    with pytest.raises(InputError, match="model.block.attention.span.threshold was 0.1 and is now 0.2"):
        check_config(config, tmp_path)


def test_a_run_of_an_earlier_version_is_refused(tmp_path):
    config = digits.get_config("tiny")
    write_json(tmp_path / "config.json", config.to_dict() | {"model": {"num_blocks": 3, "span": {"enabled": True}}})
    with pytest.raises(InputError, match="its config.json is of an earlier version: model has no kind$"):
        check_config(config, tmp_path)
