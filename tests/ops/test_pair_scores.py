"""Relative queries and keys against loops over pairs, and against products as usual."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.ops.pair_scores import pair_scores
from posattn_jax.ops.translution import ClsMatrices
from tests import oracle
from tests.ops.test_translution import C, D, check, random
from tests.support.slow import slow

H = 2
SIDES = [("query",), ("key",), ("query", "key")]


def make_inputs(grid_shape, relative, cls=0, half=None, key_inputs=False):
    n = cls + math.prod(grid_shape)
    sizes = [2 * size - 1 for size in grid_shape] if half is None else [2 * reach + 1 for reach in half]
    shapes = {"inputs": (2, n, C)} | ({"key_inputs": (2, n, C)} if key_inputs else {})
    for side in ("query", "key"):
        if side in relative:
            shapes[f"{side}_matrices"] = (*sizes, C, H, D)
            shapes |= {f"{side}_cls_{name}": (C, H, D) for name in (ClsMatrices._fields if cls else ())}
        else:
            shapes[side] = (2, n, H, D)
    return random([cls, *grid_shape, len(relative)], **shapes)


def call(x, grid_shape):
    x = {name: jnp.asarray(array) for name, array in x.items()}
    for side in ("query", "key"):
        of_cls = [x.pop(f"{side}_cls_{name}", None) for name in ClsMatrices._fields]
        if of_cls[0] is not None:
            x[f"{side}_cls"] = ClsMatrices(*of_cls)
    return pair_scores(grid_shape=grid_shape, **x)


def loops(x, grid_shape):
    """Number by number, pair by pair."""
    b, n = x["inputs"].shape[:2]
    where = oracle.positions(grid_shape)
    cls = n - len(where)
    scores = np.zeros((b, H, n, n, x["inputs"].shape[-1]), complex)

    def side(name, i, token, t, s, j, d):
        if name in x:
            return x[name][i, token, j, d]
        if t >= cls and s >= cls:
            table = x[f"{name}_matrices"]
            sizes = table.shape[: len(grid_shape)]
            index = tuple(k - q + size // 2 for k, q, size in zip(where[s - cls], where[t - cls], sizes, strict=True))
            if not all(0 <= at < size for at, size in zip(index, sizes, strict=True)):
                return 0
            matrix = table[index]
        else:
            matrix = x[f"{name}_cls_{ClsMatrices._fields[2 if t >= cls else 1 if s >= cls else 0]}"]
        inputs = x.get("key_inputs", x["inputs"]) if name == "key" else x["inputs"]
        return sum(inputs[i, token, c] * matrix[c, j, d] for c in range(C))

    for i, j, t, s, d in itertools.product(range(b), range(H), range(n), range(n), range(D)):
        scores[i, j, t, s] += side("query", i, t, t, s, j, d) * side("key", i, s, t, s, j, d)
    return scores


@pytest.mark.parametrize("cls", [0, 1])
@pytest.mark.parametrize("relative", SIDES, ids=str)
@pytest.mark.parametrize("grid_shape", [(2, 2), slow((3,)), slow((1,))], ids=str)
def test_values_and_gradients(float64, grid_shape, relative, cls):
    x = make_inputs(grid_shape, relative, cls)
    check(lambda x: call(x, grid_shape), x, lambda x: loops(x, grid_shape))


def test_keys_of_other_inputs(float64):
    x = make_inputs((3,), ("query", "key"), cls=1, key_inputs=True)
    check(lambda x: call(x, (3,)), x, lambda x: loops(x, (3,)))


@pytest.mark.parametrize("grid_shape, half", [((4,), (1,)), ((3, 2), (1, 0)), ((1, 2, 2), (0, 1, 0))], ids=str)
def test_pairs_beyond_the_table_score_nothing(float64, grid_shape, half):
    x = make_inputs(grid_shape, ("query", "key"), half=half)
    check(lambda x: call(x, grid_shape), x, lambda x: loops(x, grid_shape))


def test_equal_matrices_are_attention_as_usual(float64):
    x = make_inputs((3, 2), ("query", "key"))
    wq, wk = (x[name][0, 0] for name in ("query_matrices", "key_matrices"))
    x |= {name: np.broadcast_to(x[name][:1, :1], x[name].shape) for name in ("query_matrices", "key_matrices")}
    query, key = (np.einsum("btc,chd->bthd", x["inputs"], w) for w in (wq, wk))
    np.testing.assert_allclose(call(x, (3, 2)), np.einsum("bthd,bshd->bhts", query, key), rtol=1e-12)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"query_matrices": None}, "expected either query or query_matrices"),
        ({"query": np.zeros((2, 4, H, D))}, "expected either query or query_matrices"),
        ({"query_matrices": None, "query": np.zeros((2, 3, H, D))}, r"query has shape \(2, 3, 2, 2\)"),
        ({"key_matrices": np.zeros((5, C, H, D))}, r"matrices .*\(5, 3, 2, 2\)"),
        ({"key_matrices": np.zeros((9, C, H, D)), "query_matrices": np.zeros((9, C, H, D))}, r"of at most \(7,\)"),
        ({"key_inputs": np.zeros((2, 3, C))}, r"key_inputs .*\(2, 3, 3\): .*\(2, 4, 3\)"),
        ({"inputs": np.zeros((2, 3, C))}, "inputs has 3 tokens: expected at least 4"),
        ({"inputs": np.zeros((2, 5, C))}, "query_cls: expected it with class tokens"),
    ],
)
def test_bad_arguments(unchecked, change, message):
    x = make_inputs((4,), ("query", "key")) | change
    with pytest.raises(ValueError, match=message):
        pair_scores(grid_shape=(4,), **{name: None if a is None else jnp.asarray(a) for name, a in x.items()})


def test_two_usual_sides_are_none_of_its(unchecked):
    x = make_inputs((4,), ())
    with pytest.raises(ValueError, match="query, key: .*matrices"):
        call(x, (4,))
