import jax.numpy as jnp

from posattn_jax.ops.grid import toeplitz
from tests import oracle
from tests.ops.attention.attention_suite import AllPairsSuite


class TestReference(AllPairsSuite):
    implementation = "reference"


def test_toeplitz_takes_the_entry_of_key_minus_query():
    grid_shape = (3, 1, 2)
    values = jnp.arange(5 * 1 * 3).reshape(5, 1, 3)
    where = oracle.positions(grid_shape)
    by_pair = toeplitz(values, grid_shape)
    for t, query in enumerate(where):
        for s, key in enumerate(where):
            index = tuple(k - q + size - 1 for k, q, size in zip(key, query, grid_shape, strict=True))
            assert by_pair[t, s] == values[index]
