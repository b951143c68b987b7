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
C, MLP, CLASSES, PATCH, GRID, RANK = 4, 5, 3, (2, 1), (4, 3), 3
ROWS, COLUMNS = 2, 3  # of patches
DISPLACEMENTS = (2 * ROWS - 1) * (2 * COLUMNS - 1)


def linear(name, features, inputs):
    return {f"{name}.weight": (features, inputs), f"{name}.bias": (features,)}


def norm(name, width=C):
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def angles(head_dim):
    """Of every place and feature [1 rows columns d]."""
    made, each = np.zeros((1, ROWS, COLUMNS, head_dim)), head_dim // 2
    for y, x, j in np.ndindex(ROWS, COLUMNS, head_dim):
        number = j % each  # the first half of these frequencies is of rows
        place, number = (y, number) if number < each // 2 else (x, number - each // 2)
        made[0, y, x, j] = place / 10000 ** (2 * number / each)
    return made


def state(kinds, heads, head_dim, positions=False):
    """A state dict; a layer's kind has the letters of what has a matrix for every displacement, and "lor" or "rope".

    The code has an output projection unless one head is as wide as the model.
    """
    stack, inner = (
        "translution" if any(set(kind[:1]) & set("lqkv") for kind in kinds) else "transformer",
        heads * head_dim,
    )
    shapes = norm("to_patch_embedding.1", 6) | linear("to_patch_embedding.2", C, 6) | norm("to_patch_embedding.3")
    shapes |= norm(f"{stack}.norm") | linear("mlp_head", CLASSES, C) | {"cls_token": (1, 1, C)}
    buffers = {}
    if positions:
        shapes["pos_embedding"] = (1, ROWS * COLUMNS + 1, C)
    for i, kind in enumerate(kinds):
        layer = f"{stack}.layers.{i}"
        shapes |= norm(f"{layer}.0.norm") | norm(f"{layer}.1.net.0")
        shapes |= linear(f"{layer}.1.net.1", MLP, C) | linear(f"{layer}.1.net.4", C, MLP)
        form, letters, turned = read_kind(kind)
        rest = "qkv" if form == "lor" else "".join(each for each in "qkv" if each not in letters)
        if rest:
            shapes[f"{layer}.0.to_{rest}.weight"] = (len(rest) * inner, C)
        if form == "lor":
            reduced = ("qk" if set(letters) & set("qk") else "") + ("v" if "v" in letters else "")
            shapes |= {f"{layer}.0.to_{each}1.weight": (heads * RANK, C) for each in reduced}
            tables = {f"{each}2": (heads * RANK, heads * RANK) for each in letters}
            if "v" in letters:
                shapes[f"{layer}.0.to_v3.weight"] = (inner, heads * RANK)
        else:
            tables = dict.fromkeys(letters, (C, inner))
        shapes |= {f"{layer}.0.to_{name}.unique_params": (DISPLACEMENTS + 3, *size) for name, size in tables.items()}
        if turned:
            made = angles(head_dim)
            buffers |= {f"{layer}.0.rope.{name}_cached": np.float32(getattr(np, name)(made)) for name in ("cos", "sin")}
        if not (heads == 1 and head_dim == C):
            shapes |= linear(f"{layer}.0.to_out.0", C, inner)
    rng = np.random.default_rng(0)
    return {name: rng.normal(0, 0.5, shape) for name, shape in shapes.items()} | buffers


def read_kind(kind):
    """Its form, the letters of what has tables, and whether there is RoPE."""
    words = kind.split()
    letters = next((word for word in words if set(word) <= set("qkv")), "")
    return "lor" if "lor" in words else "", letters, "rope" in words


def row_of(a, m):
    """Of the table, for the pair (a, m) of tokens, the first of which is the class token."""
    if a == 0 or m == 0:
        return DISPLACEMENTS + (0 if a == m else 1 if a == 0 else 2)
    (x, y), (i, j) = divmod(a - 1, COLUMNS), divmod(m - 1, COLUMNS)
    return (x - i + ROWS - 1) * (2 * COLUMNS - 1) + y - j + COLUMNS - 1


