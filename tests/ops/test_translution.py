"""Translution against loops over pairs, convolutions and plain attention."""

import itertools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.ops.translution import ClsMatrices, basis_translution, low_rank_translution, translution
from tests import oracle
from tests.support.slow import slow

B, C, D, K = 2, 3, 2, 2
GRIDS = [(5,), (3, 2), (2, 1, 3), slow((1,)), slow((2,)), slow((1, 2))]
OF_CLS = ClsMatrices._fields


def random(seed, **shapes):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def make_inputs(grid_shape, h=2, matrix_heads=None, cls=0, half=None, batch=B):
    n = cls + math.prod(grid_shape)
    matrix = (C, matrix_heads or h, D)
    sizes = [2 * size - 1 for size in grid_shape] if half is None else [2 * reach + 1 for reach in half]
    shapes = {"weights": (batch, h, n, n), "inputs": (batch, n, C), "matrices": (*sizes, *matrix)}
    return random([cls, *grid_shape], **shapes, **(dict.fromkeys(OF_CLS, matrix) if cls else {}))


def with_cls(x):
    """The same arguments, with the CLS tokens' matrices, if there are any, in one."""
    x = {name: jnp.asarray(array) for name, array in x.items()}
    of_cls = {name: x.pop(name) for name in OF_CLS if name in x}
    return x | ({"cls_matrices": ClsMatrices(**of_cls)} if of_cls else {})


