import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.blocks import EncoderBlock


def run(norm, x):
    block = EncoderBlock(PositionalSelfAttention(num_heads=2), mlp_dim=16, norm=norm, dropout_rate=0.5)
    variables = jax.jit(lambda: block.init(jax.random.key(0), x, (4,)))()
    return block, variables, jax.jit(lambda: block.apply(variables, x, (4,)))()


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_where_the_norms_are(norm):
    x = 3 * jax.random.normal(jax.random.key(1), (2, 4, 8))
    block, variables, outputs = run(norm, x)
    params = variables["params"]
    attention = lambda x: block.attention.apply({"params": params["attention"]}, x, (4,))

    def feed_forward(x):
        hidden = x @ params["feed_forward"]["hidden"]["kernel"] + params["feed_forward"]["hidden"]["bias"]
        output = params["feed_forward"]["output"]
        return jax.nn.relu(hidden) @ output["kernel"] + output["bias"]

    layer_norm = lambda x: nn.LayerNorm(1e-5, use_scale=False, use_bias=False).apply({}, x)

    @jax.jit
    def expected():
        if norm == "post":
            y = layer_norm(x + attention(x))
            return layer_norm(y + feed_forward(y))
        y = x + attention(layer_norm(x))
        return y + feed_forward(layer_norm(y))

    np.testing.assert_allclose(outputs, expected(), atol=1e-4)


def test_dropout_needs_asking_for():
    x = jax.random.normal(jax.random.key(1), (2, 4, 8))
    block, variables, plain = run("post", x)
    rngs = {"dropout": jax.random.key(2)}
    dropped = jax.jit(lambda: block.apply(variables, x, (4,), deterministic=False, rngs=rngs))()
    assert not np.allclose(plain, dropped)


def test_bad_norm():
    with pytest.raises(Exception, match="norm"):
        EncoderBlock(PositionalSelfAttention(num_heads=2), mlp_dim=4, norm="middle").init(
            jax.random.key(0), jnp.zeros((1, 4, 8)), (4,)
        )
