"""Every public Linen module as an NNX module: the examples of the docstrings, through `nnx.bridge.ToNNX`."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from flax import nnx

import posattn_jax
from tests.project.test_docstrings import example_of, run
from tests.support.slow import slow

FAST = ("PositionalSelfAttention",)
LINEN = [
    name
    for name in posattn_jax.__all__
    if isinstance(getattr(posattn_jax, name), type) and issubclass(getattr(posattn_jax, name), nn.Module)
]
WITHOUT_PARAMETERS = ("Glu", "SinusoidalPositions")  # whose examples need no `init`; they are parts of others


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in FAST else slow(name) for name in LINEN if name not in WITHOUT_PARAMETERS]
)
def test_same_outputs(name, monkeypatch):
    linen, compared = nn.Module.init_with_output, []

    def init_with_output(self, rng, *args, **kwargs):
        outputs, variables = linen(self, rng, *args, **kwargs)
        with monkeypatch.context() as inside:  # where the bridge calls it
            inside.setattr(nn.Module, "init_with_output", linen)
            module = nnx.bridge.lazy_init(nnx.bridge.ToNNX(self, rngs=nnx.Rngs(0)), *args, **kwargs)
        made = nnx.to_pure_dict(nnx.state(module, nnx.Param))
        assert jax.tree.map(np.shape, made) == jax.tree.map(np.shape, dict(variables.get("params", {})))
        if made:
            nnx.update(module, variables["params"])
        again = module(*args, **kwargs)
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-5), outputs, again)
        compared.append(self)
        return outputs, variables

    monkeypatch.setattr(nn.Module, "init_with_output", init_with_output)
    run(example_of(name))
    assert compared
