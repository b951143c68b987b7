"""Translution's vision transformer (Fan 2025): a state dict by the names of the authors' code, against its formulas."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax import convert
from posattn_jax.system.errors import InputError
from tests.support.slow import slow

safetensors = pytest.importorskip("safetensors.numpy")  # of the extra "convert", and of "test"
C, MLP, CLASSES, BLOCKS, PATCH, GRID = 4, 5, 3, 2, (2, 1), (4, 3)
ROWS, COLUMNS = 2, 3  # of patches
DISPLACEMENTS = (2 * ROWS - 1) * (2 * COLUMNS - 1)


def linear(name, features, inputs):
    return {f"{name}.weight": (features, inputs), f"{name}.bias": (features,)}


def norm(name, width=C):
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def state(kind, heads, head_dim):
    """A state dict; the code has an output projection unless one head is as wide as the model."""
    stack, inner = "transformer" if kind == "none" else "translution", heads * head_dim
    shapes = norm("to_patch_embedding.1", 6) | linear("to_patch_embedding.2", C, 6) | norm("to_patch_embedding.3")
    shapes |= norm(f"{stack}.norm") | linear("mlp_head", CLASSES, C) | {"cls_token": (1, 1, C)}
    if kind == "none":
        shapes["pos_embedding"] = (1, ROWS * COLUMNS + 1, C)
    for i in range(BLOCKS):
        layer = f"{stack}.layers.{i}"
        shapes |= norm(f"{layer}.0.norm") | norm(f"{layer}.1.net.0")
        shapes |= linear(f"{layer}.1.net.1", MLP, C) | linear(f"{layer}.1.net.4", C, MLP)
        shapes |= {
            "none": {f"{layer}.0.to_qkv.weight": (3 * inner, C)},
            "values": {f"{layer}.0.to_qk.weight": (2 * inner, C)},
        }.get(kind, {})
        tables = {"none": (), "values": ("to_v",), "all": ("to_q", "to_k", "to_v")}[kind]
        shapes |= {f"{layer}.0.{name}.unique_params": (DISPLACEMENTS + 3, C, inner) for name in tables}
        if not (heads == 1 and head_dim == C):
            shapes |= linear(f"{layer}.0.to_out.0", C, inner)
    rng = np.random.default_rng(0)
    return {name: rng.normal(0, 0.5, shape) for name, shape in shapes.items()}


def row_of(a, m):
    """Of the table, for the pair (a, m) of tokens, the first of which is the class token."""
    if a == 0 or m == 0:
        return DISPLACEMENTS + (0 if a == m else 1 if a == 0 else 2)
    (x, y), (i, j) = divmod(a - 1, COLUMNS), divmod(m - 1, COLUMNS)
    return (x - i + ROWS - 1) * (2 * COLUMNS - 1) + y - j + COLUMNS - 1


def attend(x, tensors, layer, heads):
    """As the code does it: each of q, k and v is x_m through the matrix of (a, m), and keys are transposed."""
    n = len(x)

    def projected(name, number):
        """[a m h d]."""
        joined = tensors.get(f"{layer}.to_qkv.weight", tensors.get(f"{layer}.to_qk.weight"))
        table = tensors.get(f"{layer}.{name}.unique_params")
        if table is None:
            plain = np.split(x @ joined.T, len(joined) // (len(tensors[f"{layer}.inner"])), axis=1)[number]
            return np.broadcast_to(plain.reshape(n, heads, -1), (n, n, heads, plain.shape[1] // heads))
        return np.stack([[(x[m] @ table[row_of(a, m)]).reshape(heads, -1) for m in range(n)] for a in range(n)])

    q, k, v = (projected(name, number) for number, name in enumerate(("to_q", "to_k", "to_v")))
    outputs = np.zeros((n, heads, v.shape[-1]))
    for i, h in np.ndindex(n, heads):
        # Without tables queries are of i, and keys of j; with them it is the other way round.
        plain = f"{layer}.to_q.unique_params" not in tensors
        scores = np.array([q[0, i, h] @ k[0, j, h] if plain else q[i, j, h] @ k[j, i, h] for j in range(n)])
        weights = np.exp((scores - scores.max()) / math.sqrt(q.shape[-1]))
        outputs[i, h] = weights / weights.sum() @ v[i, :, h]
    return outputs.reshape(n, -1)


def told(tensors, image, heads, inner):
    """The logits of one image [height width c]."""
    tensors = dict(tensors)
    stack = "transformer" if "transformer.norm.weight" in tensors else "translution"

    def apply(name, x):
        return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    def layer_norm(name, x):
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return scaled * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    patches = [image[2 * r : 2 * r + 2, c : c + 1].reshape(-1) for r in range(ROWS) for c in range(COLUMNS)]
    x = layer_norm(
        "to_patch_embedding.3", apply("to_patch_embedding.2", layer_norm("to_patch_embedding.1", np.stack(patches)))
    )
    x = np.concatenate([tensors["cls_token"][0], x]) + tensors.get("pos_embedding", [[0]])[0]
    for i in range(BLOCKS):
        layer = f"{stack}.layers.{i}"
        tensors[f"{layer}.0.inner"] = np.zeros(inner)
        attended = attend(layer_norm(f"{layer}.0.norm", x), tensors, f"{layer}.0", heads)
        x = x + (apply(f"{layer}.0.to_out.0", attended) if f"{layer}.0.to_out.0.bias" in tensors else attended)
        hidden = apply(f"{layer}.1.net.1", layer_norm(f"{layer}.1.net.0", x))
        gelu = np.vectorize(lambda each: each * (1 + math.erf(each / math.sqrt(2))) / 2)(hidden)
        x = x + apply(f"{layer}.1.net.4", gelu)
    return apply("mlp_head", layer_norm(f"{stack}.norm", x)[0])


def read(folder, tensors, heads=None, **fields):
    safetensors.save_file(tensors, folder / "model.safetensors")
    return convert.translution(folder, **{"grid_shape": GRID, "patch_shape": PATCH} | fields, num_heads=heads)


@pytest.mark.parametrize(
    "kind, heads, head_dim",
    [("none", 2, 3), ("values", 2, 3), ("all", 1, C), slow("values", 1, C), slow("all", 2, 3)],
)
def test_logits_are_those_of_the_formulas(tmp_path, float64, kind, heads, head_dim):
    tensors = state(kind, heads, head_dim)
    model, params = read(tmp_path, tensors, heads)
    images = np.random.default_rng(1).normal(size=(2, *GRID, 3))
    params = jax.tree.map(lambda array: jnp.asarray(array, jnp.float64), params)
    pixels = jnp.asarray(images.reshape(2, -1, 3))
    logits = jax.jit(lambda pixels: model.apply({"params": params}, pixels, GRID))(pixels)
    single = {name: np.float64(np.float32(each)) for name, each in tensors.items()}  # as parameters are read
    expected = [told(single, each, heads, heads * head_dim) for each in images]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["none", "values", "all"])
def test_there_and_back(tmp_path, kind):
    tensors = {name: each.astype(np.float32) for name, each in state(kind, 2, 3).items()}
    path = convert.save_translution(tmp_path / "there", *read(tmp_path, tensors, 2), GRID)
    written = safetensors.load_file(path)
    assert written.keys() == tensors.keys()
    jax.tree.map(np.testing.assert_array_equal, written, tensors)


@pytest.mark.parametrize(
    "change, fields, message",
    [
        ({}, {"heads": None}, "does not say how many heads it has: expected num_heads"),
        ({}, {"heads": 5}, "num_heads=5: does not divide 6"),
        ({}, {"patch_shape": (2, 2)}, r"patch_shape=\(2, 2\): .* has patches of 6 numbers"),
        ({}, {"grid_shape": (4, 4)}, r"to_v.unique_params is \(18, 4, 6\), expected \(24, 4, 6\)"),
        ({"translution.layers.0.0.to_q1.weight": np.zeros(1)}, {}, r"to_q1.weight \(1,\) has no place here"),
    ],
)
def test_what_does_not_fit(tmp_path, unchecked, change, fields, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, state("values", 2, 3) | change, **{"heads": 2} | fields)
