"""Vision transformers of Hugging Face, timm and big_vision, and back: see tests/support/make_hugging_face.py."""

import json
import pathlib
import shutil

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax import EncoderBlock, PositionalSelfAttention, Translution, VisionTransformer, convert
from posattn_jax.convert import files, pixels
from posattn_jax.nn.gating import exact_gelu
from posattn_jax.system.errors import InputError
from tests.support.made_params import made_params

safetensors = pytest.importorskip("safetensors.numpy")  # of the extra "convert", and of "test"
MADE = pathlib.Path(__file__).parent / "made"
CLOSE = {"rtol": 0, "atol": 1e-5}
GRID = (8, 12)


def pixels_of(folder):
    """[b height width 3] instead of PyTorch's [b 3 height width]."""
    with np.load(folder / "inputs.npz") as file:
        return jnp.asarray(file["pixels"].transpose(0, 2, 3, 1))


def apply(model, params, pixels):
    """Logits, and what each block gives."""
    blocks = {"capture_intermediates": lambda module, name: isinstance(module, EncoderBlock) and name == "__call__"}
    inputs = pixels.reshape(len(pixels), -1, pixels.shape[-1])
    run = jax.jit(lambda params, inputs: model.apply({"params": params}, inputs, GRID, **blocks))
    logits, state = run(params, inputs)
    found = state["intermediates"]
    return logits, [found[f"blocks_{i}"]["__call__"][0][0] for i in range(len(found))]


@pytest.mark.parametrize("kind, num_heads", [("vit", None), ("timm", 2)])
def test_every_hidden_state_and_logit(kind, num_heads):
    model, params = convert.vit(MADE / kind, num_heads)
    logits, hidden = apply(model, params, pixels_of(MADE / kind))
    with np.load(MADE / kind / "outputs.npz") as expected:
        np.testing.assert_allclose(logits, expected["logits"], **CLOSE)
        assert kind == "timm" or len(hidden) == 2
        for i, states in enumerate(hidden if kind == "vit" else ()):
            np.testing.assert_allclose(states, expected[f"hidden_{i + 1}"], **CLOSE)
    assert model.patch_shape == (4, 4) and model.num_classes == 3


class BigVision(nn.Module):
    """What its vit.py computes, in Flax's own modules, which give parameters the names that its files have."""

    pool_type: str

    @nn.compact
    def __call__(self, image):
        x = nn.Conv(8, (4, 4), strides=(4, 4), padding="VALID", name="embedding")(image)
        x = x.reshape(len(x), -1, 8)
        x += self.param("pos_embedding", nn.initializers.normal(1.0), (1, x.shape[1], 8))
        if self.pool_type == "tok":
            cls = self.param("cls", nn.initializers.normal(1.0), (1, 1, 8))
            x = jnp.concatenate([jnp.tile(cls, [len(x), 1, 1]), x], axis=1)
        x = Encoder(name="Transformer")(x)
        return nn.Dense(3, name="head")(x[:, 0] if self.pool_type == "tok" else x.mean(1))


class Encoder(nn.Module):
    @nn.compact
    def __call__(self, x):
        for i in range(2):
            x = Block(name=f"encoderblock_{i}")(x)
        return nn.LayerNorm(name="encoder_norm")(x)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        y = nn.LayerNorm()(x)
        x += nn.MultiHeadDotProductAttention(num_heads=2)(y, y)
        return x + MlpBlock()(nn.LayerNorm()(x))


class MlpBlock(nn.Module):
    @nn.compact
    def __call__(self, x):
        hidden = nn.Dense(12)(x)
        return nn.Dense(8)(nn.gelu(hidden))


def big_vision(pool_type):
    """A model, its parameters by the names of its files, and what it tells."""
    model = BigVision(pool_type)
    pixels = pixels_of(MADE / "vit")
    params = made_params(lambda: model.init(jax.random.key(0), pixels)["params"])
    logits = jax.jit(model.apply)({"params": params}, pixels)
    flat = flax.traverse_util.flatten_dict({"params": params}, sep="/")
    return {name: np.asarray(array) for name, array in flat.items()}, logits