def turn(x):
    """[n h d] of the class token, and of the places after it."""
    half, made = x.shape[-1] // 2, x.copy()
    for n, (h, j) in ((n, at) for n in range(1, len(x)) for at in np.ndindex(*x.shape[1:])):
        angle = angles(x.shape[-1]).reshape(-1, x.shape[-1])[n - 1, j]
        other = -x[n, h, j + half] if j < half else x[n, h, j - half]
        made[n, h, j] = x[n, h, j] * math.cos(angle) + other * math.sin(angle)
    return made


def attend(x, tensors, layer, heads, kind):
    """As the code of since 29 November 2025 does it."""
    n, (form, letters, turned) = len(x), read_kind(kind)
    full = "" if form == "lor" else letters
    rest = "".join(each for each in "qkv" if each not in full)
    joined = tensors[f"{layer}.to_{rest}.weight"] if rest else np.zeros((0, C))
    plain = {
        each: (x @ matrix.T).reshape(n, heads, -1)
        for each, matrix in zip(rest, np.split(joined, len(rest) or 1), strict=bool(rest))
    }
    if turned and not full:
        plain |= {each: turn(plain[each]) for each in "qk"}

    def part(letter, i, j):
        """Of query i and key j."""
        token, other = (i, j) if letter == "q" else (j, i)
        if letter not in full:
            return plain[letter][token]
        return (x[token] @ tensors[f"{layer}.to_{letter}.unique_params"][row_of(other, token)]).reshape(heads, -1)

    def low(letter, i, j):
        token, other = (i, j) if letter == "q" else (j, i)
        reduced = x[token] @ tensors[f"{layer}.to_{letter}1.weight"].T
        if letter in letters:
            reduced = reduced @ tensors[f"{layer}.to_{letter}2.unique_params"][row_of(other, token)]
        return reduced.reshape(heads, -1)

    outputs = []
    for i in range(n):
        scores = np.stack([(part("q", i, j) * part("k", i, j)).sum(-1) for j in range(n)])  # [n h]
        if form == "lor" and set(letters) & set("qk"):
            scores = (scores + np.stack([(low("q", i, j) * low("k", i, j)).sum(-1) for j in range(n)])) / 2
        weights = np.exp((scores - scores.max(0)) / math.sqrt(part("q", 0, 0).shape[-1]))
        weights = (weights / weights.sum(0))[..., None]
        summed = sum(weights[j] * part("v", i, j) for j in range(n)).reshape(-1)
        if form == "lor" and "v" in letters:
            second = sum(weights[j] * low("v", i, j) for j in range(n)).reshape(-1)
            summed = (summed + second @ tensors[f"{layer}.to_v3.weight"].T) / 2
        outputs.append(summed)
    return np.stack(outputs)


def told(tensors, image, heads, kinds):
    """The logits of one image [height width c]."""
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
    for i, kind in enumerate(kinds):
        layer = f"{stack}.layers.{i}"
        attended = attend(layer_norm(f"{layer}.0.norm", x), tensors, f"{layer}.0", heads, kind)
        x = x + (apply(f"{layer}.0.to_out.0", attended) if f"{layer}.0.to_out.0.bias" in tensors else attended)
        hidden = apply(f"{layer}.1.net.1", layer_norm(f"{layer}.1.net.0", x))
        gelu = np.vectorize(lambda each: each * (1 + math.erf(each / math.sqrt(2))) / 2)(hidden)
        x = x + apply(f"{layer}.1.net.4", gelu)
    return apply("mlp_head", layer_norm(f"{stack}.norm", x)[0])


def read(folder, tensors, heads=None, **fields):
    safetensors.save_file(tensors, folder / "model.safetensors")
    return convert.translution(folder, **{"grid_shape": GRID, "patch_shape": PATCH} | fields, num_heads=heads)


def code_tells(tensors, images, heads, kinds):
    single = {name: np.float64(np.float32(each)) for name, each in tensors.items()}  # as parameters are read
    return [told(single, image, heads, kinds) for image in images]


