import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.nn.encodings import LearnedEncoding, SinusoidalEncoding
from posattn_jax.ops.encodings import relative_sinusoids, sinusoidal_features
from tests.support.made_params import made_params
from tests.support.made_tokens import made_tokens
from tests.support.slow import slow


def test_sinusoids_are_algorithm_3():
    d = 6
    features = np.asarray(jax.jit(lambda: relative_sinusoids((5,), d))())
    for i in range(9):
        for j in range(d):
            if j % 2 == 0:
                expected = math.sin(i * math.exp(-j * math.log(10000) / d))
            else:
                expected = math.cos(i * math.exp(-(j - 1) * math.log(10000) / d))
            assert features[i, j] == pytest.approx(expected, abs=1e-5)


def test_sinusoids_of_two_dimensions():

    @jax.jit
    def made():
        first, second = (sinusoidal_features(jnp.arange(2.0 * size - 1), 4) for size in (2, 3))
        return first[1], second[4], relative_sinusoids((2, 3), 8, "concat"), relative_sinusoids((2, 3), 4, "sum")

    first, second, concatenated, added = map(np.asarray, made())
    np.testing.assert_allclose(concatenated[1, 4], np.concatenate([first, second]), atol=1e-6)
    np.testing.assert_allclose(added[1, 4], first + second, atol=1e-6)
    with pytest.raises(ValueError, match="num_features=7"):
        relative_sinusoids((2, 3), 7, "concat")


@pytest.mark.parametrize(
    "encoding", [SinusoidalEncoding(), SinusoidalEncoding(combine="sum"), LearnedEncoding()], ids=repr
)
@pytest.mark.parametrize("grid_shape", [slow((4,)), slow((3, 2)), (1, 2, 3)], ids=str)
def test_shape_and_reference(encoding, grid_shape):
    if len(grid_shape) == 3 and isinstance(encoding, SinusoidalEncoding) and encoding.combine == "concat":
        heads = 6  # a width that three dimensions share
    else:
        heads = 4
    tokens = made_tokens(heads, 2, grid_shape)
    smaller = (*grid_shape[:-1], grid_shape[-1] - 1)
    few = made_tokens(heads, 2, smaller, reference_shape=grid_shape)
    variables = made_params(lambda: encoding.init(jax.random.key(0), tokens))
    table, cropped = jax.jit(lambda x: [encoding.apply(x, each) for each in (tokens, few)])(variables)
    assert table.shape == (*(2 * size - 1 for size in grid_shape), heads, 2)
    np.testing.assert_allclose(cropped, table[..., 1:-1, :, :], atol=1e-5)


def test_sinusoids_reach_beyond_the_reference_and_a_table_does_not():
    sinusoidal, learned = SinusoidalEncoding(), LearnedEncoding()
    trained, longer = made_tokens(2, 2, (3,)), made_tokens(2, 2, (5,), reference_shape=(3,))
    variables = made_params(lambda: sinusoidal.init(jax.random.key(0), trained))
    larger, table = jax.jit(lambda x: [sinusoidal.apply(x, each) for each in (longer, trained)])(variables)
    np.testing.assert_allclose(larger[2:-2], table, atol=1e-5)
    with pytest.raises(ValueError, match=r"grid_shape=\(5,\): .*\(3,\)"):
        learned.init(jax.random.key(0), longer)


def test_baseline_linear_layer_is_drawn_from_one_over_sqrt_width():
    tokens = made_tokens(8, 8, (4,))
    params = jax.jit(lambda: SinusoidalEncoding().init(jax.random.key(0), tokens)["params"]["linear"])()
    for name in ("kernel", "bias"):
        assert 0.9 / 8 < float(jnp.abs(params[name]).max()) <= 1 / 8
