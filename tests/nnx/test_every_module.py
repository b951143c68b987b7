"""Every public Linen module is an NNX module too, with its values and gradients: the examples of the docstrings."""

import dataclasses
import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posattn_jax
from posattn_jax import nnx as native
from tests.project.test_docstrings import example_of, run
from tests.support.slow import slow

PUBLIC = {name: getattr(posattn_jax, name) for name in posattn_jax.__all__}
LINEN = {name: each for name, each in PUBLIC.items() if isinstance(each, type) and issubclass(each, nn.Module)}
FAST = ("PositionalSelfAttention", "EncoderBlock", "Siren")
WITHOUT_PARAMETERS = ("Glu", "SinusoidalPositions")  # whose examples need no `init`


def test_every_name_is_here():
    assert set(native.__all__) == set(LINEN)
    assert all(getattr(native, name).linen_class is each for name, each in LINEN.items())


def fields_of(linen):
    names = [field.name for field in dataclasses.fields(linen) if field.name not in ("parent", "name")]
    return {name: as_native(getattr(linen, name)) for name in names}


def as_native(part):
    """The part without parameters, as whoever writes NNX makes it."""
    if isinstance(part, tuple):
        return tuple(map(as_native, part))
    if not isinstance(part, nn.Module):
        return part
    found = getattr(native, type(part).__name__, None)
    if found is None:  # the window of one's own in the example of LearnedWindow
        own = {"log_profile": lambda self, distance: type(part).log_profile(part, distance)}
        found = type(type(part).__name__, (native.LearnedWindow,), own)
    return found(**fields_of(part))


def total(outputs):
    return sum(jnp.sum(x**2) for x in jax.tree.leaves(outputs) if jnp.issubdtype(x.dtype, jnp.inexact))


def check(linen, variables, outputs, args, kwargs):
    example = dict(inspect.signature(type(linen).__call__).bind(linen, *args, **kwargs).arguments)
    del example["self"]
    example |= example.pop("inputs", {}) if isinstance(example.get("inputs"), dict) else {}
    module = getattr(native, type(linen).__name__)(**fields_of(linen), rngs=nnx.Rngs(0), example=example)
    params = variables.get("params", {})
    state = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, dict(params))
    nnx.update(module, params) if params else None
    module.eval()
    again = module(*args, **kwargs)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-5), outputs, again)
    expected = jax.jit(jax.grad(lambda params: total(linen.apply({"params": params}, *args, **kwargs))))(params)
    found = nnx.jit(nnx.grad(lambda module: total(module(*args, **kwargs))))(module)
    same = lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    jax.tree.map(same, nnx.to_pure_dict(found), dict(expected))


@pytest.mark.parametrize(
    "name", [name if name in FAST else slow(name) for name in LINEN if name not in WITHOUT_PARAMETERS]
)
def test_values_and_gradients(name, monkeypatch):
    original, checked = nn.Module.init_with_output, []

    def init_with_output(self, rng, *args, **kwargs):
        outputs, variables = original(self, rng, *args, **kwargs)
        with monkeypatch.context() as inside:  # where the bridge calls it
            inside.setattr(nn.Module, "init_with_output", original)
            if "method" not in kwargs:  # as that of Memory, which keeps what it computes
                check(self, variables, outputs, args, kwargs)
        checked.append(self)
        return outputs, variables

    monkeypatch.setattr(nn.Module, "init_with_output", init_with_output)
    run(example_of(name))
    assert checked


def test_parts_without_parameters(unchecked):
    x, places = jnp.linspace(-1, 1, 16).reshape(2, 2, 1, 4), posattn_jax.of_grid((3,)).query
    np.testing.assert_array_equal(native.Glu()(x), posattn_jax.Glu().apply({}, x))
    positions = posattn_jax.SinusoidalPositions().apply({}, places, 8)
    np.testing.assert_array_equal(native.SinusoidalPositions()(places, 8), positions)