def loops(x, grid_shape, matrix_of=None):
    """Equation 5, pair by pair and number by number; `matrix_of(i, t, s)` is W_{t - s}, [c h d], of positions t and s.

    Its table is indexed by query minus key: it is ours, reversed.
    """
    b, h, n = x["weights"].shape[:3]
    cls = n - math.prod(grid_shape)
    if matrix_of is None:
        where, p = oracle.positions(grid_shape), len(grid_shape)
        table = np.flip(x["matrices"], range(p))

        def matrix_of(i, t, s):
            index = [qt - ks + size // 2 for qt, ks, size in zip(where[t], where[s], table.shape[:p], strict=True)]
            return table[tuple(index)] if all(0 <= j < table.shape[a] for a, j in enumerate(index)) else None

    def matrix(i, t, s):
        if t >= cls and s >= cls:
            return matrix_of(i, t - cls, s - cls)
        return x[OF_CLS[2] if t >= cls else OF_CLS[1] if s >= cls else OF_CLS[0]]

    outputs = np.zeros((b, n, h, D, x["inputs"].shape[-1]), complex)
    for i, t, s in itertools.product(range(b), range(n), range(n)):
        w = matrix(i, t, s)
        if w is None:
            continue
        for j, d, c in itertools.product(range(h), range(D), range(C)):
            outputs[i, t, j, d] += x["weights"][i, j, t, s] * x["inputs"][i, s, c] * w[c, j % w.shape[1], d]
    return outputs


def check(function, x, expected):
    """Values and gradients of every argument of `function(x)` within 1e-10 of those of `expected(perturbed x)`."""
    outputs = np.random.default_rng(1).normal(size=jax.eval_shape(function, x).shape)
    values, gradients = oracle.value_and_gradients(lambda x: outputs[..., None] * expected(x), x)
    compare(lambda x: outputs * function(x), x, values, gradients)


def compare(function, x, values, gradients):
    def loss(x):
        outputs = function(x)
        return outputs.sum(), outputs

    actual_gradients, actual = jax.jit(jax.grad(loss, has_aux=True))(jax.tree.map(jnp.asarray, x))
    np.testing.assert_allclose(actual, values, rtol=1e-10, atol=1e-10)
    for name, gradient in actual_gradients.items():
        np.testing.assert_allclose(gradient, gradients[name], rtol=1e-10, atol=1e-10, err_msg=name)


def check_equal(function, other, x):
    """Values and gradients of two functions of `x`."""
    outputs = np.random.default_rng(1).normal(size=jax.eval_shape(function, x).shape)
    x = jax.tree.map(jnp.asarray, x)

    def total(x):
        values = outputs * other(x)
        return values.sum(), values

    gradients, values = jax.jit(jax.grad(total, has_aux=True))(x)
    compare(lambda x: outputs * function(x), x, values, gradients)


@pytest.mark.parametrize("cls", [0, 1])
@pytest.mark.parametrize("grid_shape", GRIDS, ids=str)
def test_values_and_gradients(float64, grid_shape, cls):
    x = make_inputs(grid_shape, cls=cls, batch=1)
    check(lambda x: translution(**with_cls(x), grid_shape=grid_shape), x, lambda x: loops(x, grid_shape))


@pytest.mark.parametrize("h, matrix_heads, cls", [(1, 1, 0), (3, 3, 0), (3, 1, 0), (2, 1, 2)])
def test_heads(float64, h, matrix_heads, cls):
    """One head, a matrix a head, one that all heads share; and two CLS tokens."""
    x = make_inputs((2, 2), h, matrix_heads, cls)
    check(lambda x: translution(**with_cls(x), grid_shape=(2, 2)), x, lambda x: loops(x, (2, 2)))


@pytest.mark.parametrize(
    "grid_shape, half",
    [((5,), (0,)), ((4, 3), (1, 2)), slow((6,), (1,)), slow((5,), (3,)), slow((3, 1, 4), (2, 0, 1))],
    ids=str,
)
def test_a_span_is_a_table_of_zeros_beyond(float64, grid_shape, half):
    x = make_inputs(grid_shape, h=1, cls=1, half=half, batch=1)
    if math.prod(grid_shape) < 10:
        check(lambda x: translution(**with_cls(x), grid_shape=grid_shape), x, lambda x: loops(x, grid_shape))
    beyond = [(size - 1 - reach,) * 2 for size, reach in zip(grid_shape, half, strict=True)] + [(0, 0)] * 3

    def full(x):
        return translution(**with_cls(x | {"matrices": jnp.pad(x["matrices"], beyond)}), grid_shape=grid_shape)

    check_equal(lambda x: translution(**with_cls(x), grid_shape=grid_shape), full, x)


def test_cost_follows_the_span():
    def operations(size):
        shapes = ((2, 1, 256, 256), (2, 256, 16), (size, size, 16, 1, 16))
        arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        compiled = jax.jit(lambda *x: translution(*x, grid_shape=(16, 16))).lower(*arrays).compile()
        return compiled.cost_analysis()["flops"]  # of one step

    assert operations(3) < operations(31) * 1.1 * 9 / 256


@pytest.mark.parametrize("grid_shape, half", [((7,), (2,)), ((4, 5), (1, 1)), ((3, 4), (2, 3)), ((3, 2, 3), (1, 0, 1))])
def test_is_a_convolution_where_all_weights_are_one(float64, grid_shape, half):
    """Our table is the kernel; the table of equation 5 is the kernel reversed."""
    x = make_inputs(grid_shape, h=1, half=half)
    ones = jnp.ones_like(x.pop("weights"))
    size = tuple(2 * reach + 1 for reach in half)

    def convolution(x):
        conv = nn.Conv(D, size, use_bias=False, padding="SAME", param_dtype=jnp.float64)
        image = jnp.asarray(x["inputs"]).reshape(B, *grid_shape, C)
        return conv.apply({"params": {"kernel": x["matrices"][..., 0, :]}}, image).reshape(B, -1, 1, D)

    check_equal(lambda x: translution(weights=ones, **x, grid_shape=grid_shape), convolution, x)


def test_is_platform_attention_where_all_matrices_are_one(float64):
    x = make_inputs((3, 4), cls=1)
    x |= {"matrix": x.pop("matrices")[0, 0]} | {name: np.zeros(0) for name in OF_CLS}

    def same(x):
        matrices = jnp.broadcast_to(x["matrix"], (5, 7, C, 2, D))
        cls_matrices = ClsMatrices(x["matrix"], x["matrix"], x["matrix"])
        return translution(x["weights"], x["inputs"], matrices, grid_shape=(3, 4), cls_matrices=cls_matrices)

    def plain(x):
        values = jnp.einsum("bsc,chd->bshd", x["inputs"], x["matrix"])
        return jnp.einsum("bhts,bshd->bthd", x["weights"], values)

    check_equal(same, plain, jax.tree.map(jnp.asarray, x))


def low_rank_inputs(grid_shape, h, cls, down=True):
    n, j = cls + math.prod(grid_shape), 2 if down else C
    sizes = [2 * size - 1 for size in grid_shape]
    shapes = {"weights": (B, h, n, n), "inputs": (B, n, C), "matrix": (C, h, D), "up": (h, K, D)}
    shapes |= {"relative": (*sizes, j, h, K)} | ({"down": (C, j)} if down else {})
    return random(0, **shapes, **(dict.fromkeys(OF_CLS, (j, h, K)) if cls else {}))


@pytest.mark.parametrize("down, cls", [(False, 0), (True, 1), slow(False, 1), slow(True, 0)])
def test_low_rank_is_its_product(float64, down, cls):
    """The full form with W + D U V in the table."""
    x = jax.tree.map(jnp.asarray, low_rank_inputs((3, 2), 2, cls, down))

    def full(x):
        down = x.get("down", jnp.eye(C))

        def product(relative):
            return x["matrix"] + jnp.einsum("cj,...jhk,hkd->...chd", down, relative, x["up"])

        matrices = {"matrices": product(x["relative"])} | {name: product(x[name]) for name in OF_CLS if name in x}
        return translution(x["weights"], x["inputs"], **with_cls(matrices), grid_shape=(3, 2))

    check_equal(lambda x: low_rank_translution(**with_cls(x), grid_shape=(3, 2)), full, x)


@pytest.mark.parametrize("cls", [0, 1])
def test_low_rank_whose_up_mixes_heads(float64, cls):
    """The authors' form number by number: what all heads have summed, joined, times one matrix [h k, h d]."""
    x = low_rank_inputs((3, 2), 2, cls) | random(1, up=(2, K, 2, D))
    where = oracle.positions((3, 2))

    def loops(x):
        b, h, n = x["weights"].shape[:3]
        outputs = np.zeros((b, n, h, D, x["inputs"].shape[-1]), complex)
        for i, t, s in np.ndindex(b, n, n):
            down = [sum(x["inputs"][i, s, c] * x["down"][c, j] for c in range(C)) for j in range(2)]
            if t >= cls and s >= cls:
                entry = np.add(np.subtract(where[s - cls], where[t - cls]), (2, 1))
                table = x["relative"][tuple(entry)]
            else:
                table = x[OF_CLS[2] if t >= cls else OF_CLS[1] if s >= cls else OF_CLS[0]]
            for head, d in np.ndindex(h, D):
                value = sum(x["inputs"][i, s, c] * x["matrix"][c, head, d] for c in range(C))
                outputs[i, t, head, d] += x["weights"][i, head, t, s] * value
                for other, k, j in np.ndindex(h, K, 2):
                    low = x["weights"][i, other, t, s] * down[j] * table[j, other, k]
                    outputs[i, t, head, d] += low * x["up"][other, k, head, d]
        return outputs

    check(lambda x: low_rank_translution(**with_cls(x), grid_shape=(3, 2)), x, loops)


def test_low_rank_of_full_rank_is_the_full_form(float64):
    x = make_inputs((4, 3), half=(2, 1))
    parts = {"matrix": jnp.zeros((C, 1, D)), "up": jnp.eye(D)[None], "down": jnp.eye(C)}

    def low_rank(x):
        return low_rank_translution(x["weights"], x["inputs"], relative=x["matrices"], **parts, grid_shape=(4, 3))

    check_equal(low_rank, lambda x: translution(**x, grid_shape=(4, 3)), jax.tree.map(jnp.asarray, x))


def basis_inputs(coefficients, n, cls=0, h=2, matrix_heads=2):
    shapes = {"weights": (B, h, cls + n, cls + n), "inputs": (B, cls + n, C)}
    shapes |= {"basis": (K, C, matrix_heads, D), "coefficients": coefficients}
    return random(0, **shapes, **(dict.fromkeys(OF_CLS, (C, matrix_heads, D)) if cls else {}))


@pytest.mark.parametrize("cls", [slow(0), 1])
@pytest.mark.parametrize("grid_shape, sizes", [slow((3,), (5,)), ((3, 4), (3, 7)), ((2, 1, 3), (1, 1, 3))], ids=str)
def test_basis_is_its_sum(float64, grid_shape, sizes, cls):
    """The full form with sum_k h_k W_k in the table."""
    x = jax.tree.map(jnp.asarray, basis_inputs((*sizes, K), math.prod(grid_shape), cls))

    def full(x):
        matrices = jnp.einsum("...k,kchd->...chd", x.pop("coefficients"), x.pop("basis"))
        return translution(**with_cls(x | {"matrices": matrices}), grid_shape=grid_shape)

    check_equal(lambda x: basis_translution(**with_cls(x), grid_shape=grid_shape), lambda x: full(dict(x)), x)


def test_basis_of_one_matrix_an_offset_is_the_full_form(float64):
    x = make_inputs((2, 3), cls=1)
    one_hot = jnp.eye(15).reshape(3, 5, 15)

    def of_basis(x):
        basis = x["matrices"].reshape(15, C, 2, D)
        parts = {name: array for name, array in x.items() if name != "matrices"}
        return basis_translution(**with_cls(parts), basis=basis, coefficients=one_hot, grid_shape=(2, 3))

    check_equal(of_basis, lambda x: translution(**with_cls(x), grid_shape=(2, 3)), jax.tree.map(jnp.asarray, x))


@pytest.mark.parametrize("matrix_heads, cls, batch", [(2, 0, B), (1, 0, 1), (2, 1, 1)])
def test_basis_between_points(float64, matrix_heads, cls, batch):
    """Equation 6 with coefficients for every pair: values and gradients."""
    x = basis_inputs((batch, 3, 3, K), 3, cls, 2, matrix_heads)

    def expected(x):
        def matrix_of(i, t, s):
            return (x["coefficients"][i % batch, t, s][:, None, None, None] * x["basis"]).sum(0)

        return loops(x, (3,), matrix_of)

    check(lambda x: basis_translution(**with_cls(x)), x, expected)


def test_what_the_weights_mask_is_not_attended():
    x = jax.tree.map(jnp.asarray, make_inputs((3, 3)))
    x["weights"] = jnp.tril(x["weights"])
    jacobian = jax.jacobian(lambda inputs: translution(**x | {"inputs": inputs}, grid_shape=(3, 3)).sum((0, 2, 3)))
    reached = np.abs(jax.jit(jacobian)(x["inputs"])).sum((1, 3)) > 0
    np.testing.assert_array_equal(reached, np.tri(9, dtype=bool))


def test_bfloat16():
    half = {name: jnp.asarray(array, jnp.bfloat16) for name, array in make_inputs((4, 4), cls=1).items()}

    @jax.jit
    def differentiate(x):
        def loss(x):
            outputs = translution(**with_cls(x), grid_shape=(4, 4))
            return outputs.sum(), outputs

        return jax.grad(loss, has_aux=True)(x)

    gradients, outputs = differentiate(half)
    expected_gradients, expected = differentiate(jax.tree.map(lambda x: x.astype(jnp.float32), half))
    assert outputs.dtype == jnp.bfloat16
    np.testing.assert_allclose(outputs.astype(jnp.float32), expected, rtol=0.01, atol=0.05)
    for name, gradient in expected_gradients.items():
        assert gradients[name].dtype == jnp.bfloat16
        np.testing.assert_allclose(gradients[name].astype(jnp.float32), gradient, rtol=0.02, atol=0.2, err_msg=name)


@pytest.mark.parametrize("size, batch, at_most", [(8, 32, 1 / 4), (16, 32, 1 / 20)])
def test_no_values_of_all_pairs(size, batch, at_most):
    """Temporary memory, forward and backward, of the naive form's; compiled only."""
    n, width = size * size, 64
    shapes = {"weights": (batch, 1, n, n), "inputs": (batch, n, width)}
    shapes |= {"matrices": (2 * size - 1, 2 * size - 1, width, 1, width)}
    x = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}

    def naive(weights, inputs, matrices, grid_shape):
        where = np.array(oracle.positions(grid_shape))
        offsets = where[None] - where[:, None] + size - 1
        values = jnp.einsum("bsc,tschd->btshd", inputs, matrices[offsets[..., 0], offsets[..., 1]])
        return jnp.einsum("bhts,btshd->bthd", weights, values)

    def temporary_bytes(function):
        loss = lambda x: (function(**x, grid_shape=(size, size)) ** 2).sum()
        return jax.jit(jax.grad(loss)).lower(x).compile().memory_analysis().temp_size_in_bytes

    assert temporary_bytes(translution) <= at_most * temporary_bytes(naive)


