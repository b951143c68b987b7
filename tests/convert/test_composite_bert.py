"""The BERT of Chang 2021: a state dict by the names of the authors' code, against loops of its formulas."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax import Content, MaskedLanguageModel, convert
from posattn_jax.system.errors import InputError
from tests.support.slow import slow

safetensors = pytest.importorskip("safetensors.numpy")  # of the extra "convert", and of "test"
E, C, H, D, MLP, WORDS, LENGTH, LAYERS, EPSILON = 3, 8, 4, 2, 5, 7, 6, 2, 1e-3
CONFIG = {"num_attention_heads": H, "layer_norm_eps": EPSILON, "max_position_embeddings": LENGTH}
ALL = "qk_convfixed_convq_convk_convolution 1"
SEPARABLE = "convolution_depth_mixed_no_act 1 1"


def linear(name, features, inputs):
    return {f"{name}.weight": (features, inputs), f"{name}.bias": (features,)}


def norm(name, width=C):
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def state(kernel, positions=False, convolved=()):
    """Shapes by names, and values drawn from them; of some of queries, keys and values half of the heads convolve."""
    shapes = {
        f"bert.embeddings.{name}.weight": (size, E)
        for name, size in (("word_embeddings", WORDS), ("token_type_embeddings", 2))
    }
    shapes |= norm("bert.embeddings.LayerNorm", E) | linear("bert.embeddings_project", C, E)
    if positions:
        shapes["bert.embeddings.position_embeddings.weight"] = (LENGTH, E)
    taps = 2 * int(kernel.split()[1]) + 1 if " " in kernel else 0
    for i in range(LAYERS):
        layer = f"bert.encoder.layer.{i}"
        own = f"{layer}.attention.self"
        for name in ("query", "key", "value"):
            if name in convolved:
                shapes |= {f"{own}.{name}_conv.weight": (C, 1, 3), f"{own}.{name}_conv.bias": (C,)}
                shapes |= linear(f"{own}.{name}_pointwise", C // 2, C) | linear(f"{own}.{name}_linear", C // 2, C)
            else:
                shapes |= linear(f"{own}.{name}", C // 2 if kernel == "convbert" and name != "value" else C, C)
        if kernel == "convbert":
            depthwise = f"{own}.convbert_key_depthwise"
            shapes |= {f"{depthwise}.weight": (C, 1, 9), f"{depthwise}.bias": (C,)}
            shapes |= linear(f"{own}.convbert_key_pointwise", C // 2, C)
            shapes |= linear(f"{own}.lightweight_kernel", H // 2 * 9, C // 2)
        shapes |= linear(f"{layer}.attention.output.dense", C, C) | norm(f"{layer}.attention.output.LayerNorm")
        shapes |= linear(f"{layer}.intermediate.dense", MLP, C) | linear(f"{layer}.output.dense", C, MLP)
        shapes |= norm(f"{layer}.output.LayerNorm")
        if "convfixed" in kernel:
            shapes[f"{own}.convfixed_param"] = (1, H, 1, taps)
        shapes |= {f"{own}.{name}_param": (D, taps) for name in ("convq", "convk") if name in kernel}
        if "convolution" in kernel:
            shapes |= {f"{own}.convolution.weight": (C, 1, taps), f"{own}.convolution.bias": (C,)}
            shapes[f"{own}.convolution_scalar"] = (1, H, 1, 1)
    offsets = np.array([[s - t for s in range(LENGTH)] for t in range(LENGTH)])
    buffers = {f"bert.encoder.layer.{i}.attention.self.relative_positions_mat": offsets for i in range(LAYERS)}
    buffers = {name: np.clip(each, -(taps // 2), taps // 2)[None, None] + taps // 2 for name, each in buffers.items()}
    has_buffers = any(name in kernel for name in ("convfixed", "convq", "convk"))
    shapes |= linear("cls.predictions.transform.dense", E, C) | norm("cls.predictions.transform.LayerNorm", E)
    shapes["cls.predictions.bias"] = (WORDS,)
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(0, 0.5, shape) for name, shape in shapes.items()}
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]  # tied
    return tensors | (buffers if has_buffers else {})


def convolve(x, tensors, name, mask):
    """Each feature by itself, of tokens that are no padding."""
    kernel, outputs = tensors[f"{name}.weight"], np.zeros(x.shape)
    for t, c in np.ndindex(*x.shape):
        near = [(s, s - t + kernel.shape[-1] // 2) for s in np.flatnonzero(mask)]
        outputs[t, c] = sum(x[s, c] * kernel[c, 0, tap] for s, tap in near if 0 <= tap < kernel.shape[-1])
    return outputs + tensors[f"{name}.bias"]


def convbert(x, tensors, own, mask):
    """The first half of the heads attends; kernels of the others are made at their keys."""

    def apply(name, x):
        return x @ tensors[f"{own}.{name}.weight"].T + tensors[f"{own}.{name}.bias"]

    n, half = len(x), H // 2
    q, k, v = (apply(name, x) for name in ("query", "key", "value"))
    span = apply("convbert_key_pointwise", convolve(x, tensors, f"{own}.convbert_key_depthwise", mask))
    kernels = apply("lightweight_kernel", span * q).reshape(n, half, 9)
    q, k, v, outputs = q.reshape(n, half, D), k.reshape(n, half, D), v.reshape(n, H, D), np.zeros((n, H, D))
    for t, h in np.ndindex(n, H):
        scores = np.full(n, -np.inf)
        for s in np.flatnonzero(mask):
            if h < half:
                scores[s] = q[t, h] @ k[s, h] / math.sqrt(D)
            elif abs(s - t) <= 4:
                scores[s] = kernels[s, h - half, s - t + 4]
        weights = np.exp(scores - scores.max())
        outputs[t, h] = weights / weights.sum() @ v[:, h]
    return outputs.reshape(n, C)


def attend(x, tensors, own, mask, kernel):
    n = len(x)
    if kernel == "convbert":
        return convbert(x, tensors, own, mask)

    def apply(name, x):
        return x @ tensors[f"{own}.{name}.weight"].T + tensors[f"{own}.{name}.bias"]

    def project(name):
        if f"{own}.{name}.weight" in tensors:
            return apply(name, x)
        convolved = convolve(x, tensors, f"{own}.{name}_conv", mask)
        return np.concatenate([apply(f"{name}_pointwise", convolved), apply(f"{name}_linear", x)], 1)

    q, k, v = (project(name) for name in ("query", "key", "value"))
    q, k, by_head = (each.reshape(n, H, D) for each in (q, k, v))
    fixed, by_query, by_key = (tensors.get(f"{own}.{name}_param") for name in ("convfixed", "convq", "convk"))
    outputs, has_content = np.zeros((n, H, D)), "qk" in kernel or kernel == "dot_product"
    for t, h in np.ndindex(n, H):
        scores = np.full(n, -np.inf)
        for s in np.flatnonzero(mask):
            half = next((each.shape[-1] // 2 for each in (fixed, by_query, by_key) if each is not None), 0)
            near, back = (min(max(offset, -half), half) + half for offset in (s - t, t - s))
            score = q[t, h] @ k[s, h] * has_content
            score += 0 if by_query is None else q[t, h] @ by_query[:, near]
            score += 0 if by_key is None else k[s, h] @ by_key[:, back]
            scores[s] = score / math.sqrt(D) + (0 if fixed is None else fixed[0, h, 0, near])
        weights = np.exp(scores - scores.max())
        outputs[t, h] = weights / weights.sum() @ by_head[:, h]
    outputs = outputs.reshape(n, C)
    if f"{own}.convolution.weight" in tensors:
        scale = np.repeat(tensors[f"{own}.convolution_scalar"].reshape(H), D)
        outputs += convolve(v, tensors, f"{own}.convolution", mask) * scale
    return outputs


def told(tensors, kernel, ids, segments):
    """Logits of one sequence, in which 0 is padding."""

    def apply(name, x):
        return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    def layer_norm(name, x):
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPSILON)
        return scaled * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    gelu = np.vectorize(lambda each: each * (1 + math.erf(each / math.sqrt(2))) / 2)
    words = tensors["bert.embeddings.word_embeddings.weight"]
    x = words[ids] + tensors["bert.embeddings.token_type_embeddings.weight"][segments]
    if "bert.embeddings.position_embeddings.weight" in tensors:
        x = x + tensors["bert.embeddings.position_embeddings.weight"][: len(ids)]
    x = apply("bert.embeddings_project", layer_norm("bert.embeddings.LayerNorm", x))
    for i in range(LAYERS):
        layer = f"bert.encoder.layer.{i}"
        attended = attend(x, tensors, f"{layer}.attention.self", ids > 0, kernel)
        x = layer_norm(f"{layer}.attention.output.LayerNorm", x + apply(f"{layer}.attention.output.dense", attended))
        hidden = gelu(apply(f"{layer}.intermediate.dense", x))
        x = layer_norm(f"{layer}.output.LayerNorm", x + apply(f"{layer}.output.dense", hidden))
    x = layer_norm("cls.predictions.transform.LayerNorm", gelu(apply("cls.predictions.transform.dense", x)))
    return x @ words.T + tensors["cls.predictions.bias"]


def read(folder, tensors, kernel, **config):
    safetensors.save_file(tensors, folder / "model.safetensors")
    about = CONFIG | {"attention_kernel": kernel, "remove_position_embeddings": True} | config
    (folder / "config.json").write_text(json.dumps(about))
    return convert.bert(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel, positions, convolved",
    [
        (ALL, False, ("query", "key", "value")),
        slow("convbert", True, ()),
        slow("qk_convfixed_convq 2", False, ()),
        slow("convfixed_qk 1", True, ("value",)),
        slow("convq_convk 1", False, ()),
        slow("dot_product", False, ("query", "key")),
    ],
)
def test_logits_are_those_of_the_formulas(tmp_path, float64, kernel, positions, convolved):
    tensors = state(kernel, positions, convolved)
    names = {"qk": "query" in convolved, "value_forward": "value" in convolved}
    config = {name: SEPARABLE for name, is_convolved in names.items() if is_convolved}
    encoder, given = read(tmp_path, tensors, kernel, remove_position_embeddings=not positions, **config)
    ids, segments = np.array([[3, 1, 6, 2, 5], [4, 4, 2, 0, 0]]), np.array([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])
    params = jax.tree.map(lambda array: jnp.asarray(array, jnp.float64), given)
    model, fields = MaskedLanguageModel(encoder), {"segments": jnp.asarray(segments), "key_mask": jnp.asarray(ids > 0)}
    logits = jax.jit(lambda ids: model.apply({"params": params}, ids, **fields))(jnp.asarray(ids))
    single = {name: np.float64(np.float32(each)) for name, each in tensors.items()}  # as parameters are read
    expected = [told(single, kernel, *each) for each in zip(ids, segments, strict=True)]
    # A kernel times its scalar is rounded to float32.
    np.testing.assert_allclose(np.asarray(logits)[ids > 0], np.stack(expected)[ids > 0], rtol=0, atol=1e-7)

    path = convert.save_composite_bert(tmp_path / "there", encoder, given)
    written = safetensors.load_file(path)
    assert written.keys() == tensors.keys() - {"cls.predictions.decoder.weight"}
    for name in written.keys() - {name for name in written if ".convolution" in name}:  # by their scalar
        np.testing.assert_array_equal(written[name], np.float32(tensors[name]))
    again, params_again = convert.bert(path)
    assert again == encoder
    jax.tree.map(np.testing.assert_array_equal, given, params_again)


@pytest.mark.parametrize(
    "config, message",
    [
        ({"attention_kernel": "light"}, 'attention_kernel="light": .*"qk"'),
        ({"attention_kernel": "convfixed 1"}, 'attention_kernel="convfixed 1": .*"qk"'),
        ({"qk": "convolution_depth 4 1"}, "qk='convolution_depth 4 1': .*'linear'"),
        ({"remove_qk": True}, "remove_qk=True"),
        (
            {"qk": SEPARABLE, "value_forward": "convolution_depth_mixed_no_act 2 1"},
            "qk and value_forward .*two sizes",
        ),
        (
            {"attention_kernel": "qk_convfixed_convq 2"},
            "='qk_convfixed_convq 2' .*'qk_convfixed_convq 1'",
        ),
        ({"attention_kernel": "qk_convq 1"}, r"self.convfixed_param \(1, 4, 1, 3\)"),
    ],
)
def test_what_does_not_fit(tmp_path, unchecked, config, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, state("qk_convfixed_convq 1"), "qk_convfixed_convq 1", **config)


def test_a_half_width_of_projections_that_the_tensors_have_not(tmp_path):
    other = SEPARABLE.replace(" 1 1", " 2 1")
    with pytest.raises(InputError, match=f"qk='{other}' .*'{SEPARABLE}'"):
        read(tmp_path, state("qk_convfixed 1", convolved=("query", "key")), "qk_convfixed 1", qk=other)


def test_what_is_left_out(tmp_path, caplog):
    read(tmp_path, state("qk_convfixed 1"), "qk_convfixed 1")
    assert "left out: cls.predictions.decoder.weight" in caplog.text


def test_what_the_code_has_not(tmp_path):
    encoder, params = read(tmp_path, state("qk_convfixed_convq 1"), "qk_convfixed_convq 1")
    fixed, queries = (term.clone(parent=None) for term in encoder.blocks[0].attention.terms[1:])
    attention = encoder.blocks[0].attention.clone(terms=(Content(), queries, fixed), parent=None)
    other = encoder.clone(blocks=(encoder.blocks[0].clone(attention=attention, parent=None),) * 2)
    with pytest.raises(InputError, match="Chang 2021 has no model.blocks"):
        convert.save_composite_bert(tmp_path / "there", other, params)
    with pytest.raises(InputError, match="Hugging Face has no model.blocks"):
        convert.save_bert(tmp_path / "there", encoder, params)
