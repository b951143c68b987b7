"""PosNet and its rivals (Schmidt 2023): state dicts by the names of the authors' code, and its formulas in loops."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax import EncoderDecoder, SequenceBlock, StackPositions, TokenMixing, convert
from posattn_jax.system.errors import InputError
from tests.convert.schmidt_code import LENGTH, MLP, C, Code

safetensors = pytest.importorskip("safetensors.numpy")  # of the extra "convert", and of "test"
WORDS = 6
SIZES = {"encL": 1, "decL": 1, "model_dim": C, "ff_dim": MLP, "nHeads": 2, "dropout": 0.1, "tiew": True}
SIZES |= {"max_sentence_length": LENGTH, "length_ratio": 1.3}
GATED = {"gating_v": "gelu", "gating_g": "gelu", "normalize_v": True, "normalize_g": False}
UNGATED = {"gating_v": "none", "gating_g": "none", "normalize_v": False, "normalize_g": False}


def posnet(kind, places, own=GATED, cross=UNGATED):
    """Of these places, some of e, d and c."""
    names = {"e": "enc_self_att", "d": "dec_self_att", "c": "dec_cross_att"}
    found = {f"posnet_{name}": place in places for place, name in names.items()}
    return {"model": "PosNet", "posnet_type": kind, "K": 2} | found | own | {f"cross_{n}": v for n, v in cross.items()}


CONFIGS = {
    "rposnet": posnet("rPosNet", "edc", cross=GATED | {"gating_g": "sigmoid"}) | {"tiew": False},
    "aposnet": posnet("aPosNet", "ec", own=GATED | {"normalize_v": False}),
    "relative": {"model": "RelTransformer", "K": 2, "only_rel_attention": True, "gating": True, "use_pos_embed": True},
    "layers": posnet("rPosNet", "ed") | {"K_per_layer": True, "Ks": [2, 1], "encL": 2, "decL": 2},
    "transformer": {"model": "Transformer", "gating": True},
    "shaw": {"model": "RelTransformer", "K": 2},
    "lightconv": {"model": "LightConv", "K": 2, "global_context": False} | UNGATED | {"gating_v": "glu"},
    "lightconv_global": {"model": "LightConv", "K": 1, "global_context": True} | GATED,
    "linear": {"model": "LinearAttn", "linearattn_enc_self_att": True, "linearattn_dec_self_att": True}
    | {"linearattn_dec_cross_att": False, "gating": True},
    "gaussian": {"model": "GaussianAttn", "gaussianattn_enc_self_att": True, "gaussianattn_dec_self_att": True}
    | {"std": 0.7, "use_glu": True, "use_multi_head_gaussians": True, "use_sinusodial_pos_embed": True},
    "fourier": {"model": "FNet", "fnet_enc_self_att": True, "fnet_dec_self_att": False, "just_like_fnet": False},
}
QUICK = ("rposnet",)


def code(name):
    config = SIZES | CONFIGS[name]
    return config, Code(config, (WORDS, WORDS + (not config["tiew"])))


def read(folder, tensors, config):
    safetensors.save_file(tensors, folder / "model.safetensors")
    return convert.posnet(folder, 0, **config)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CONFIGS])
def test_log_probabilities_are_those_of_the_formulas_and_there_and_back(tmp_path, float64, name):
    config, theirs = code(name)
    tensors = theirs.state()
    model, params = read(tmp_path, tensors, config)
    double = jax.tree.map(lambda array: jnp.asarray(array, jnp.float64), params)
    source, target = np.array([[3, 1, 5, 2, 4], [4, 2, 1, 0, 0]]), np.array([[1, 3, 2, 5, 4, 1], [1, 2, 4, 3, 0, 0]])
    logits = jax.jit(lambda *ids: model.apply({"params": double}, *ids))(jnp.asarray(source), jnp.asarray(target))
    expected = [theirs.told(tensors, *pair) for pair in zip(source, target, strict=True)]
    # The scales of layer norms are multiplied by a number, and rounded to float32.
    np.testing.assert_allclose(jax.nn.log_softmax(logits), expected, rtol=0, atol=2e-6)

    written = safetensors.load_file(convert.save_posnet(tmp_path / "there", model, params))
    assert written.keys() == tensors.keys()
    for each, tensor in tensors.items():
        rounded = each.endswith((".a", "pos_embed")) or each in theirs.buffers
        np.testing.assert_allclose(written[each], tensor, rtol=2e-7 * rounded, atol=1e-7 * rounded)
    assert written.keys() - theirs.shapes == theirs.buffers.keys()
    again, _ = convert.posnet(tmp_path / "there", 0)  # by the config.json that is there
    assert again == model


@pytest.mark.parametrize(
    "config, message",
    [
        ({"model": "BERT"}, "model='BERT': .*'PosNet'"),
        ({"nHeads": None}, "the config says no nHeads"),
        ({"posnet_type": "arPosNet"}, "posnet_type='arPosNet': .*'rPosNet'"),
        ({"gating_o": "sigmoid"}, "gating_o='sigmoid'"),
        ({"gating_g": "glu"}, "gating_g='glu': .*'gelu'"),
        ({"use_pos_embed": False}, "use_pos_embed=False"),
        ({"K_per_layer": True, "Ks": []}, r"Ks=\[\]: expected 1 whole numbers"),
        ({"K_per_layer": True, "Ks": 2}, "Ks=2: expected 1 whole numbers"),
        ({"encL": [1]}, r"encL=\[1\]: expected a whole number"),
        ({"dropout": "1e-1"}, "dropout='1e-1': expected a number of at least 0"),  # as YAML reads 1e-1
        ({"length_ratio": math.nan}, "length_ratio=nan: expected a number of at least 0"),
        ({"tiew": "False"}, "tiew='False': expected True or False"),
        ({"K": 3}, "K=3 in its config, but 2 in its tensors$"),
        ({"K_per_layer": True, "Ks": [1]}, "Ks.0=1 .*but 2 "),
        ({"encL": 2}, "encL=2 .*but 1 "),
        ({"decL": 3}, "decL=3 .*but 1 "),
        ({"model_dim": 6}, f"model_dim=6 .*but {C} "),
        ({"ff_dim": 99}, f"ff_dim=99 .*but {MLP} "),
        ({"max_sentence_length": 99}, f"max_sentence_length=99 .*but {LENGTH} "),
        ({"nHeads": 3}, "nHeads=3 .* 4"),
        ({"length_ratio": 0.5}, "cross_att.indices has other numbers"),
    ],
)
def test_what_does_not_fit(tmp_path, unchecked, config, message):
    known, theirs = code("rposnet")
    with pytest.raises(InputError, match=message):
        read(tmp_path, theirs.state(), known | config)


@pytest.mark.parametrize(
    "name, config", [("lightconv", {"nHeads": 4}), ("linear", {"nHeads": 1}), ("lightconv", {"K": 1})]
)
def test_numbers_of_weights_that_are_tables(tmp_path, name, config):
    known, theirs = code(name)
    ((field, given),) = config.items()
    with pytest.raises(InputError, match=f"{field}={given} .*but 2 "):
        read(tmp_path, theirs.state(), known | config)


@pytest.mark.parametrize("pad_id", [-1, WORDS])
def test_padding_that_is_no_word(tmp_path, pad_id):
    config, theirs = code("rposnet")
    safetensors.save_file(theirs.state(), tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=f"pad_id={pad_id}: expected one of the {WORDS} ids"):
        convert.posnet(tmp_path, pad_id, **config)


def test_three_matrices_are_not_one(tmp_path):
    config, theirs = code("transformer")
    name = "decoder.tgt_embed.object_to_time.word_embed.weight"
    with pytest.raises(InputError, match=f"tiew=True, .*{name}"):
        read(tmp_path, theirs.state() | {name: np.zeros((WORDS, C), np.float32)}, config)


def test_what_the_code_has_not(tmp_path):
    block = SequenceBlock(TokenMixing(2), MLP, TokenMixing(2))
    model = EncoderDecoder(WORDS, C, (block.clone(cross=None),), (block,), StackPositions(), StackPositions())
    with pytest.raises(InputError, match="model.encoder_blocks.*; model.layer_norm_epsilon=1e-06"):
        convert.save_posnet(tmp_path, model, {})
