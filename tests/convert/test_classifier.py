"""posattn's classifier (Alfons 2022): a state dict by the names of the author's code, against loops of its formulas."""

import math
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax import Classifier, EncoderBlock, PositionalSelfAttention, convert
from posattn_jax.system.errors import InputError
from tests.support.slow import slow

safetensors = pytest.importorskip("safetensors.numpy")  # of the extra "convert", and of "test"
C, H, D, MLP, HIDDEN, CHANNELS, CLASSES, BLOCKS = 6, 2, 3, 5, 4, 3, 2, 2
OMEGA, OMEGA_INITIAL, THRESHOLD = 3.0, 7.0, 0.3


def linear(name, features, inputs):
    return {f"{name}.weight": (features, inputs), f"{name}.bias": (features,)}


def state(kind, num_dims, sigma):
    """Shapes by names, and values drawn from them."""
    shapes = linear("input_net.1", C, CHANNELS) | linear("output_net.0", C, C) | linear("output_net.4", CLASSES, C)
    shapes |= {"output_net.1.weight": (C,), "output_net.1.bias": (C,)}
    for i in range(BLOCKS):
        layer = f"transformer.layers.{i}.0"
        attention = f"{layer}.self_attn.attention"
        shapes |= linear(f"{layer}.self_attn.qkv_proj", 3 * C, C) | linear(f"{layer}.self_attn.o_proj", C, C)
        shapes |= linear(f"{layer}.linear_net.0", MLP, C) | linear(f"{layer}.linear_net.3", C, MLP)
        shapes |= {f"{layer}.norm{n}.{each}": (C,) for n in (1, 2) for each in ("weight", "bias")}
        shapes |= {f"{attention}.{name}": (H, D) for name in ("u", "v")}
        if kind == "siren":
            sizes = (num_dims, HIDDEN, HIDDEN, C)
            for n in range(3):
                shapes |= linear(f"{attention}.positional_encoding.mlp.layers.{2 * n}", sizes[n + 1], sizes[n])
        if kind == "baseline":
            shapes |= linear(f"{attention}.positional_encoding.w", C, C)
        if sigma:
            shapes[f"{attention}.positional_mask.sigma"] = (num_dims,)
    rng = np.random.default_rng(0)
    return {
        name: rng.uniform(0.3, 0.6, shape) if name.endswith("sigma") else rng.normal(0, 0.5, shape)
        for name, shape in shapes.items()
    }


