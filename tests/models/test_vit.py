import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.models.vit import VisionTransformer, patchify
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.encodings import LearnedEncoding
from posattn_jax.nn.gating import exact_gelu
from posattn_jax.nn.relative_content import RelativeContent
from posattn_jax.nn.siren import SirenEncoding
from posattn_jax.nn.span import GaussianSpan
from posattn_jax.nn.terms import Content, ContentBias, Positional, PositionalBias
from posattn_jax.nn.translution import GeneralTranslution, Translution
from tests.support.made_params import made_params
from tests.support.slow import slow

GRID, PATCH = (4, 6), (2, 3)
X = jax.random.normal(jax.random.key(7), (3, 24, 2))


def make_block(**fields):
    return EncoderBlock(PositionalSelfAttention(2, **fields), 8, norm="pre", activation=exact_gelu)


def make_model(block=None, **fields):
    block = block or make_block
    return VisionTransformer(5, width=8, blocks=(block(), block()), **{"patch_shape": PATCH, **fields})


def init(model, x=X, grid_shape=GRID, **options):
    return made_params(lambda: model.init(jax.random.key(0), x, grid_shape, **options))


def apply(model, variables, x=X, grid_shape=GRID, **options):
    arrays = {name: options.pop(name) for name in ("positions", "key_mask") if name in options}
    run = jax.jit(lambda variables, x, arrays: model.apply(variables, x, grid_shape, **arrays, **options))
    return run(variables, x, arrays)