@pytest.mark.parametrize("pool_type", ["tok", "gap"])
def test_big_vision(tmp_path, pool_type):
    tensors, expected = big_vision(pool_type)
    np.savez(tmp_path / "vit.npz", **tensors)
    model, params = convert.vit(tmp_path / "vit.npz")
    logits, _ = apply(model, params, pixels_of(MADE / "vit"))
    np.testing.assert_allclose(logits, expected, **CLOSE)
    path = convert.save_vit(tmp_path / "there", model, params, GRID, names="big_vision")
    with np.load(path) as written:
        assert {name: array.shape for name, array in written.items()} == {n: a.shape for n, a in tensors.items()}
        for name, array in written.items():
            np.testing.assert_array_equal(array, tensors[name], err_msg=name)


def test_names_of_before_2022(tmp_path):
    """With modules numbered from the beginning of a block, and positions that count the class token."""
    tensors, _ = big_vision("tok")
    old, row = {}, np.full((1, 1, 8), 0.5, np.float32)
    for name, array in tensors.items():
        new = name.removeprefix("params/").replace("MultiHeadDotProductAttention_0", "MultiHeadDotProductAttention_1")
        new = new.replace("MlpBlock_0", "MlpBlock_3").replace("LayerNorm_1", "LayerNorm_2")
        old[new.replace("pos_embedding", "Transformer/posembed_input/pos_embedding")] = array
    # A square grid is told from one with a row for the token: here the first four places, of 8 x 8 pixels.
    positions = old["Transformer/posembed_input/pos_embedding"][:, :4]
    old["Transformer/posembed_input/pos_embedding"] = np.concatenate([row, positions], axis=1)
    old["cls"] = old["cls"] - row
    np.savez(tmp_path / "old.npz", **old)
    new = tensors | {"params/pos_embedding": positions}
    np.savez(tmp_path / "new.npz", **new)
    models = [convert.vit(tmp_path / name) for name in ("old.npz", "new.npz")]
    jax.tree.map(lambda *arrays: np.testing.assert_allclose(*arrays, atol=1e-6), *(params for _, params in models))
    assert models[0][0] == models[1][0]


def test_five_places_are_no_square_with_a_row_for_the_token(tmp_path):
    """2 x 2 + 1 of them, in a file with the names of today."""
    tensors, _ = big_vision("tok")
    tensors["params/pos_embedding"] = tensors["params/pos_embedding"][:, :5]
    np.savez(tmp_path / "vit.npz", **tensors)
    _, params = convert.vit(tmp_path / "vit.npz")
    np.testing.assert_array_equal(params["position_embedding"][1:], tensors["params/pos_embedding"][0])


def test_bfloat16_in_a_file_of_numpy(tmp_path):
    tensors, _ = big_vision("gap")
    np.savez(tmp_path / "vit.npz", **tensors)
    model, params = convert.vit(tmp_path / "vit.npz")
    params = jax.tree.map(lambda array: jnp.asarray(array, jnp.bfloat16), params)
    _, again = convert.vit(convert.save_vit(tmp_path / "there", model, params, GRID, names="big_vision"))
    jax.tree.map(np.testing.assert_array_equal, again, jax.tree.map(lambda array: array.astype(jnp.float32), params))


@pytest.mark.parametrize("kind", ["vit", "timm"])
def test_there_and_back(tmp_path, kind):
    model, params = convert.vit(MADE / kind, 2)
    names = {"vit": "hugging_face"}.get(kind, kind)
    path = convert.save_vit(tmp_path, model, params, GRID, names=names)
    theirs, ours = (safetensors.load_file(each) for each in (MADE / kind / "model.safetensors", path))
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(ours[name], tensor, err_msg=name)
    if kind == "vit":
        config, own = (json.loads(each.with_name("config.json").read_text()) for each in (MADE / kind / "x", path))
        config["num_labels"] = 3
        assert all(config[name] == value for name, value in own.items())