def encoding(tensors, attention, kind, grid_shape, offset):
    """E of one offset, [h d]."""
    own = {name.removeprefix(f"{attention}.positional_encoding."): each for name, each in tensors.items()}
    if kind == "siren":
        x = np.array([o / max(size - 1, 1) for o, size in zip(offset, grid_shape, strict=True)])
        for n, omega in enumerate((OMEGA_INITIAL, OMEGA)):
            x = np.sin(omega * (own[f"mlp.layers.{2 * n}.weight"] @ x + own[f"mlp.layers.{2 * n}.bias"]))
        return (own["mlp.layers.4.weight"] @ x + own["mlp.layers.4.bias"]).reshape(H, D)
    if kind == "baseline":
        place = offset[0] + grid_shape[0] - 1
        angles = [place * math.exp(-2 * (i // 2) * math.log(10000.0) / C) for i in range(C)]
        sinusoids = np.array([math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(angles)])
        return (own["w.weight"] @ sinusoids + own["w.bias"]).reshape(H, D)
    return np.zeros((H, D))


def layer_norm(x, tensors, name):
    scaled = (x - x.mean()) / math.sqrt(x.var() + 1e-5)
    return scaled * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]


def attend(x, tensors, layer, kind, grid_shape):
    places = list(np.ndindex(*grid_shape))
    attention = f"{layer}.self_attn.attention"
    u, v = tensors[f"{attention}.u"], tensors[f"{attention}.v"]
    sigma = tensors.get(f"{attention}.positional_mask.sigma")
    weight, bias = (tensors[f"{layer}.self_attn.qkv_proj.{each}"] for each in ("weight", "bias"))
    q, k, values = np.moveaxis((x @ weight.T + bias).reshape(len(x), 3, H, D), 1, 0)
    outputs = np.zeros((len(x), H, D))
    for t, h in np.ndindex(len(x), H):
        scores = np.full(len(x), -np.inf)
        for s in range(len(x)):
            offset = tuple(b - a for a, b in zip(places[t], places[s], strict=True))
            e = encoding(tensors, attention, kind, grid_shape, offset)[h]
            score = (q[t, h] + u[h]) @ k[s, h] + (q[t, h] + v[h]) @ e
            if sigma is not None:
                unit = [max(size - 1, 1) for size in grid_shape]
                score *= math.exp(-0.5 * sum((o / n / a) ** 2 for o, n, a in zip(offset, unit, sigma, strict=True)))
                half = [
                    math.ceil(math.sqrt(-2 * math.log(THRESHOLD)) * a * n) for n, a in zip(unit, sigma, strict=True)
                ]
                if any(abs(o) > most for o, most in zip(offset, half, strict=True)):
                    continue
            scores[s] = score / math.sqrt(D)
        weights = np.exp(scores - scores.max())
        outputs[t, h] = weights / weights.sum() @ values[:, h]
    weight, bias = (tensors[f"{layer}.self_attn.o_proj.{each}"] for each in ("weight", "bias"))
    return outputs.reshape(len(x), C) @ weight.T + bias


def told(tensors, kind, pixels, grid_shape):
    """The logits of one image [t c]."""

    def apply(name, x):
        return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    x = apply("input_net.1", pixels)
    for i in range(BLOCKS):
        layer = f"transformer.layers.{i}.0"
        x = x + attend(x, tensors, layer, kind, grid_shape)
        x = np.stack([layer_norm(row, tensors, f"{layer}.norm1") for row in x])
        x = x + apply(f"{layer}.linear_net.3", np.maximum(apply(f"{layer}.linear_net.0", x), 0))
        x = np.stack([layer_norm(row, tensors, f"{layer}.norm2") for row in x])
    x = layer_norm(apply("output_net.0", x[-1]), tensors, "output_net.1")
    return apply("output_net.4", np.maximum(x, 0))


def read(folder, tensors):
    safetensors.save_file(tensors, folder / "model.safetensors")
    return convert.classifier(folder, omega=OMEGA, omega_initial=OMEGA_INITIAL, threshold=THRESHOLD)


@pytest.mark.parametrize("field", ["omega", "omega_initial", "threshold"])
def test_arguments_of_another_kind_are_refused(tmp_path, unchecked, field):
    safetensors.save_file(state("siren", 2, True), tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=f"model.safetensors: {field}='10': expected"):
        convert.classifier(tmp_path, **{field: "10"})


@pytest.mark.parametrize(
    "kind, grid_shape, sigma",
    [("siren", (2, 3), True), slow("siren", (5,), False), slow("baseline", (5,), True), slow("none", (1, 4), True)],
)
def test_logits_are_those_of_the_formulas(tmp_path, float64, kind, grid_shape, sigma):
    tensors = state(kind, len(grid_shape), sigma)
    model, params = read(tmp_path, tensors)
    pixels = np.random.default_rng(1).normal(size=(2, math.prod(grid_shape), CHANNELS))
    params = jax.tree.map(lambda array: jnp.asarray(array, jnp.float64), params)
    logits = jax.jit(lambda pixels: model.apply({"params": params}, pixels, grid_shape))(jnp.asarray(pixels))
    single = {name: np.float64(np.float32(each)) for name, each in tensors.items()}  # as parameters are read
    np.testing.assert_allclose(logits, [told(single, kind, each, grid_shape) for each in pixels], rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind, num_dims", [("siren", 2), ("baseline", 1)])
def test_there_and_back(tmp_path, kind, num_dims):
    tensors = {name: each.astype(np.float32) for name, each in state(kind, num_dims, True).items()}
    path = convert.save_classifier(tmp_path / "there", *read(tmp_path, tensors))
    written = safetensors.load_file(path)
    assert written.keys() == tensors.keys()
    jax.tree.map(np.testing.assert_array_equal, written, tensors)


class Tensor(np.ndarray):
    """What `files` asks of one of PyTorch's."""

    def is_floating_point(self):
        return True

    def float(self):
        return self.astype(np.float32)

    def numpy(self):
        return np.asarray(self)


def test_a_file_of_pytorch(tmp_path, monkeypatch, caplog):
    """With a stand-in for torch: a run of the author has its tensors in a dict, next to the optimiser's."""
    tensors = state("siren", 2, True)
    loaded = {
        "model_state_dict": {name: each.view(Tensor) for name, each in tensors.items()} | {"note": "no tensor"},
        "optimizer_state_dict": {},
        "epoch": 3,
    }
    asked = []

    def load(path, **fields):
        asked.append(fields)
        return loaded

    torch = types.SimpleNamespace(load=load, is_tensor=lambda each: isinstance(each, Tensor))
    monkeypatch.setitem(sys.modules, "torch", torch)
    _, params = convert.classifier(tmp_path / "model.pt", omega=OMEGA, omega_initial=OMEGA_INITIAL)
    assert caplog.messages == [f"{tmp_path / 'model.pt'}: left out: optimizer_state_dict, epoch, note"]
    assert asked == [{"map_location": "cpu", "weights_only": True}], "nothing in it is executed"
    jax.tree.map(np.testing.assert_array_equal, params, read(tmp_path, tensors)[1])
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match="model.pt: .*pip install torch"):
        convert.classifier(tmp_path / "model.pt")


def test_what_does_not_fit(tmp_path, caplog):
    """Without an encoding v is not used: it is left out, and told."""
    tensors = state("none", 1, False)
    read(tmp_path, tensors)
    assert "left out: transformer.layers.0.0.self_attn" in caplog.text
    with pytest.raises(InputError, match=r"transformer.layers.0.1.x \(1,\)"):
        read(tmp_path, tensors | {"transformer.layers.0.1.x": np.zeros(1)})
    name = "transformer.layers.0.0.norm1.weight"
    with pytest.raises(InputError, match=f"{name} is int8, expected floats"):
        read(tmp_path, tensors | {name: tensors[name].astype(np.int8)})
    name = "input_net.1.weight"
    with pytest.raises(InputError, match=rf"{name} is \(0, \d\), expected sizes of at least 1"):
        read(tmp_path, tensors | {name: tensors[name][:0]})
    with pytest.raises(InputError, match="no classifier of posattn"):
        read(tmp_path, {"a": np.zeros(1)})
    model = Classifier(2, 6, (EncoderBlock(PositionalSelfAttention(2), 5),))
    with pytest.raises(InputError, match="posattn has no such blocks"):
        convert.save_classifier(tmp_path / "there", model, {})
