"""Parts have the names of the fields that hold them, wherever they were made."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax import (
    Content,
    ContentBias,
    EncoderBlock,
    GaussianSpan,
    LearnedEncoding,
    LinearProjections,
    PlusRelative,
    Positional,
    PositionalSelfAttention,
    SirenEncoding,
)
from tests.support.made_params import made_params
from tests.support.made_tokens import made_tokens
from tests.support.slow import slow

GRID = (2, 3)
X = jax.random.normal(jax.random.key(1), (1, 6, 4))


def make_layer(**fields):
    encoding = SirenEncoding()
    return PositionalSelfAttention(
        num_heads=2,
        terms=(Content(), Positional(encoding), ContentBias(), Positional(encoding)),
        span=GaussianSpan(),
        values=PlusRelative(LearnedEncoding()),
        gate=lambda inputs, outputs: outputs,
        projections=LinearProjections(use_bias=False),
        **fields,
    )


def make_block(**fields):
    return EncoderBlock(make_layer(), mlp_dim=4, **fields)


class Given(nn.Module):
    part: nn.Module

    def __call__(self, x):
        return self.part(x, GRID)


class MadeInSetup(nn.Module):
    make: object

    def setup(self):
        self.part = self.make()

    def __call__(self, x):
        return self.part(x, GRID)


class MadeInCompact(nn.Module):
    make: object

    @nn.compact
    def __call__(self, x):
        return self.make(name="part")(x, GRID)


@pytest.mark.slow
@pytest.mark.parametrize("made", [MadeInSetup, MadeInCompact])
@pytest.mark.parametrize("make", [make_block, slow(make_layer)])
def test_names_do_not_depend_on_where_parts_were_made(make, made):
    """Nor do the parameters, which are drawn by their names."""
    model = made(make)
    expected = jax.jit(Given(make()).init)(jax.random.key(0), X)
    variables = jax.jit(model.init)(jax.random.key(0), X)
    jax.tree.map(np.testing.assert_array_equal, variables, expected)
    attention = expected["params"]["part"]["attention"] if make is make_block else expected["params"]["part"]
    assert attention.keys() == {"terms_1", "terms_2", "span", "values", "projections", "output"}  # E is shared
    np.testing.assert_array_equal(jax.jit(model.apply)(variables, X), jax.jit(Given(make()).apply)(expected, X))


class TwoLayers(nn.Module):
    """One span for both layers, which may be called by itself first, or have a name of its own."""

    called: bool = False
    name_of_span: str | None = None

    @nn.compact
    def __call__(self, x):
        span = GaussianSpan(name=self.name_of_span)
        if self.called:
            span(made_tokens(2, 2, GRID))
        for i in range(2):
            x = PositionalSelfAttention(num_heads=2, span=span, name=f"layer_{i}")(x, GRID)
        return x


@pytest.mark.slow
@pytest.mark.parametrize(
    "model, path",
    [
        (TwoLayers(), ("layer_0", "span")),
        (TwoLayers(called=True), ("GaussianSpan_0",)),
        (TwoLayers(name_of_span="extent"), ("extent",)),
    ],
    ids=["made", "called", "named"],
)
def test_one_part_is_shared_and_lies_in_one_place(model, path):
    variables = jax.jit(model.init)(jax.random.key(0), X)
    paths = jax.tree_util.tree_leaves_with_path(variables["params"])
    found = [tuple(key.key for key in at) for at, _ in paths if at[-1].key == "sigma"]
    assert found == [(*path, "sigma")]
    outputs, _ = jax.jit(model.init_with_output)(jax.random.key(0), X)
    np.testing.assert_array_equal(jax.jit(model.apply)(variables, X), outputs)


def test_parameters_under_linens_names_are_still_found():
    """Those that were trained before parts gave these names up."""
    model = TwoLayers()
    params = dict(made_params(lambda: model.init(jax.random.key(0), X)["params"]))
    first = dict(params["layer_0"])
    narrow = {"sigma": jnp.array([0.1, 0.1])}
    expected = jax.jit(model.apply)({"params": params | {"layer_0": first | {"span": narrow}}}, X)
    del first["span"]
    outputs = jax.jit(model.apply)({"params": params | {"layer_0": first, "GaussianSpan_0": narrow}}, X)
    np.testing.assert_array_equal(outputs, expected)


def test_terms_in_a_list_are_hashed_as_a_tuple(unchecked):
    """Modules are static arguments of jitted functions."""
    listed, layer = (PositionalSelfAttention(2, terms=kind((Content(), ContentBias()))) for kind in (list, tuple))
    assert listed == layer and hash(listed) == hash(layer)