def test_the_scale_of_pixels(tmp_path):
    """In the file of each library; big_vision has no place for it."""
    model, params = convert.vit(MADE / "timm", 2)
    scale = pixels.Scale((0.1,), (0.2, 0.3, 0.4))
    path = convert.save_vit(tmp_path / "theirs", model, params, GRID, scale=scale)
    config = json.loads(path.with_name("preprocessor_config.json").read_text())
    assert config["image_mean"] == [0.1] * 3 and config["image_std"] == [0.2, 0.3, 0.4]
    assert config["size"] == {"height": 8, "width": 12}
    path = convert.save_vit(tmp_path / "timm", model, params, GRID, "timm", scale, label_names=["a", "b", "c"])
    told = json.loads(path.with_name("config.json").read_text())
    scaled = {"input_size": [3, 8, 12], "mean": [0.1] * 3, "std": [0.2, 0.3, 0.4]}
    assert told["pretrained_cfg"] == scaled | {"crop_pct": 1.0, "interpolation": "bicubic"}
    assert told["label_names"] == ["a", "b", "c"] and told["num_classes"] == 3
    for folder in ("theirs", "timm"):
        assert pixels.scale_of(files.read(tmp_path / folder), 3) == ((0.1,) * 3, (0.2, 0.3, 0.4))
        assert pixels.size_of(files.read(tmp_path / folder)) == (8, 12)
    with pytest.raises(InputError, match='scale: .*names="big_vision"'):
        convert.save_vit(tmp_path / "none", model, params, GRID, "big_vision", scale)


@pytest.mark.parametrize(
    "config, expected",
    [
        ({}, ((0.5,), (0.5,))),
        ({"do_normalize": False, "image_mean": [0.3] * 3}, ((0.0,), (1.0,))),
        ({"image_mean": None, "image_std": [0.25]}, ((0.5,), (0.25,))),
        ({"image_mean": 0, "image_std": [1, 2, 3]}, ((0.0,), (1.0, 2.0, 3.0))),
        ({"rescale_factor": 0.0039216, "image_mean": [0.1]}, ((0.1,), (0.5,))),
        ({"image_mean": "0.5"}, "image_mean='0.5': .* 3 channels"),
        ({"image_std": [0.5, 0.5]}, r"image_std=\[0.5, 0.5\]: .* 3 channels"),
        ({"image_std": [0.0]}, "a deviation of pixels is 0.0: expected more than 0"),
        ([0.5], "preprocessor_config.json: expected an object"),
        ({"rescale_factor": "1 / 255"}, "expected do_rescale"),
        ({"do_rescale": False}, "preprocessor_config.json: .*do_rescale"),
        ({"rescale_factor": 1 / 127.5}, "rescale_factor of 1 / 255"),
    ],
)
def test_what_a_preprocessor_says(tmp_path, config, expected):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    weights = files.Weights(tmp_path / "model.safetensors", {}, {})
    if isinstance(expected, tuple):
        assert pixels.scale_of(weights, 3) == expected
    else:
        with pytest.raises(InputError, match=expected):
            pixels.scale_of(weights, 3)


@pytest.mark.parametrize(
    "config, expected",
    [
        ({}, None),
        ({"image_size": 8, "pretrained_cfg": None}, (8, 8)),
        ({"image_size": None, "pretrained_cfg": {"input_size": None}}, None),
        ({"pretrained_cfg": {"input_size": [3, 4, 4]}, "model_args": {"img_size": [8, 12]}}, (8, 12)),
        ({"input_size": [3, 8, 12]}, (8, 12)),
        ({"image_size": "224"}, "config.json: .*'224': .*height"),
        ({"image_size": [8]}, r"\[8\]: .*height"),
    ],
)
def test_what_a_config_says_of_the_size(tmp_path, config, expected):
    weights = files.Weights(tmp_path / "model.safetensors", {}, config)
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            pixels.size_of(weights)
    else:
        assert pixels.size_of(weights) == expected


def test_the_scale_in_older_files_of_timm(tmp_path):
    config = {"mean": [0.1, 0.2, 0.3], "std": [0.4] * 3, "input_size": [3, 8, 12]}
    weights = files.Weights(tmp_path / "model.safetensors", {}, config)
    assert pixels.scale_of(weights, 3) == ((0.1, 0.2, 0.3), (0.4,) * 3)


