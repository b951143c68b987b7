"""The layer inside the transformations of JAX and Flax: the values and gradients that it has without them."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from posattn_jax import (
    Content,
    ContentBias,
    GaussianSpan,
    Positional,
    PositionalSelfAttention,
    SirenEncoding,
    Translution,
)
from tests.support.float64 import float64
from tests.support.made_params import made_params
from tests.support.slow import slow

GRID, C = (3, 4), 4
IMPLEMENTATIONS = ["auto", slow("native"), slow("tiled"), slow("reference")]
POLICIES = jax.checkpoint_policies


def make(implementation="auto", cls=PositionalSelfAttention, **fields):
    terms = (Content(), Positional(SirenEncoding(hidden_features=3)), ContentBias())
    fields = {"terms": terms, "span": GaussianSpan(initial_sigma=0.2), "dropout_rate": 0.0} | fields
    return cls(num_heads=2, implementation=implementation, **fields)


def inputs(batch_size=4):
    return jax.random.normal(jax.random.key(1), (batch_size, *GRID, C))


def params_of(layer, x):
    return made_params(lambda: layer.init(jax.random.key(0), x)["params"])


def differentiated(function):
    """Of parameters and inputs: gradients of a sum of the outputs, and the outputs."""

    def loss(params, x):
        outputs = function(params, x)
        return (jnp.sin(outputs.astype(jnp.float32)) * jnp.arange(1, C + 1)).sum(), outputs

    return jax.jit(jax.grad(loss, (0, 1), has_aux=True))


@functools.cache
def outside(implementation="auto"):
    """A layer as a function, its parameters and inputs, and its results outside any transformation."""
    layer, x = make(implementation), inputs()
    params = params_of(layer, x)

    def plain(params, x):
        return layer.apply({"params": params}, x)

    run = differentiated(plain)
    return plain, params, x, run, run(params, x)


def check(found, expected, atol=2e-5):
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=atol), found, expected)


def in_shards(plain, params, x, check_vma=False):
    """The batch over two devices."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    specs = {"in_specs": (P(), P("data")), "out_specs": P("data")}
    return jax.shard_map(plain, mesh=mesh, **specs, check_vma=check_vma)(params, x)


COMPOSED = {
    "vmap": lambda plain, params, x: jax.vmap(lambda one: plain(params, one[None])[0])(x),
    "checkpoint": lambda plain, params, x: jax.checkpoint(plain, policy=POLICIES.dots_saveable)(params, x),
    "checkpoint, nothing kept": lambda plain, params, x: jax.checkpoint(plain)(params, x),
    "shard_map": in_shards,
    "shard_map, types checked": functools.partial(in_shards, check_vma=True),
}
FAST = ("vmap", "shard_map, types checked")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", [name if name in FAST else slow(name) for name in COMPOSED])
def test_in_a_transformation_of_jax(name, implementation):
    plain, params, x, _, expected = outside(implementation)
    check(differentiated(lambda *given: COMPOSED[name](plain, *given))(params, x), expected)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_several_sets_of_parameters_vmapped(implementation):
    """Spans of different length among them."""
    plain, own, x, run, _ = outside(implementation)
    params = [jax.tree.map(lambda array, i=i: np.asarray(array) * (1 + i), own) for i in range(2)]
    stacked = jax.tree.map(lambda *arrays: np.stack(arrays), *params)
    gradients, outputs = differentiated(jax.vmap(plain, (0, None)))(stacked, x)
    each = [run(one, x) for one in params]
    expected = jax.tree.map(lambda *arrays: np.stack(arrays), *((own[0], outputs) for own, outputs in each))
    check((gradients[0], outputs), expected)


@pytest.mark.parametrize("policy", [POLICIES.dots_with_no_batch_dims_saveable, slow(None)], ids=["dots", "nothing"])
def test_in_remat(policy):
    _, params, x, _, expected = outside()
    again = make(cls=nn.remat(PositionalSelfAttention, policy=policy))
    shapes = jax.eval_shape(lambda: again.init(jax.random.key(0), x)["params"])
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)
    check(differentiated(lambda params, x: again.apply({"params": params}, x))(params, x), expected)


class Step(nn.Module):
    """One of equal layers, as `nn.scan` calls it."""

    layer: nn.Module

    def __call__(self, x, _):
        return x + self.layer(x), None


@pytest.mark.slow
@pytest.mark.parametrize("values", [None, slow(Translution(half_span=(1, 1)))], ids=["plain", "translution"])
def test_in_a_scan_over_layers(values):
    number, x = 3, inputs(2)
    layer = make(values=values, num_kv_heads=1)
    fields = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}, "length": number}
    scanned = nn.scan(Step, **fields)(layer)
    params = made_params(lambda: scanned.init(jax.random.key(0), x, None)["params"])

    def one_by_one(params, x):
        for i in range(number):
            x = x + layer.apply({"params": jax.tree.map(lambda array, i=i: array[i], params["layer"])}, x)
        return x

    found = differentiated(lambda params, x: scanned.apply({"params": params}, x, None)[0])(params, x)
    check(found, differentiated(one_by_one)(params, x), atol=1e-4)


@pytest.mark.slow
def test_in_float64_and_bfloat16():
    """As precise as their numbers are: a float32 layer lies between both."""
    plain, params, x, _, single = outside()
    half = make(dtype=jnp.bfloat16)
    coarse = differentiated(lambda params, x: half.apply({"params": params}, x))(params, x)
    assert coarse[1].dtype == jnp.bfloat16
    assert {array.dtype for array in jax.tree.leaves(coarse[0])} == {np.dtype("float32")}
    with float64():
        wide = jax.tree.map(lambda array: jnp.asarray(np.asarray(array), jnp.float64), (params, x))
        double = differentiated(plain)(*wide)
        assert {array.dtype for array in jax.tree.leaves(double[1])} == {np.dtype("float64")}
    check(single, jax.tree.map(np.asarray, double), atol=1e-4)

    def relative(found):
        distances = jax.tree.map(
            lambda one, other: np.linalg.norm(np.asarray(one, float) - other) / np.linalg.norm(other), found, single
        )
        return max(jax.tree.leaves(distances))

    assert 1e-4 < relative(coarse) < 0.1
