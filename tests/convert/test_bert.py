"""BERT from Hugging Face and back, against what transformers tells: see tests/support/make_hugging_face.py."""

import json
import logging
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax import (
    Bert,
    Content,
    EncoderBlock,
    MaskedLanguageModel,
    RelativeBias,
    SequenceClassifier,
    bert_block,
    convert,
)
from posattn_jax.system.errors import InputError
from tests.support.made_params import made_params
from tests.support.slow import slow

safetensors = pytest.importorskip("safetensors.numpy")  # of the extra "convert", and of "test"
MADE = pathlib.Path(__file__).parent / "made"
CLOSE = {"rtol": 0, "atol": 1e-5}


def inputs_of(folder):
    """Tokens, and the rest of what a BERT is called with."""
    with np.load(folder / "inputs.npz") as file:
        mask = jnp.asarray(file["attention_mask"] > 0)
        fields = {"segments": jnp.asarray(file["token_type_ids"], jnp.int32), "key_mask": mask}
        return jnp.asarray(file["input_ids"], jnp.int32), fields


def apply(model, params, tokens, fields):
    """Outputs, and what each block gives."""
    blocks = {"capture_intermediates": lambda module, name: isinstance(module, EncoderBlock) and name == "__call__"}
    run = jax.jit(lambda params, tokens, fields: model.apply({"params": params}, tokens, **fields, **blocks))
    outputs, state = run(params, tokens, fields)
    found = state["intermediates"].get("encoder", state["intermediates"])
    return outputs, [found[f"blocks_{i}"]["__call__"][0][0] for i in range(len(found))]


@pytest.mark.parametrize("kind", ["bert", "classifier"])
def test_every_hidden_state_and_logit(kind):
    """With padding, segments of three ids, an epsilon and an activation that are not the usual ones."""
    encoder, params = convert.bert(MADE / kind)
    model = MaskedLanguageModel(encoder) if kind == "bert" else SequenceClassifier(encoder, num_outputs=3)
    told, hidden = apply(model, params, *inputs_of(MADE / kind))
    with np.load(MADE / kind / "outputs.npz") as expected:
        np.testing.assert_allclose(told, expected["logits"], **CLOSE)
        for i, states in enumerate(hidden):
            np.testing.assert_allclose(states, expected[f"hidden_{i + 1}"], **CLOSE)
        if kind == "bert":
            pooled = np.tanh(hidden[-1][:, 0] @ params["pooler"]["kernel"] + params["pooler"]["bias"])
            np.testing.assert_allclose(pooled, expected["pooled"], **CLOSE)
    assert len(hidden) == 2 and encoder.dropout_rate == encoder.blocks[0].dropout_rate == 0.2
    assert encoder.blocks[0].attention.dropout_rate == 0.1


def test_what_is_left_out_is_told(caplog):
    with caplog.at_level(logging.WARNING):
        convert.bert(MADE / "bert")
    (told,) = caplog.messages
    left_out = "cls.seq_relationship.bias (2,), cls.seq_relationship.weight (2, 8)"
    assert told == f"{MADE / 'bert' / 'model.safetensors'}: left out: {left_out}"


def test_what_transformers_calls_it(tmp_path):
    encoder, params = convert.bert(MADE / "bert")
    for left_out, expected in (((), "BertForPreTraining"), (("pooler",), "BertForMaskedLM")):
        path = convert.save_bert(tmp_path, encoder, {n: each for n, each in params.items() if n not in left_out})
        assert json.loads(path.with_name("config.json").read_text())["architectures"] == [expected]


@pytest.mark.parametrize("kind, heads", [("bert", ("pooler", "transform")), ("bert", ("pooler",)), ("classifier", ())])
def test_there_and_back(tmp_path, kind, heads):
    """The names and numbers of the file, of which a model without other heads has no prefix."""
    encoder, params = convert.bert(MADE / kind)
    if "transform" not in heads and heads:
        params = {name: params[name] for name in ("encoder", *heads)}
    path = convert.save_bert(tmp_path / "there", encoder, params, pad_token_id=0)
    theirs, ours = (safetensors.load_file(each) for each in (MADE / kind / "model.safetensors", path))
    prefix = "" if heads == ("pooler",) else "bert."
    assert all(name.startswith((prefix, "cls.", "classifier.")) for name in ours)
    for name, tensor in ours.items():
        np.testing.assert_array_equal(tensor, theirs[name if prefix else f"bert.{name}"], err_msg=name)
    missing = {"cls.seq_relationship.weight", "cls.seq_relationship.bias"} if kind == "bert" else set()
    assert prefix == "" or set(ours) == set(theirs) - missing
    config, own = (json.loads(each.with_name("config.json").read_text()) for each in (MADE / kind / "x", path))
    assert own["pad_token_id"] == 0
    config["num_labels"] = 3  # which transformers writes as three names
    assert all(config[name] == value for name, value in own.items() if name != "architectures")
    again, params_again = convert.bert(tmp_path / "there")
    assert again == encoder
    jax.tree.map(np.testing.assert_array_equal, params_again, params)