def test_positions_of_timm_whose_number_is_a_square(tmp_path):
    """3 x 5 patches and the class token have 16 rows. The size of the images tells that one is the token's."""
    block = EncoderBlock(PositionalSelfAttention(2), 12, norm="pre", activation=exact_gelu, layer_norm_epsilon=1e-6)
    model = VisionTransformer(3, 8, (block,), (4, 4), patch_norms=False, layer_norm_epsilon=1e-6)
    params = made_params(lambda: model.init(jax.random.key(0), jnp.zeros((1, 240, 3)), (12, 20))["params"])
    path = convert.save_vit(tmp_path, model, params, (12, 20), "timm")
    _, same = convert.vit(tmp_path, 2)
    jax.tree.map(np.testing.assert_array_equal, same, params)
    path.with_name("config.json").unlink()
    with pytest.raises(InputError, match="pos_embed has 16 rows"):
        convert.vit(tmp_path, 2)


def test_from_one_to_the_others(tmp_path):
    """Where they compute the same: timm has no names for another epsilon, or gelu."""
    model, params = convert.vit(MADE / "timm", 2)
    expected, _ = apply(model, params, pixels_of(MADE / "timm"))
    convert.save_vit(tmp_path, model, params, GRID)
    again, same = convert.vit(tmp_path)
    np.testing.assert_array_equal(apply(again, same, pixels_of(MADE / "timm"))[0], expected)
    with pytest.raises(InputError, match=r"timm .*layer_norm_epsilon=1e-12, but 1e-06"):
        convert.save_vit(tmp_path, *convert.vit(MADE / "vit"), GRID, names="timm")
    with pytest.raises(InputError, match=r"big_vision .*activation=exact_gelu"):
        convert.save_vit(tmp_path, model, params, GRID, names="big_vision")


def test_without_a_head(tmp_path, caplog):
    """`ViTModel`, whose pooler no head of ours reads: features of the class token."""
    shutil.copytree(MADE / "vit", tmp_path / "vit")
    tensors = safetensors.load_file(MADE / "vit" / "model.safetensors")
    bare = {name.removeprefix("vit."): each for name, each in tensors.items() if not name.startswith("classifier.")}
    pooler = {"pooler.dense.weight": np.ones((8, 8), np.float32), "pooler.dense.bias": np.ones(8, np.float32)}
    safetensors.save_file(bare | pooler, tmp_path / "vit" / "model.safetensors")
    model, params = convert.vit(tmp_path / "vit")
    assert "left out: pooler.dense.bias (8,)" in caplog.text
    features, _ = apply(model, params, pixels_of(MADE / "vit"))
    head = convert.vit(MADE / "vit")[1]["head"]
    with np.load(MADE / "vit" / "outputs.npz") as expected:
        np.testing.assert_allclose(features @ head["kernel"] + head["bias"], expected["logits"], **CLOSE)
    path = convert.save_vit(tmp_path / "there", model, params, GRID)
    assert safetensors.load_file(path).keys() == bare.keys()


@pytest.mark.parametrize(
    "kind, num_heads, change, message",
    [
        ("timm", None, {}, "expected num_heads"),
        ("vit", 4, {}, "num_heads=4: .*model.safetensors has 2$"),
        ("timm", 3, {}, "model.safetensors: num_heads=3 .* 8"),
        ("timm", 2, {"fc_norm.weight": (8,)}, r"fc_norm.weight \(8,\)"),
        ("timm", 2, {"blocks.0.ls1.gamma": (8,)}, r"blocks.0.ls1.gamma \(8,\)"),
        ("timm", 2, {"pos_embed": (1, 4, 8)}, "pos_embed has 4 rows: .*class token"),
        ("timm", 2, {"patch_embed.proj.weight": None}, "no vision transformer: .*patch_emb"),
        (
            "vit",
            None,
            {"vit.embeddings.cls_token": None},
            r"vit.embeddings.cls_token .*\(1, 1, 8\)",
        ),
        ("vit", None, {"vit.embeddings.mask_token": (1, 1, 8)}, r"mask_token \(1, 1, 8\)"),
    ],
)
def test_a_file_that_does_not_fit(tmp_path, unchecked, kind, num_heads, change, message):
    shutil.copytree(MADE / kind, tmp_path / "vit")
    tensors = safetensors.load_file(MADE / kind / "model.safetensors")
    for name, shape in change.items():
        tensors |= {} if shape is None else {name: np.zeros(shape, np.float32)}
        tensors = {each: tensor for each, tensor in tensors.items() if shape is not None or each != name}
    safetensors.save_file(tensors, tmp_path / "vit" / "model.safetensors")
    with pytest.raises(InputError, match=message):
        convert.vit(tmp_path / "vit", num_heads)


