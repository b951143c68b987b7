import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.models.classifier import Classifier
from posattn_jax.nn import layers
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.siren import SirenEncoding
from posattn_jax.nn.span import GaussianSpan
from posattn_jax.nn.terms import Content, ContentBias, Positional, PositionalBias
from tests.support.made_params import made_params
from tests.support.slow import slow


def make_block(mlp_dim=8):
    terms = (Content(), Positional(SirenEncoding()), ContentBias(), PositionalBias())
    return EncoderBlock(PositionalSelfAttention(2, terms=terms, span=GaussianSpan()), mlp_dim, dropout_rate=0.2)


MODEL = Classifier(num_classes=5, width=8, blocks=(make_block(), make_block()), dropout_rate=0.2)
X = jax.random.normal(jax.random.key(7), (3, 12, 3))


def init(model, **options):
    return jax.jit(lambda x: model.init(jax.random.key(0), x, (4, 3), **options))(X)


@pytest.fixture(scope="module")
def variables():
    return made_params(lambda: init(MODEL))


def apply(model, variables, x=X, grid_shape=(4, 3), **options):
    return jax.jit(lambda v, x: model.apply(v, x, grid_shape, return_intermediates=True, **options))(variables, x)


@pytest.fixture(scope="module")
def plain(variables):
    """Logits and intermediates."""
    return apply(MODEL, variables)


def stack_blocks(variables):
    """Parameters of separate blocks as those of a scanned model."""
    params = dict(variables["params"])
    blocks = [params.pop(f"blocks_{i}") for i in range(2)]
    return {"params": params | {"blocks_0": jax.tree.map(lambda *arrays: jnp.stack(arrays), *blocks)}}


@pytest.mark.slow
def test_remat_and_scan_change_nothing(variables, plain):
    logits, intermediates = plain
    remat = dataclasses.replace(MODEL, remat=True)
    scanned = dataclasses.replace(MODEL, scan_layers=True)
    both = dataclasses.replace(MODEL, scan_layers=True, remat=True)
    stacked = stack_blocks(variables)
    shapes = lambda tree: jax.tree.map(jnp.shape, tree)
    assert shapes(init(scanned)) == shapes(stacked)
    for model, its_variables in ((remat, variables), (scanned, stacked), (both, stacked)):
        other, other_intermediates = apply(model, its_variables)
        np.testing.assert_allclose(other, logits, atol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), other_intermediates, intermediates)
    gradient = lambda model: jax.jit(jax.grad(lambda v: model.apply(v, X, (4, 3)).sum()))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4),
        gradient(both)(stacked),
        stack_blocks(gradient(MODEL)(variables)),
    )


@pytest.mark.parametrize("remat", [False, slow(True)])
def test_scanned_blocks_drop_by_keys_of_their_own(monkeypatch, remat):
    keys = []

    def told(inputs, rng, rate):
        jax.debug.callback(lambda data: keys.append(tuple(data.tolist())), jax.random.key_data(rng))
        return inputs

    model, rngs = dataclasses.replace(MODEL, scan_layers=True, remat=remat), {"dropout": jax.random.key(3)}
    params = init(model)
    monkeypatch.setattr(layers, "dropout", told)
    jax.block_until_ready(apply(model, params, deterministic=False, rngs=rngs))
    jax.effects_barrier()
    assert len(keys) == len(set(keys)) == 2 + 2 * 3  # of inputs and head, and of two blocks


def test_scanned_blocks_must_be_alike():
    for blocks in ((make_block(), make_block(mlp_dim=9)), ()):
        model = dataclasses.replace(MODEL, blocks=blocks, scan_layers=True)
        with pytest.raises(Exception, match="all alike"):
            init(model)


@pytest.mark.parametrize("pooling", ["last", slow("mean"), "max"])
def test_pooling_ignores_padding(variables, pooling):
    """What lies behind the mask is neither attended nor read."""
    model = dataclasses.replace(MODEL, pooling=pooling)
    mask = jnp.ones((3, 12), bool).at[:, 9:].set(False)
    run = jax.jit(lambda x: model.apply(variables, x, (4, 3), key_mask=mask))
    logits, changed = run(X), run(X.at[:, 9:].set(100.0))
    np.testing.assert_allclose(changed, logits, atol=1e-5)
    moved = run(X.at[:, 8].set(100.0))
    assert not np.allclose(moved, logits, atol=1e-3)


def test_bad_pooling():
    with pytest.raises(Exception, match="pooling"):
        init(dataclasses.replace(MODEL, pooling="first"))


def test_made_on_the_way(plain):
    _, intermediates = plain
    assert list(intermediates) == ["block_0", "block_1"]
    assert intermediates["block_1"]["relative_encoding"].shape == (7, 5, 2, 4)
    assert intermediates["block_1"]["sigma"].shape == (2,)


def test_each_block_has_parameters_of_its_own():
    params = init(MODEL)["params"]
    first, second = (params[f"blocks_{i}"]["attention"]["terms_1"]["encoding"]["siren"] for i in (0, 1))
    assert not np.allclose(first["kernel_2"], second["kernel_2"])


def test_runs_on_a_larger_grid(variables, plain):
    larger = jax.random.normal(jax.random.key(1), (2, 30, 3))
    logits, intermediates = apply(MODEL, variables, larger, (6, 5), reference_shape=(4, 3))
    assert logits.shape == (2, 5) and np.isfinite(logits).all()
    _, small = plain
    encodings = [out["block_0"]["relative_encoding"] for out in (intermediates, small)]
    np.testing.assert_allclose(encodings[0][2:-2, 2:-2], encodings[1], atol=1e-5)


def test_bfloat16(variables, plain):
    model = dataclasses.replace(
        MODEL,
        dtype=jnp.bfloat16,
        blocks=tuple(
            dataclasses.replace(
                make_block(),
                dtype=jnp.bfloat16,
                attention=dataclasses.replace(make_block().attention, dtype=jnp.bfloat16),
            )
            for _ in range(2)
        ),
    )
    shapes = jax.eval_shape(lambda: init(model))
    assert {array.dtype for array in jax.tree.leaves(shapes)} == {jnp.dtype(jnp.float32)}
    logits, _ = apply(model, variables)
    exact, _ = plain
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(logits, exact, atol=0.1)