@pytest.mark.parametrize(
    "changed, named",
    [
        ({"inputs": (B, 5, C)}, "weights"),
        ({"weights": (B, 2, 5, 5), "inputs": (B, 5, C)}, "inputs has 5 tokens: expected 6"),
        ({"matrices": (5, 2, C, 2, D)}, "matrices"),
        ({"matrices": (7, 3, C, 2, D)}, "matrices"),
        ({"matrices": (5, 3, C, 3, D)}, "matrices"),
        ({"matrices": (3, C, 2, D)}, "matrices"),
    ],
)
def test_what_does_not_fit(unchecked, changed, named):
    x = make_inputs((3, 2)) | {name: np.zeros(shape) for name, shape in changed.items()}
    with pytest.raises(ValueError, match=named):
        translution(**with_cls(x), grid_shape=(3, 2))


def test_what_does_not_fit_the_other_forms(unchecked):
    with_cls_matrices = make_inputs((3, 2)) | {name: np.zeros((C, 2, D)) for name in OF_CLS}
    with pytest.raises(ValueError, match="more than 6"):
        translution(**with_cls(with_cls_matrices), grid_shape=(3, 2))
    bad_cls = make_inputs((3, 2), cls=1) | {OF_CLS[1]: np.zeros((C, 2, D + 1))}
    with pytest.raises(ValueError, match=OF_CLS[1]):
        translution(**with_cls(bad_cls), grid_shape=(3, 2))
    for name, shape in {"matrix": (C, 3, D), "up": (2, K + 1, D), "down": (C + 1, 2)}.items():
        x = low_rank_inputs((3, 2), 2, 0) | {name: np.zeros(shape)}
        with pytest.raises(ValueError, match=f"{name} has shape"):
            low_rank_translution(**with_cls(x), grid_shape=(3, 2))
    for shape, grid_shape in (((5, 4, K), (3, 2)), ((5, 3, K + 1), (3, 2)), ((3, 6, 6, K), None), ((5, 3, K), None)):
        with pytest.raises(ValueError, match="coefficients has"):
            basis_translution(**with_cls(basis_inputs(shape, 6)), grid_shape=grid_shape)