def model_tells(model, params, images):
    params = jax.tree.map(lambda array: jnp.asarray(array, jnp.float64), params)
    pixels = jnp.asarray(images.reshape(len(images), -1, 3))
    return jax.jit(lambda pixels: model.apply({"params": params}, pixels, GRID))(pixels)


LAYERS = [
    (("v", "kv"), 2, 3, False),
    (("lor qkv", "lor k"), 2, 2, False),
    slow(("plain",), 2, 3, True),
    slow(("qkv",), 1, C, False),
    slow(("qk", "qv"), 2, 3, False),
    slow(("q", "k"), 2, 3, False),
    slow(("v",), 1, C, False),
    slow(("rope",), 2, 8, False),
    slow(("v rope", "rope"), 2, 4, False),
    slow(("lor v rope", "rope"), 2, 4, False),
    slow(("lor q", "lor kv"), 2, 3, False),
    slow(("lor qv", "lor qk", "rope"), 2, 4, False),
]


@pytest.mark.parametrize("kinds, heads, head_dim, positions", LAYERS)
def test_logits_are_those_of_the_formulas_and_there_and_back(tmp_path, float64, kinds, heads, head_dim, positions):
    tensors = state(kinds, heads, head_dim, positions)
    model, params = read(tmp_path, tensors, heads)
    images = np.random.default_rng(1).normal(size=(2, *GRID, 3))
    expected = code_tells(tensors, images, heads, kinds)
    np.testing.assert_allclose(model_tells(model, params, images), expected, rtol=0, atol=1e-10)

    written = safetensors.load_file(convert.save_translution(tmp_path / "there", model, params, GRID))
    unused = {name for name in tensors if "rope" in name and kinds[0] == "v rope" and ".layers.0." in name}
    assert written.keys() == tensors.keys() - unused
    for name, tensor in written.items():
        np.testing.assert_allclose(tensor, np.float32(tensors[name]), rtol=0, atol=1e-6 * ("rope" in name))


def test_queries_and_keys_of_the_older_code(tmp_path):
    """Where q_ij = x_j W^q_ij and k_ij = x_i W^k_ji: its queries are the keys of the newer, and the other way round."""
    tensors = state(("qkv",), 2, 3)
    newer = {
        name.replace("to_q", "to_?").replace("to_k", "to_q").replace("to_?", "to_k"): each
        for name, each in tensors.items()
    }
    _, params = read(tmp_path, tensors, 2, is_transposed=True)
    jax.tree.map(np.testing.assert_array_equal, params, read(tmp_path, newer, 2)[1])


def test_what_the_code_has_not(tmp_path):
    model, params = read(tmp_path, state(("lor k",), 2, 3), 2)
    attention = model.blocks[0].attention.clone(scale=1.0)
    other = model.clone(blocks=(model.blocks[0].clone(attention=attention),))
    message = r"the code of Translution has no model.blocks\[0\].attention.scale=1.0, but 0.288"
    with pytest.raises(InputError, match=message):
        convert.save_translution(tmp_path / "there", other, params, GRID)


@pytest.mark.parametrize(
    "change, fields, message",
    [
        ({}, {"heads": None}, "expected num_heads"),
        ({}, {"heads": 5}, "num_heads=5: does not divide 6"),
        ({}, {"heads": 0}, "num_heads=0: does not divide 6"),
        ({}, {"patch_shape": (0, 2)}, r"patch_shape=\(0, 2\): .*at least 1"),
        ({}, {"patch_shape": 2}, "patch_shape is 2: expected one to 3 sizes"),
        ({}, {"grid_shape": 4}, "grid_shape is 4: expected one to 3 sizes"),
        ({}, {"patch_shape": (2, 2)}, r"patch_shape=\(2, 2\): .* 6 "),
        ({}, {"grid_shape": (4, 4)}, r"to_v.unique_params .*\(24, 4, 6\)"),
        ({"translution.layers.0.0.to_q1.weight": np.zeros(1)}, {}, r"to_q1.weight \(1,\) has no place here"),
    ],
)
def test_what_does_not_fit(tmp_path, unchecked, change, fields, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, state(("v",), 2, 3) | change, **{"heads": 2} | fields)
