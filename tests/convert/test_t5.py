"""The bias of T5's encoder, against what transformers tells: see tests/support/make_hugging_face.py."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from posattn_jax import BucketedBias, convert
from posattn_jax.ops.biases import buckets
from posattn_jax.system.errors import InputError
from tests.support.made_tokens import made_tokens

safetensors = pytest.importorskip("safetensors.numpy")  # of the extra "convert", and of "test"
MADE = pathlib.Path(__file__).parent / "made"


def compare(folder):
    """From 299 places before the query to 299 after it: 32 buckets, up to a distance of 128."""
    term, params = convert.t5_bias(folder)
    tokens = made_tokens(3, 3, (300,))
    bias = jax.jit(lambda params: term.apply({"params": params}, None, None, tokens).relative_bias)(params)
    with np.load(folder / "outputs.npz") as expected:
        np.testing.assert_array_equal(bias, expected["bias"])
    assert len(np.unique(bias[:, 0])) == 31, "no key after its query is at a distance of 0"


def test_the_bias_of_every_offset():
    compare(MADE / "t5")


def test_there_and_back(tmp_path):
    term, params = convert.t5_bias(MADE / "t5")
    convert.save_t5_bias(tmp_path, term, params)
    again, same = convert.t5_bias(tmp_path)
    assert again == term
    np.testing.assert_array_equal(same["table"], params["table"])
    theirs, ours = (safetensors.load_file(folder / "model.safetensors") for folder in (MADE / "t5", tmp_path))
    assert len(ours) == 1 and all(np.array_equal(theirs[name], tensor) for name, tensor in ours.items())


def test_a_table_of_a_grid_is_none_of_t5(tmp_path):
    term, params = convert.t5_bias(MADE / "t5")
    with pytest.raises(InputError, match=r"table \[32, 1, 3\]"):
        convert.save_t5_bias(tmp_path, term, {"table": params["table"][:, None]})


def test_a_table_for_each_layer(tmp_path):
    """As UMT5 has."""
    tensors = safetensors.load_file(MADE / "t5" / "model.safetensors")
    (name,) = (each for each in tensors if "relative_attention_bias" in each)
    safetensors.save_file(tensors | {name.replace("block.0", "block.1"): tensors[name]}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="a table for each layer"):
        convert.t5_bias(tmp_path)


@pytest.mark.parametrize("name, given, own", [("relative_attention_num_buckets", 16, 32), ("num_heads", 4, 3)])
def test_a_config_that_contradicts_its_table(tmp_path, name, given, own):
    shutil.copytree(MADE / "t5", tmp_path / "t5")
    saved = json.loads((tmp_path / "t5" / "config.json").read_text())
    (tmp_path / "t5" / "config.json").write_text(json.dumps(saved | {name: given}))
    with pytest.raises(InputError, match=f"{name}={given} .*but {own} "):
        convert.t5_bias(tmp_path / "t5")


def test_a_distance_that_is_too_small(tmp_path):
    """Told where it is read, not at the first use."""
    shutil.copytree(MADE / "t5", tmp_path / "t5")
    saved = json.loads((tmp_path / "t5" / "config.json").read_text())
    (tmp_path / "t5" / "config.json").write_text(json.dumps(saved | {"relative_attention_max_distance": 1}))
    with pytest.raises(InputError, match="model.safetensors: max_distance=1: expected more than"):
        convert.t5_bias(tmp_path / "t5")


def test_the_rest_of_the_model_is_left_out_with_a_warning(caplog):
    number = len(safetensors.load_file(MADE / "t5" / "model.safetensors")) - 1
    convert.t5_bias(MADE / "t5")
    assert f"left out: {number} tensors" in caplog.text


def test_no_t5():
    with pytest.raises(InputError, match="no encoder of T5: .*SelfAttention.relative"):
        convert.t5_bias(MADE / "bert")


@pytest.mark.parametrize(
    "num_buckets, max_distance, message",
    [
        (7, 128, "num_buckets=7: .*even"),
        (2, 128, "num_buckets=2: .*even"),
        (32, 8, "max_distance=8"),
    ],
)
def test_buckets_that_cannot_be(num_buckets, max_distance, message):
    with pytest.raises(ValueError, match=message):
        buckets(np.arange(3), num_buckets, max_distance)
    with pytest.raises(ValueError, match=message):
        BucketedBias(num_buckets, max_distance)
