"""Models of the real transformers and timm, into ours and back: POSATTN_TORCH_PYTHON=... pytest -m slow.

The variable names a Python that has torch, transformers, timm and safetensors: see tests/support/make_hugging_face.py.
"""

import os
import pathlib
import shutil
import subprocess

import numpy as np
import pytest

from posattn_jax import MaskedLanguageModel, SequenceClassifier, convert
from tests.convert import test_bert, test_t5, test_vit
from tests.support.command import ROOT

PYTHON = os.environ.get("POSATTN_TORCH_PYTHON")
SCRIPT = pathlib.Path("tests", "support", "make_hugging_face.py")
CLOSE = {"rtol": 0, "atol": 1e-5}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PYTHON, reason="POSATTN_TORCH_PYTHON names no Python")]


def theirs(*arguments):
    result = subprocess.run([PYTHON, SCRIPT, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Models of a width of 48."""
    folder = tmp_path_factory.mktemp("made")
    theirs("make", folder, 48)
    return folder


def answer_of(kind, folder, inputs):
    """What their package tells with the weights that we wrote to a folder."""
    shutil.copy(inputs, folder / "inputs.npz")
    theirs("answer", kind, folder)
    return dict(np.load(folder / "outputs.npz"))


def compare(logits, hidden, expected):
    np.testing.assert_allclose(logits, expected["logits"], **CLOSE)
    for i, states in enumerate(hidden):
        if f"hidden_{i + 1}" in expected:
            np.testing.assert_allclose(states, expected[f"hidden_{i + 1}"], **CLOSE)


@pytest.mark.parametrize("kind", ["bert", "classifier"])
def test_a_bert(made, tmp_path, kind):
    encoder, params = convert.bert(made / kind)
    model = MaskedLanguageModel(encoder) if kind == "bert" else SequenceClassifier(encoder, num_outputs=3)
    told = test_bert.apply(model, params, *test_bert.inputs_of(made / kind))
    compare(*told, dict(np.load(made / kind / "outputs.npz")))
    names = {"id2label": {0: "bad", 1: "so-so", 2: "good"}} if kind == "classifier" else {}
    convert.save_bert(tmp_path, encoder, params, **names)
    compare(*told, answer_of(kind, tmp_path, made / kind / "inputs.npz"))


@pytest.mark.parametrize("kind", ["vit", "timm"])
def test_a_vision_transformer(made, tmp_path, kind):
    model, params = convert.vit(made / kind, 2)
    told = test_vit.apply(model, params, test_vit.pixels_of(made / kind))
    compare(*told, dict(np.load(made / kind / "outputs.npz")))
    names = {"id2label": dict(enumerate("abc"))} if kind == "vit" else {"names": "timm"}
    convert.save_vit(tmp_path, model, params, test_vit.GRID, **names)
    compare(*told, answer_of(kind, tmp_path, made / kind / "inputs.npz"))


def test_timm_reads_what_big_vision_would(tmp_path):
    tensors, logits = test_vit.big_vision("tok")
    np.savez(tmp_path / "vit.npz", **tensors)
    model, params = convert.vit(tmp_path / "vit.npz")
    convert.save_vit(tmp_path / "there", model, params, test_vit.GRID, names="big_vision")
    expected = answer_of("big_vision", tmp_path / "there", test_vit.MADE / "vit" / "inputs.npz")
    np.testing.assert_allclose(logits, expected["logits"], **CLOSE)


def test_the_bias_of_t5(made):
    test_t5.compare(made / "t5")
