"""ConvBERT's heads against loops, and next to those that attend."""

import itertools
import math

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.span_convolution import SpanConvolution
from posattn_jax.nn.tokens import Tokens
from tests import oracle
from tests.nn.test_convolutions import B, C, D, H, apply
from tests.ops.test_depthwise import after
from tests.support.made_params import made_params
from tests.support.slow import slow


def span_convolution_loops(x, where, shape, kernel_at, mask, is_causal):
    """ConvBERT number by number: c[s, o] of every position, head and offset, then each query's softmax."""
    n, d, p = len(where), D, len(shape)
    offsets = oracle.positions(shape)  # entry of an offset: o + half
    middle = [size // 2 for size in shape]

    def linear(name, vector):
        kernel, bias = x[f"{name}/kernel"], x[f"{name}/bias"]
        return [sum(v * kernel[i, j] for i, v in enumerate(vector)) + bias[j] for j in range(kernel.shape[1])]

    outputs = np.zeros((*x["query"].shape[:4], x["query"].shape[-1]), complex)
    for b in range(len(x["inputs"])):
        scores, values = [], []
        for t in range(n):
            span = []
            for f in range(C):
                total = x["depthwise/convolution/bias"][f]
                for s in range(n):
                    if after(where[t], where[s], is_causal):
                        continue
                    entry = [where[s][i] - where[t][i] + middle[i] for i in range(p)]
                    if mask[b, s] and tuple(entry) in offsets:
                        total = total + x["depthwise/convolution/kernel"][(*entry, 0, f)] * x["inputs"][b, s, f]
                span.append(total)
            query = x["query"][b, t].reshape(H * d, -1)
            product = [q * k for q, k in zip(query, linear("pointwise", span), strict=True)]
            scores.append(np.array(linear("kernel", product)).reshape(H, len(offsets), -1))
            values.append(np.array(linear("value", x["inputs"][b, t])).reshape(H, d, -1))
        for t, h in itertools.product(range(n), range(H)):
            found = {}
            for entry, offset in enumerate(offsets):
                place = tuple(where[t][i] + offset[i] - middle[i] for i in range(p))
                if after(where[t], place, is_causal):
                    continue
                s = where.index(place) if place in where else None
                if kernel_at == "query":
                    found[entry] = (np.exp(scores[t][h, entry]), s)
                elif s is not None and mask[b, s]:
                    found[entry] = (np.exp(scores[s][h, entry]), s)
            total = sum(e for e, _ in found.values())
            for e, s in found.values():
                if s is not None and mask[b, s]:
                    outputs[b, t, h] += e / total * values[s][h]
    return outputs


@pytest.mark.parametrize(
    "grid_shape, shape, kernel_at, is_causal",
    [
        ((5,), (3,), "query", False),
        ((5,), (3,), "key", False),
        ((2, 3), (3, 1), "key", False),
        ((2,), (7,), "key", False),
        ((2, 3), (3, 3), "query", True),
        slow((2, 3), (3, 3), "key", (False, True)),
        slow((5,), (3,), "query", True),
        slow((2, 3), (3, 3), "query", False),
        slow((1, 2, 2), (3, 3, 3), "query", False),
        slow((1, 2, 2), (3, 3, 3), "key", False),
    ],
    ids=str,
)
def test_span_convolution_is_the_loops(float64, grid_shape, shape, kernel_at, is_causal):
    """Values, and gradients of the inputs, the queries and every parameter; padding left out."""
    n, rng = math.prod(grid_shape), np.random.default_rng(0)
    mask = np.arange(n) < np.array([n, n - 1])[:, None]
    arrays = {"inputs": jnp.asarray(rng.normal(size=(B, n, C))), "query": jnp.asarray(rng.normal(size=(B, n, H, D)))}
    convolution = SpanConvolution(shape, kernel_at, param_dtype=jnp.float64)

    def apply(params, inputs, query):
        tokens = Tokens(inputs, grid_shape, H, D, key_mask=jnp.asarray(mask), is_causal=is_causal)
        return convolution.apply({"params": params}, query, tokens)

    tokens = Tokens(arrays["inputs"], grid_shape, H, D)
    params = made_params(lambda: convolution.init(jax.random.key(0), arrays["query"], tokens)["params"], 1.0)
    by_path = {"/".join(path): np.asarray(leaf) for path, leaf in flax.traverse_util.flatten_dict(params).items()}
    mixed, where = rng.normal(size=(B, n, H, D)), oracle.positions(grid_shape)
    expected, expected_gradients = oracle.value_and_gradients(
        lambda x: mixed[..., None] * span_convolution_loops(x, where, shape, kernel_at, mask, is_causal),
        arrays | by_path,
    )

    def total(*given):
        outputs = mixed * apply(*given)
        return outputs.sum(), outputs

    run = jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))
    (gradients, of_inputs, of_query), outputs = run(params, arrays["inputs"], arrays["query"])
    np.testing.assert_allclose(outputs, expected, rtol=1e-9, atol=1e-10)
    flat = {"/".join(path): leaf for path, leaf in flax.traverse_util.flatten_dict(gradients).items()}
    for name, gradient in (flat | {"inputs": of_inputs, "query": of_query}).items():
        np.testing.assert_allclose(gradient, expected_gradients[name], rtol=1e-8, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("kernel_at", ["query", slow("key")])
def test_weights_of_a_span_convolution_are_dropped(kernel_at):
    """Dropped outputs differ from draw to draw, and their mean is what it is without."""
    layer = PositionalSelfAttention(H, head_dim=D, extra_heads=SpanConvolution((3,), kernel_at, dropout_rate=0.5))
    inputs, variables, (outputs, _) = apply(layer, (5,))
    run = jax.jit(
        jax.vmap(lambda key: layer.apply(variables, inputs, (5,), deterministic=False, rngs={"dropout": key}))
    )
    dropped = run(jax.random.split(jax.random.key(2), 2000))
    error = dropped.std(0) / math.sqrt(2000)
    assert (error > 0).all() and (abs(dropped.mean(0) - outputs) < 5 * error).all()


def test_heads_beside_those_that_attend(float64):
    """The heads that attend are as they are alone; those of the convolution are made of the same queries."""
    extra_heads = SpanConvolution((3,), "key", param_dtype=jnp.float64)
    layer = PositionalSelfAttention(H, head_dim=D, extra_heads=extra_heads, param_dtype=jnp.float64)
    mask = jnp.arange(5) < jnp.array([5, 4])[:, None]
    inputs, variables, (outputs, _) = apply(layer, (5,), key_mask=mask)
    params = variables["params"]
    projections = params["projections"]
    plain = PositionalSelfAttention(H, head_dim=D, use_output=False, param_dtype=jnp.float64)

    @jax.jit
    def by_hand():
        query = jnp.einsum("btc,chd->bthd", inputs, projections["kernel"][:, 0]) + projections["bias"][0]
        own = extra_heads.apply({"params": params["extra_heads"]}, query, Tokens(inputs, (5,), H, D, key_mask=mask))
        attended = plain.apply({"params": {"projections": projections}}, inputs, (5,), key_mask=mask)
        joined = jnp.concatenate([attended.reshape(B, 5, H, D), own], 2)
        return jnp.einsum("bthd,hdc->btc", joined, params["output"]["kernel"]) + params["output"]["bias"]

    np.testing.assert_allclose(outputs, by_hand(), rtol=1e-9, atol=1e-10)