@pytest.mark.parametrize("dtype", [slow("float16"), "bfloat16"])
def test_names_of_tensorflow_and_16_bits(tmp_path, dtype):
    """As in files that are older than PyTorch's names."""
    shutil.copytree(MADE / "bert", tmp_path / "old")
    tensors = safetensors.load_file(MADE / "bert" / "model.safetensors")
    old = {_old(name): tensor.astype(dtype) for name, tensor in tensors.items()}
    safetensors.save_file(old, tmp_path / "old" / "model.safetensors")
    _, params = convert.bert(tmp_path / "old")
    _, expected = convert.bert(MADE / "bert")
    assert {array.dtype for array in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=5e-3), params, expected)


def _old(name):
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def changed(folder, config=None, **tensors):
    """A copy of the BERT with other tensors, or without those that are None, and with other fields of its config."""
    shutil.copytree(MADE / "bert", folder)
    given = safetensors.load_file(MADE / "bert" / "model.safetensors") | tensors
    safetensors.save_file(
        {name: each for name, each in given.items() if each is not None}, folder / "model.safetensors"
    )
    saved = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(saved | (config or {})))
    return folder


def configured(folder, kind, **config):
    """A copy of a file with other entries in its config.json."""
    shutil.copytree(MADE / kind, folder)
    saved = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(saved | config))
    return folder


QUERY, LAYER = "bert.encoder.layer.1.attention.self.query.weight", "bert.encoder.layer.1."


