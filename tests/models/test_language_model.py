"""The decoder alone: causal, tied, and step by step what it is at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax import (
    Content,
    EncoderBlock,
    GaussianSpan,
    LanguageModel,
    Positional,
    PositionalSelfAttention,
    RotaryContent,
    SinusoidalPositions,
    SirenEncoding,
    cache_length,
)
from posattn_jax.ops.span import half_span
from tests.support.made_params import made_params
from tests.support.slow import slow

TOKENS = jax.random.randint(jax.random.key(2), (2, 13), 0, 10)


def model_of(attention, **fields):
    blocks = tuple(EncoderBlock(attention.clone(), mlp_dim=16, norm="pre") for _ in range(2))
    return LanguageModel(vocabulary_size=10, width=8, blocks=blocks, **fields)


SPAN = PositionalSelfAttention(
    num_heads=2, terms=(Content(), Positional(SirenEncoding())), span=GaussianSpan(initial_sigma=0.15)
)
MODELS = {
    "span": model_of(SPAN),
    "absolute places": model_of(PositionalSelfAttention(num_heads=2), positions=SinusoidalPositions()),
    "rope": model_of(PositionalSelfAttention(num_heads=2, terms=(RotaryContent(),))),
}


@pytest.mark.parametrize("name", ["span", slow("rope"), slow("absolute places")])
def test_steps_give_the_logits_of_the_whole(name):
    model = MODELS[name]
    variables = made_params(lambda: model.init(jax.random.key(0), TOKENS))
    whole = jax.jit(lambda variables: model.apply(variables, TOKENS, return_intermediates=True))
    expected, intermediates = whole(variables)
    lengths = []
    for out in intermediates.values():
        half = half_span(out["sigma"], 0.1, (13,)).astype(int).tolist() if "sigma" in out else None
        lengths.append(cache_length((13,), half))
    assert lengths == ([5, 5] if name == "span" else [13, 13])
    caches = jax.jit(lambda: model.apply(variables, 2, lengths, method=LanguageModel.start))()
    step = jax.jit(lambda tokens, caches: model.apply(variables, tokens, caches, 13, method=LanguageModel.step))
    for place in range(13):
        logits, caches = step(TOKENS[:, place], caches)
        np.testing.assert_allclose(logits, expected[:, place], rtol=1e-5, atol=1e-5)


def test_no_logit_depends_on_what_comes_later():
    model = MODELS["span"]
    variables = made_params(lambda: model.init(jax.random.key(0), TOKENS))
    run = jax.jit(lambda tokens: model.apply(variables, tokens))
    before, after = run(TOKENS), run(TOKENS.at[:, 7].set((TOKENS[:, 7] + 1) % 10))
    np.testing.assert_array_equal(before[:, :7], after[:, :7])
    assert (before[:, 7] != after[:, 7]).all(-1).any()


def test_embeddings_are_scaled_and_shared_with_the_output():
    model = model_of(PositionalSelfAttention(num_heads=2))
    params = jax.jit(model.init)(jax.random.key(0), TOKENS)["params"]  # norms begin as the identity
    zero = jax.tree.map(jnp.zeros_like, {name: params[name] for name in ("blocks_0", "blocks_1")})
    params |= zero | {"bias": jnp.arange(10.0)}
    table = np.asarray(params["embedding"]["embedding"], np.float64)
    x = table[np.asarray(TOKENS)] * np.sqrt(8)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    expected = x @ table.T + np.arange(10)
    logits = jax.jit(lambda: model.apply({"params": params}, TOKENS))()
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_bfloat16_has_float32_logits():
    model = model_of(PositionalSelfAttention(num_heads=2, dtype=jnp.bfloat16), dtype=jnp.bfloat16)
    logits, variables = jax.jit(model.init_with_output)(jax.random.key(0), TOKENS)
    assert logits.dtype == jnp.float32 and {x.dtype for x in jax.tree.leaves(variables)} == {jnp.dtype("float32")}

    @jax.jit
    def first():
        caches = model.apply(variables, 2, (13, 13), method=LanguageModel.start)
        assert caches[0].key.dtype == jnp.bfloat16
        return model.apply(variables, TOKENS[:, 0], caches, 13, method=LanguageModel.step)

    step, _ = first()
    np.testing.assert_allclose(step, logits[:, 0], rtol=0.05, atol=0.05)