def configured(folder, kind, config):
    """A copy of a file whose config.json has these entries, too."""
    shutil.copytree(MADE / kind, folder)
    path = folder / "config.json"
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | config))
    return folder


@pytest.mark.parametrize(
    "kind, config, message",
    [
        ("vit", {"num_hidden_layers": 1}, "num_hidden_layers=1 .*but 2 "),
        ("vit", {"num_hidden_layers": 3}, "num_hidden_layers=3 .*but 2 "),
        ("vit", {"patch_size": 8}, r"patch_size=8 .*but \[4, 4\] "),
        ("vit", {"patch_size": [4, 2]}, r"patch_size=\[4, 2\] .*but \[4, 4\] "),
        ("vit", {"hidden_size": 16}, "hidden_size=16 .*but 8 "),
        ("vit", {"num_channels": 1}, "num_channels=1 .*but 3 "),
        ("vit", {"intermediate_size": 3}, "intermediate_size=3 .*but 12 "),
        ("vit", {"qkv_bias": False}, "qkv_bias=False .*but True "),
        ("vit", {"num_labels": 4}, "num_labels=4 .*but 3"),
        ("vit", {"id2label": {"0": "a"}}, r"id2label=1 .*\(0\) .*but 3"),
        ("vit", {"num_attention_heads": 3}, "num_attention_heads=3 .* 8"),
        (
            "vit",
            {"image_size": 8},
            "image_size: .*8 x 8 .*2 x 2 .* 6 ",
        ),
        ("vit", {"image_size": 9}, r"image_size: .*9 x 9 .*\(4, 4\)"),
        ("timm", {"num_classes": 4}, "num_classes=4 .*but 3 "),
        ("timm", {"pretrained_cfg": {"num_classes": 4}}, "pretrained_cfg.num_classes=4 .*but 3 "),
        ("timm", {"label_names": ["a", "b"]}, "label_names=2 .*but 3 "),
        ("timm", {"num_features": 9}, "num_features=9 .*but 8 "),
        ("timm", {"global_pool": "avg"}, "global_pool='avg' .*but 'token' "),
        ("timm", {"model_args": {"depth": 4}}, "model_args.depth=4 .*but 2 "),
        ("timm", {"model_args": {"patch_size": 2}}, r"model_args.patch_size=2 .*but \[4, 4\] "),
        ("timm", {"model_args": {"in_chans": 1}}, "model_args.in_chans=1 .*but 3 "),
        ("timm", {"model_args": {"num_heads": 4}}, "num_heads=2: .*model.safetensors has 4$"),
        (
            "timm",
            {"model_args": {"num_heads": 2.0}},
            "model_args.num_heads=2.0: ",
        ),
        ("timm", {"model_args": {"num_heads": True}}, "model_args.num_heads=True: "),
        ("timm", {"model_args": {"img_size": 8}}, "model_args.img_size: .*8 x 8 .*2 x"),
        ("timm", {"label_names": {"0": "a", "3": "c"}}, r"label_names=2 .*\(0, 3\) .* 3 "),
    ],
)
def test_a_config_that_contradicts_its_weights(tmp_path, unchecked, kind, config, message):
    with pytest.raises(InputError, match=message):
        convert.vit(configured(tmp_path / kind, kind, config), 2)