@pytest.mark.parametrize(
    "fields, message",
    [
        ({QUERY: None}, rf"{QUERY} is missing, expected \(8, 8\)$"),
        ({QUERY: np.zeros((4, 8), np.float32)}, rf"{QUERY} is \(4, 8\), expected \(8, 8\)$"),
        ({f"{LAYER}crossattention.x": np.zeros(3, np.float32)}, rf"{LAYER}crossattention.x \(3,\) has no place here$"),
        ({"bert.embeddings.word_embeddings.weight": None}, "expected a BERT"),
        ({"bert.embeddings.position_embeddings.weight": None}, "position_embeddings.weight is missing"),
        ({"bert.embeddings.position_embeddings.weight": np.zeros(3, np.float32)}, r"is \(3,\), expected 2 sizes$"),
        ({"config": {"model_type": "roberta"}}, "model_type='roberta': .*'bert'"),
        ({"config": {"position_embedding_type": "relative_key"}}, "='relative_key': expected 'absolute'"),
        ({"config": {"hidden_act": "mish"}}, 'hidden_act="mish": .*gelu_new'),
        ({"config": {"hidden_act": ["gelu"]}}, "hidden_act=.*gelu_new"),
        ({"config": {"hidden_act": "relu"}}, 'hidden_act="relu": .*cls.predictions'),
        ({"config": {"layer_norm_eps": -1e-12}}, "layer_norm_eps=-1e-12: expected a value such as 1e-12"),
        ({"config": {"layer_norm_eps": float("nan")}}, "layer_norm_eps=nan: expected a value such as 1e-12"),
        ({"config": {"num_attention_heads": "2"}}, "num_attention_heads='2'"),
        ({"config": {"num_attention_heads": 3}}, "num_attention_heads=3 .* 8"),
        ({"config": {"num_attention_heads": 0}}, "num_attention_heads=0 .* 8"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_a_file_that_does_not_fit(tmp_path, unchecked, fields, message):
    with pytest.raises(InputError, match=message):
        convert.bert(changed(tmp_path / "bert", **fields))


@pytest.mark.parametrize(
    "kind, name, given, own",
    [
        ("bert", "num_hidden_layers", 1, 2),
        ("bert", "num_hidden_layers", 3, 2),
        ("bert", "hidden_size", 16, 8),
        ("bert", "intermediate_size", 8, 12),
        ("bert", "vocab_size", 41, 40),
        ("bert", "vocab_size", "40", 40),
        ("bert", "max_position_embeddings", 8, 16),
        ("bert", "type_vocab_size", 2, 3),
        ("bert", "embedding_size", 4, 8),
        ("classifier", "num_hidden_layers", 3, 2),
        ("classifier", "num_labels", 2, 3),
        ("classifier", "id2label", {"0": "bad", "1": "good"}, 3),
        ("classifier", "id2label", {"1": "bad", "2": "so-so", "3": "good"}, 3),
    ],
)
def test_a_config_that_contradicts_its_weights(tmp_path, unchecked, kind, name, given, own):
    """Both values are named, of every size in config.json."""
    with pytest.raises(InputError) as raised:
        convert.bert(configured(tmp_path / kind, kind, **{name: given}))
    shown = f"{len(given)} names ({', '.join(given)})" if isinstance(given, dict) else repr(given)
    path = tmp_path / kind / "model.safetensors"
    assert str(raised.value) == f"{path}: {name}={shown} in its config, but {own} in its tensors"


def test_all_contradictions_are_one_line(tmp_path):
    with pytest.raises(InputError, match="hidden_size=9 .* 8 .*num_hidden_layers=3"):
        convert.bert(configured(tmp_path / "bert", "bert", num_hidden_layers=3, hidden_size=9))


def test_what_config_json_does_not_say_is_no_contradiction(tmp_path):
    folder = configured(tmp_path / "bert", "bert", num_hidden_layers=None, vocab_size=None, id2label={})
    assert convert.bert(folder)[0] == convert.bert(MADE / "bert")[0]


def test_a_layer_between_others_that_is_missing(tmp_path):
    """Layers 0 and 2: the numbers in the names say three."""
    tensors = safetensors.load_file(MADE / "bert" / "model.safetensors")
    moved = {name: None for name in tensors if name.startswith(LAYER)}
    moved |= {name.replace("layer.1.", "layer.2."): tensors[name] for name in moved}
    with pytest.raises(InputError, match="num_hidden_layers=2 .* 3 "):
        convert.bert(changed(tmp_path / "two", **moved))
    with pytest.raises(InputError, match=rf"{LAYER}attention.self.query.weight"):
        convert.bert(changed(tmp_path / "three", {"num_hidden_layers": 3}, **moved))


def test_two_tensors_for_one_name(tmp_path):
    """One of them would be left out without a word."""
    name = "bert.embeddings.LayerNorm.gamma"
    with pytest.raises(InputError, match=f"{name} and .*LayerNorm.weight are two"):
        convert.bert(changed(tmp_path / "bert", **{name: np.ones(8, np.float32)}))


def test_output_embeddings_of_their_own(tmp_path):
    """Ours are tied: a copy is left out, others are refused."""
    tensors = safetensors.load_file(MADE / "bert" / "model.safetensors")
    embeddings, bias = tensors["bert.embeddings.word_embeddings.weight"], tensors["cls.predictions.bias"]
    name = "cls.predictions.decoder"
    convert.bert(changed(tmp_path / "tied", **{f"{name}.weight": embeddings, f"{name}.bias": bias}))
    for end, other in (("weight", embeddings), ("bias", bias)):
        with pytest.raises(InputError, match=rf"{name}.{end} .*tied"):
            convert.bert(changed(tmp_path / end, **{f"{name}.{end}": other + 1}))


def test_a_head_without_names_has_its_size(tmp_path):
    encoder, params = convert.bert(MADE / "classifier")
    path = convert.save_bert(tmp_path, encoder, params)
    assert json.loads(path.with_name("config.json").read_text())["num_labels"] == 3


def test_many_tensors_that_are_missing_are_one_line(tmp_path):
    tensors = safetensors.load_file(MADE / "bert" / "model.safetensors")
    gone = {name: None for name in tensors if name.startswith(LAYER) and "key" not in name}
    with pytest.raises(InputError, match="; and 6 more$"):
        convert.bert(changed(tmp_path / "bert", **gone))


def test_files_that_are_none(tmp_path):
    with pytest.raises(InputError, match="expected model.safetensors"):
        convert.bert(tmp_path)
    with pytest.raises(InputError, match=r"weights.h5: .*an .npz"):
        convert.bert(tmp_path / "weights.h5")
    with pytest.raises(InputError, match="gone.safetensors: cannot be read"):
        convert.bert(tmp_path / "gone.safetensors")
    whole = (MADE / "bert" / "model.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:-10])
    with pytest.raises(InputError, match="cut.safetensors: cannot be read"):
        convert.bert(tmp_path / "cut.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(whole)
    with pytest.raises(InputError, match="config.json is missing"):
        convert.bert(tmp_path / "cut.safetensors")


@pytest.mark.parametrize(
    "fields, block, message",
    [
        ({"embedding_dim": 4}, {}, "model.embedding_dim=4, but None"),
        ({"absolute_positions": False}, {}, "model.absolute_positions=False, but True"),
        ({}, {"terms": (Content(), RelativeBias((3,)))}, r"attention.terms=\(Content, RelativeBias\), but \(Content\)"),
        ({"scan_layers": True}, {}, "model.scan_layers=True, but False"),
        ({}, {"use_output": False}, r"attention.use_output=False, but True"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_model_that_they_have_not(tmp_path, fields, block, message):
    model = Bert(20, 8, (bert_block(2, 12, **block),), max_length=9, **fields)
    params = made_params(lambda: model.init(jax.random.key(0), jnp.zeros((1, 5), int))["params"])
    with pytest.raises(InputError, match=message):
        convert.save_bert(tmp_path, model, {"encoder": params})
    assert not list(tmp_path.iterdir())


def test_parameters_without_a_name(tmp_path):
    encoder, params = convert.bert(MADE / "bert")
    with pytest.raises(InputError, match=r"no name for other/kernel"):
        convert.save_bert(tmp_path, encoder, params | {"other": {"kernel": jnp.zeros((2, 3))}})
