import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.nn.siren import Siren, SirenEncoding
from tests import oracle
from tests.support.made_tokens import made_tokens
from tests.support.slow import slow


@pytest.mark.parametrize("grid_shape", [slow((1,)), slow((4,)), (3, 1), (2, 3, 2)], ids=str)
def test_encoding_equals_the_oracle(float64, grid_shape):
    encoding = SirenEncoding(hidden_features=3)
    tokens = made_tokens(2, 2, grid_shape)
    encoded, variables = jax.jit(lambda key: encoding.init_with_output(key, tokens))(jax.random.key(0))
    params = variables["params"]["siren"]
    expected, _ = oracle.value_and_gradients(
        lambda x: oracle.siren_encoding(x, grid_shape, 2, 2), {name: np.asarray(a) for name, a in params.items()}
    )
    np.testing.assert_allclose(encoded, expected, atol=1e-10)


def init(**fields):
    return jax.jit(Siren(64, **fields).init)(jax.random.key(0), jnp.zeros((1, 2)))["params"]


def test_initialisation_is_the_papers():
    params = init()
    for layer, bound in ((1, 1 / 2), (2, math.sqrt(6 / 64) / 10), (3, math.sqrt(3 / 64))):
        largest = float(jnp.abs(params[f"kernel_{layer}"]).max())
        assert 0.95 * bound < largest <= bound
        assert not params[f"bias_{layer}"].any()


def test_ckconv_biases_spread_the_phases():
    params = init(bias_init="ckconv")
    for layer in (1, 2):
        scaled = params[f"bias_{layer}"] * jnp.linalg.norm(params[f"kernel_{layer}"], axis=0)
        assert 0.9 * math.pi < float(jnp.abs(scaled).max()) <= math.pi + 1e-5
    assert not params["bias_3"].any()


def test_learned_omega_starts_where_the_fixed_one_is():
    fixed, learned = Siren(4, omega=7.0), Siren(4, omega=7.0, learn_omega=True)
    x = jnp.linspace(-1, 1, 6)[:, None]
    variables = jax.jit(learned.init)(jax.random.key(0), x)
    assert variables["params"]["omega_1"] == 10 and variables["params"]["omega_2"] == 7
    others = {name: array for name, array in variables["params"].items() if not name.startswith("omega")}
    expected = jax.jit(fixed.apply)({"params": others}, x)
    np.testing.assert_allclose(jax.jit(learned.apply)(variables, x), expected, atol=1e-6)
    gradients = jax.jit(jax.grad(lambda v: learned.apply(v, x).sum()))(variables)["params"]
    assert gradients["omega_1"] != 0 and gradients["omega_2"] != 0


def test_more_layers():
    params = init(num_layers=5, hidden_features=16)
    assert params["kernel_4"].shape == (16, 16) and params["kernel_5"].shape == (16, 64)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"num_layers": 1}, "num_layers=1"),
        ({"bias_init": "ones"}, "bias_init"),
        ({"omega": np.nan}, "omega=nan: expected a finite number other than 0"),
        ({"omega_initial": "10"}, "omega_initial='10': expected a finite number other than 0"),
    ],
    ids=str,
)
def test_bad_fields(unchecked, fields, message):
    with pytest.raises(Exception, match=message):
        init(**fields)


def test_a_larger_grid_keeps_the_meaning_of_distance():
    encoding = SirenEncoding()
    trained, larger = made_tokens(2, 2, (4, 4)), made_tokens(2, 2, (6, 5), reference_shape=(4, 4))
    small, variables = jax.jit(lambda key: encoding.init_with_output(key, trained))(jax.random.key(0))
    large = jax.jit(lambda x: encoding.apply(x, larger))(variables)
    np.testing.assert_allclose(large[2:-2, 1:-1], small, atol=1e-5)