def test_entries_of_timm_that_agree(tmp_path):
    """A model for one channel and other classes keeps the entries of the one that it was fine-tuned from."""
    about = {"num_classes": 3, "num_features": 8, "global_pool": "token", "label_names": ["a", "b", "c"]}
    about |= {"pretrained_cfg": {"num_classes": 1000, "input_size": [1, 8, 8]}}
    about |= {"model_args": {"in_chans": 3, "img_size": [8, 12], "num_heads": 2, "patch_size": 4, "depth": 2}}
    expected = convert.vit(MADE / "timm", 2)[0]
    assert convert.vit(configured(tmp_path / "timm", "timm", about))[0] == expected
    others = [{"input_size": [1, 8, 12]}, {"pretrained_cfg": {"input_size": [3, 8, 8]}}]  # of the model before
    others += [{"model_args": {"img_size": 8, "dynamic_img_size": True}}, {"label_names": {"0": "a", "2": "c"}}]
    for number, other in enumerate(others):
        assert convert.vit(configured(tmp_path / str(number), "timm", other), 2)[0] == expected


def test_an_npz_that_is_none(tmp_path):
    (tmp_path / "vit.npz").write_bytes(b"no zip")
    with pytest.raises(InputError, match=r"vit.npz: is no .npz"):
        convert.vit(tmp_path / "vit.npz")
    np.savez(tmp_path / "vit.npz", objects=np.array([{}], object))
    with pytest.raises(InputError, match=r"vit.npz: .*Object arrays"):
        convert.vit(tmp_path / "vit.npz")


@pytest.mark.parametrize(
    "fields, attention, options, message",
    [
        ({}, {}, {}, "model.patch_norms=True, but False"),
        ({"patch_norms": False, "pooling": "mean"}, {}, {}, "model.pooling=mean, but class"),
        ({"patch_norms": False}, {"values": Translution()}, {}, r"attention.values=Translution, but None"),
        ({"patch_norms": False}, {}, {"grid_shape": (8, 8)}, r"grid_shape=\(8, 8\): 4 patches, and 7 positions"),
        ({"patch_norms": False}, {}, {"names": "jax"}, 'names="jax": .*hugging_face, timm'),
        (
            {"patch_norms": False},
            {},
            {"names": "big_vision", "id2label": {}},
            'id2label: .*names="b',
        ),
    ],
)
def test_a_model_that_they_have_not(tmp_path, unchecked, fields, attention, options, message):
    block = EncoderBlock(PositionalSelfAttention(2, **attention), 12, norm="pre")
    model = VisionTransformer(3, 8, (block,), (4, 4), **fields)
    params = made_params(lambda: model.init(jax.random.key(0), jnp.zeros((1, 96, 3)), GRID)["params"])
    with pytest.raises(InputError, match=message):
        convert.save_vit(tmp_path, model, params, **{"grid_shape": GRID} | options)
    assert not list(tmp_path.iterdir())


def two_blocks(shared):
    """A model whose attention has the projections by default, and its parameters."""
    first, second = (EncoderBlock(PositionalSelfAttention(2), 12, norm="pre") for _ in range(2))
    model = VisionTransformer(3, 8, (first, first if shared else second), (4, 2), patch_norms=False)
    return model, made_params(lambda: model.init(jax.random.key(0), jnp.zeros((1, 96, 3)), GRID)["params"])


def test_projections_by_default_are_linear_ones(tmp_path):
    model, params = two_blocks(shared=False)
    # Their activation is relu, which Hugging Face has too.
    convert.save_vit(tmp_path, model, params, GRID)
    again, same = convert.vit(tmp_path)
    pixels = pixels_of(MADE / "vit")
    np.testing.assert_allclose(apply(again, same, pixels)[0], apply(model, params, pixels)[0], **CLOSE)


def test_a_block_that_two_layers_share_has_the_parameters_of_one(tmp_path):
    with pytest.raises(InputError, match="no parameters blocks_1/attention/output/bias.* 4 more"):
        convert.save_vit(tmp_path, *two_blocks(shared=True), GRID)