@pytest.mark.parametrize("sizes, patch", [((6,), (3,)), ((4, 6), (2, 3)), ((2, 4, 3), (1, 2, 3))], ids=str)
def test_patches(sizes, patch):
    """Patch by patch, position by position."""
    x = np.random.default_rng(0).normal(size=(2, *sizes, 3)).astype(np.float32)
    patches = patchify(jnp.asarray(x.reshape(2, -1, 3)), sizes, patch)
    counts = [size // p for size, p in zip(sizes, patch, strict=True)]
    assert patches.shape == (2, math.prod(counts), math.prod(patch) * 3)
    for i, corner in enumerate(np.ndindex(*counts)):
        box = tuple(slice(c * p, (c + 1) * p) for c, p in zip(corner, patch, strict=True))
        np.testing.assert_array_equal(patches[:, i], x[(slice(None), *box)].reshape(2, -1))


@pytest.mark.parametrize("pooling", ["class", slow("mean"), slow("max")])
def test_without_positions_patches_are_a_bag(pooling):
    """Their order is nothing to content alone; absolute positions tell it."""
    x = X.reshape(3, 2, 2, 2, 3, 2)
    moved = x[:, ::-1, :, ::-1].reshape(3, 24, 2)
    for absolute in (False, True):
        model = make_model(pooling=pooling, absolute_positions=absolute)
        variables = init(model)
        same = np.allclose(apply(model, variables), apply(model, variables, moved), atol=1e-5)
        assert same == (not absolute)
        assert ("class_token" in variables["params"]) == (pooling == "class")


def test_depth_one_read_from_a_class_token_hides_displacements_from_translution():
    """It meets every patch through one matrix: SPEC's discrepancy. The mean does not."""
    x = X.reshape(3, 2, 2, 2, 3, 2)
    moved = x[:, ::-1, :, ::-1].reshape(3, 24, 2)
    for pooling, hidden in (("class", True), ("mean", False)):
        block = make_block(values=Translution())
        model = VisionTransformer(5, 8, (block,), PATCH, pooling=pooling, absolute_positions=False)
        variables = init(model)
        assert np.allclose(apply(model, variables), apply(model, variables, moved), atol=1e-5) == hidden


MIXERS = {
    "siren-span": lambda: make_block(
        terms=(Content(), Positional(SirenEncoding()), ContentBias(), PositionalBias()), span=GaussianSpan()
    ),
    "learned": lambda: make_block(terms=(Content(), Positional(LearnedEncoding()))),
    "translution": lambda: make_block(values=Translution(), terms=(RelativeContent(),)),
    "general-span": lambda: make_block(values=GeneralTranslution(), span=GaussianSpan(covariance="full")),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "mixer, pooling",
    [
        ("siren-span", "mean"),
        slow("translution", "class"),
        slow("siren-span", "class"),
        slow("learned", "class"),
        slow("learned", "mean"),
        slow("translution", "mean"),
        slow("general-span", "class"),
        slow("general-span", "mean"),
    ],
)
def test_every_mixer_runs(mixer, pooling):
    """Every parameter has a gradient; but where the class token is read, what the last block knows of positions."""
    variables = init(model := make_model(MIXERS[mixer], pooling=pooling))
    gradients = jax.jit(jax.grad(lambda v: jnp.sum(apply(model, v) ** 2)))(variables)
    paths = [(jax.tree_util.keystr(path), g) for path, g in jax.tree_util.tree_leaves_with_path(gradients)]
    silent = [path for path, gradient in paths if not gradient.any()]
    positional = ("terms", "values", "span") if pooling == "class" else ()
    assert all("blocks_1" in path and any(part in path for part in positional) for path in silent), silent


@pytest.mark.slow
def test_remat_and_scan_change_nothing():
    model = make_model(MIXERS["general-span"])
    scanned = dataclasses.replace(model, scan_layers=True, remat=True)
    variables = init(model)
    params = dict(variables["params"])
    blocks = [params.pop(f"blocks_{i}") for i in range(2)]
    stacked = {"params": params | {"blocks_0": jax.tree.map(lambda *arrays: jnp.stack(arrays), *blocks)}}
    np.testing.assert_allclose(jax.jit(lambda v: apply(scanned, v))(stacked), apply(model, variables), atol=1e-4)


@pytest.mark.slow
def test_without_a_head_and_without_norms_of_patches():
    """The head is a linear map of what is returned without it; patches are embedded as they are."""
    model = make_model(patch_norms=False)
    variables = init(model)
    assert not {"patch_norm", "embed_norm"} & variables["params"].keys()
    head = variables["params"]["head"]
    features = np.asarray(apply(dataclasses.replace(model, num_classes=0), variables))
    np.testing.assert_allclose(features @ head["kernel"] + head["bias"], apply(model, variables), atol=1e-5)
    embed = variables["params"]["embed"]
    patches = np.asarray(jax.jit(lambda: patchify(X, GRID, PATCH))()) @ embed["kernel"] + embed["bias"]
    tokens = np.concatenate([np.broadcast_to(variables["params"]["class_token"], (3, 1, 8)), patches], 1)

    @jax.jit
    def seen_by_the_first_block(variables):
        seen = []

        def look(following, args, kwargs, context):
            if isinstance(context.module, EncoderBlock) and context.method_name == "__call__":
                seen.append(args[0])
            return following(*args, **kwargs)

        with nn.intercept_methods(look):
            model.apply(variables, X, GRID)
        return seen[0]

    expected = tokens + variables["params"]["position_embedding"]
    np.testing.assert_allclose(seen_by_the_first_block(variables), expected, atol=1e-5)


def test_tokens_are_dropped():
    model = make_model(dropout_rate=0.5)
    variables = init(model)
    dropped = apply(model, variables, deterministic=False, rngs={"dropout": jax.random.key(0)})
    assert np.abs(dropped - apply(model, variables)).max() > 0.01
    with pytest.raises(ValueError, match="dropout_rate=1.0"):
        make_model(dropout_rate=1.0)


@pytest.mark.slow
def test_masked_points_are_ignored():
    model = make_model(lambda: make_block(values=GeneralTranslution()), patch_shape=(1,), absolute_positions=False)
    points = jax.random.uniform(jax.random.key(1), (3, 24, 2))
    mask = jnp.arange(24) < jnp.array([[24], [7], [1]])
    variables = init(model, X, (24,), positions=points, key_mask=mask)
    changed = jnp.where(mask[..., None], X, 5.0), jnp.where(mask[..., None], points, 0.1)
    for pooling in ("class", "mean", "max"):
        pooled = dataclasses.replace(model, pooling=pooling)
        run = jax.jit(lambda x, p, own=pooled: own.apply(variables, x, (24,), positions=p, key_mask=mask))
        np.testing.assert_allclose(run(*changed), run(X, points), atol=1e-5)


@pytest.mark.parametrize(
    "fields, options, message",
    [
        ({"patch_shape": (2, 4)}, {}, r"patch_shape=\(2, 4\) .*\(4, 6\)"),
        ({"patch_shape": (2,)}, {}, r"patch_shape=\(2,\)"),
        ({}, {"key_mask": jnp.ones((3, 24), bool)}, "one position with key_mask"),
        ({}, {"reference_shape": (8, 6)}, "absolute_positions=True"),
    ],
)
def test_what_does_not_fit(fields, options, message):
    with pytest.raises(ValueError, match=message):
        init(make_model(**fields), **options)


def test_a_pooling_that_there_is_not(unchecked):
    with pytest.raises(ValueError, match='pooling="last": .*"mean"'):
        init(make_model(pooling="last"))
