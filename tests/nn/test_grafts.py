"""A layer, or a model, that begins as another and has more parts: what it tells, and whether the new parts learn."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from posattn_jax import (
    BucketedBias,
    Content,
    ContentBias,
    DepthwiseConvolution,
    EncoderBlock,
    GaussianSpan,
    KernelEncoding,
    KeyPositional,
    LearnedEncoding,
    LinearProjections,
    LowRankTranslution,
    PlusDepthwise,
    PlusRelative,
    Positional,
    PositionalSelfAttention,
    RelativeBias,
    RelativeContent,
    RotaryContent,
    Translution,
    VisionTransformer,
)
from posattn_jax.nn.grafts import begin_as
from tests.support.made_params import made_params
from tests.support.slow import slow

ZEROS, K, GRID, C = nn.initializers.zeros, (3, 3), (2, 3), 6
KERNEL = KernelEncoding(K, embedding_init=ZEROS)
OPEN = {"covariance": "precision", "initial_sigma": 1000.0}
GRAFTS = {
    "beta": {"terms": (Content(), RelativeBias(K))},
    "buckets": {"terms": (Content(), BucketedBias(num_buckets=4))},
    "dynamic": {"terms": (Content(), Positional(KERNEL))},
    "dynamic, of keys": {"terms": (Content(), KeyPositional(KERNEL))},
    "a vector an offset": {"terms": (Content(), Positional(LearnedEncoding(embedding_init=ZEROS)))},
    "a vector a head": {"terms": (Content(), ContentBias(bias_init=ZEROS))},
    "span": {"span": GaussianSpan(**OPEN)},
    "span, added": {"span": GaussianSpan(mode="log_add", per_head=True, **OPEN)},
    "depthwise": {"values": PlusDepthwise(DepthwiseConvolution(K, kernel_init=ZEROS))},
    "relative values": {"values": PlusRelative(KERNEL)},
    "Translution": {"values": Translution()},
    "Translution of a rank": {"values": LowRankTranslution(rank=2, kernel_init=ZEROS)},
    "Translution of keys": {"terms": (RelativeContent(relative_query=False),)},
    "Translution of keys, of a rank": {
        "terms": (Content(), RelativeContent(relative_query=False, rank=3, kernel_init=ZEROS))
    },
    "two at once": {"terms": (Content(), RelativeBias(K)), "values": Translution()},
}


def begun(model, other, inputs, *options, given=None, **fields):
    """What a model begins with, and the parameters of the other, made here where they are not given."""
    init = lambda module: module.init(jax.random.key(0), inputs, *options, **fields)["params"]
    given = given or made_params(lambda: init(other))
    return begin_as(model, jax.jit(lambda: init(model))(), other, given), given


def layer(**fields):
    return PositionalSelfAttention(2, **{"projections": LinearProjections()} | fields)


INPUTS = jnp.asarray(np.random.default_rng(1).normal(size=(2, 7, C)), jnp.float32)
COTANGENT = np.random.default_rng(2).normal(size=INPUTS.shape).astype(np.float32)
MASKED = {"num_class_tokens": 1, "key_mask": jnp.asarray(np.arange(7) < np.array([[7], [5]]))}


@pytest.fixture(scope="module")
def plain():
    """The layer that the others begin as, its parameters, and what it tells."""
    given = made_params(lambda: layer().init(jax.random.key(0), INPUTS, GRID, num_class_tokens=1)["params"])
    return layer(), given, jax.jit(lambda: layer().apply({"params": given}, INPUTS, GRID, **MASKED))()


ALIKE = ("buckets", "dynamic, of keys", "a vector a head", "span, added", "Translution of a rank", "two at once")
ALIKE += ("Translution of keys, of a rank",)


@pytest.mark.parametrize("name", [slow(name) if name in ALIKE else name for name in GRAFTS])
def test_a_layer_tells_the_same_and_its_new_parts_learn(plain, name):
    """With a class token, a bias of queries, keys and values, and masked tokens."""
    model, (other, given, expected) = layer(**GRAFTS[name]), plain
    found, _ = begun(model, other, INPUTS, GRID, given=given, num_class_tokens=1)

    def told(params):
        outputs = model.apply({"params": params}, INPUTS, GRID, **MASKED)
        return jnp.sum(COTANGENT * outputs), outputs

    gradients, outputs = jax.jit(jax.grad(told, has_aux=True))(found.params)
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-5)
    own = [path for path in found.made | found.added if path[0].split("_")[0] in GRAFTS[name]]
    new = [np.abs(flatten_dict(gradients)[path]).max() for path in own]
    assert new and max(new) > 1e-4


@pytest.mark.parametrize("use_bias", [False, True])
def test_relative_queries(use_bias):
    """The bias of queries has no place in them."""
    inputs, projections = jax.random.normal(jax.random.key(1), (2, 6, C)), LinearProjections(use_bias=use_bias)
    model, other = layer(terms=(RelativeContent(),), projections=projections), layer(projections=projections)
    found, given = begun(model, other, inputs, GRID)
    here, there = (
        jax.jit(lambda module=module, params=params: module.apply({"params": params}, inputs, GRID))()
        for module, params in ((model, found.params), (other, given))
    )
    assert np.allclose(here, there, atol=1e-5) != use_bias


def test_rotary_places_have_no_neutral_value():
    """Nothing is trained that could begin so."""
    inputs = jax.random.normal(jax.random.key(1), (2, 6, 8))
    model, other = (PositionalSelfAttention(2, terms=terms) for terms in ((RotaryContent(),), (Content(),)))
    found, given = begun(model, other, inputs, GRID)
    assert not found.added | found.made | found.left_out
    here, there = (jax.jit(lambda each=each: each.apply({"params": given}, inputs, GRID))() for each in (model, other))
    assert np.abs(here - there).max() > 1e-3


def test_a_layer_of_other_heads_begins_afresh():
    model, other = layer(values=Translution()), PositionalSelfAttention(3, projections=LinearProjections())
    found, _ = begun(model, other, INPUTS, GRID, num_class_tokens=1)
    assert not found.made and ("projections", "kernel") in found.added
    model.apply({"params": found.params}, INPUTS, GRID, num_class_tokens=1)


@pytest.mark.slow
@pytest.mark.parametrize("scan_layers", [slow(False), True])
def test_a_model_tells_the_same(scan_layers):
    """Also where the blocks are one loop, whose parameters are stacked."""

    def model(fields):
        blocks = tuple(EncoderBlock(layer(**fields()), 5, norm="pre") for _ in range(2))
        return VisionTransformer(3, C, blocks, (1, 1), scan_layers=scan_layers)

    inputs = jax.random.normal(jax.random.key(1), (2, 6, 1))
    grown = model(lambda: {"values": Translution(), "terms": (Content(), RelativeBias(K))})
    other = model(dict)
    found, given = begun(grown, other, inputs, GRID)
    here, there = (
        jax.jit(lambda module=module, params=params: module.apply({"params": params}, inputs, GRID))()
        for module, params in ((grown, found.params), (other, given))
    )
    np.testing.assert_allclose(here, there, rtol=0, atol=1e-5)
    blocks = ("blocks_0",) if scan_layers else ("blocks_0", "blocks_1")
    assert found.added == {(block, "attention", "terms_1", "beta") for block in blocks}
    assert not found.left_out
    tables = {(block, "attention", "values", name) for block in blocks for name in ("matrices", "class_matrices")}
    assert begin_as(other, given, grown, found.params).left_out == found.added | tables


def test_matrices_that_heads_share_are_no_projection():
    model, other = layer(values=Translution(share_heads=True)), layer()
    found, _ = begun(model, other, jnp.ones((1, 6, C)), GRID)
    assert ("values", "matrices") in found.added and ("output", "bias") not in found.made
