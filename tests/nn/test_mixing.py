"""The mixers of Schmidt 2023: against loops written from its equations, and what they do not see."""

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from posattn_jax.nn import places as at
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.energies import DotProducts, FourierWeights, GaussianWeights, OffsetTable, PairTable
from posattn_jax.nn.gating import GeluGate, Glu, NormalizedGelu, latent_weights
from posattn_jax.nn.mixed_energies import MixedEnergies
from posattn_jax.nn.mixing import TokenMixing
from posattn_jax.nn.places import Memory
from posattn_jax.nn.positions import LearnedPositions, SinusoidalPositions
from posattn_jax.nn.precompute import precompute
from tests import oracle
from tests.support.made_params import made_params
from tests.support.slow import slow

B, H, C, K = 2, 2, 4, 1
D = C // H
DTYPE = {"param_dtype": jnp.float64}

ENERGIES = {
    "attention": lambda shape, keys: DotProducts(**DTYPE),
    "shaw": lambda shape, keys: DotProducts(keys=("content", "relative"), context=K, **DTYPE),
    "relative": lambda shape, keys: DotProducts(keys=("relative",), context=K, **DTYPE),
    "aposnet": lambda shape, keys: DotProducts("position", ("position",), **DTYPE),
    "rposnet": lambda shape, keys: DotProducts("position", ("relative",), K, LearnedPositions(shape, **DTYPE), **DTYPE),
    "lightconv": lambda shape, keys: OffsetTable(K, **DTYPE),
    "global": lambda shape, keys: OffsetTable(K, "clip", **DTYPE),
    "linear": lambda shape, keys: PairTable(shape, keys, **DTYPE),
    "gaussian": lambda shape, keys: GaussianWeights((-1, 0)),
    "fourier": lambda shape, keys: FourierWeights(),
    "mixed": lambda shape, keys: MixedEnergies(
        (ENERGIES["attention"](shape, keys), ENERGIES["rposnet"](shape, keys)), **DTYPE
    ),
}
POSITION_ONLY = ("aposnet", "rposnet", "lightconv", "global", "linear", "gaussian", "fourier")


def sinusoids(place):
    """Of one place, C features shared out over its dimensions."""
    each = C // len(place)
    return np.array(
        [(math.sin if i % 2 == 0 else math.cos)(x / 10000 ** (2 * (i // 2) / each)) for x in place for i in range(each)]
    )


def row(place, shape):
    return int(np.ravel_multi_index(tuple(place), shape))


def energy(kind, given, b, h, t, s, shapes, ratio, length):
    """One energy, or weight, of the papers' formulas, of query place t and key place s; None: the pair is left out."""
    anchor = tuple(math.floor(ratio * x) for x in t)
    offset = [y - x for x, y in zip(anchor, s, strict=True)]
    clipped = [min(max(o, -K), K) + K for o in offset]
    entry = row(clipped, (2 * K + 1,) * len(t))

    def project(name, features):
        bias = given[f"energies/{name}/bias"][h]
        return [
            sum(features[c] * given[f"energies/{name}/kernel"][c, h, d] for c in range(C)) + bias[d] for d in range(D)
        ]

    def dot(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(D)

    y, x = given["queries"][b][row(t, shapes[0])], given["keys"][b][row(s, shapes[1])]
    table = given.get("energies/relative")
    match kind:
        case "attention":  # equation 1
            return dot(project("query", y), project("key", x))
        case "shaw":
            both = [k + r for k, r in zip(project("key", x), table[entry, h], strict=True)]
            return dot(project("query", y), both)
        case "relative":
            return dot(project("query", y), table[entry, h])
        case "aposnet":  # equation 8
            return dot(project("query", sinusoids(t)), project("key", sinusoids(s)))
        case "rposnet":  # equations 9 and 10
            learned = given["energies/positions/table"][row(t, shapes[0])]
            return dot(project("query", learned), table[entry, h])
        case "mixed":
            found = []
            for i, part in enumerate(("attention", "rposnet")):
                own = {name.replace(f"energies/parts_{i}/", "energies/"): x for name, x in given.items()}
                found.append(energy(part, own, b, h, t, s, shapes, ratio, length))
            shares = np.exp(given["energies/mixture"][h])
            return sum(share * each for share, each in zip(shares, found, strict=True)) / sum(shares)
        case "lightconv" | "global":  # equation 14
            outside = kind == "lightconv" and any(abs(o) > K for o in offset)
            return None if outside else given["energies/table"][h, 0, entry]
        case "linear":  # equation 13
            return given["energies/table"][h, row(t, shapes[0]), row(s, shapes[1])]
        case "gaussian":  # equation 12
            combinations = [(-1, 0)] if len(t) == 1 else [(i, j) for i in (-1, 0) for j in (-1, 0)]
            centre = [combinations[0][h]] if len(t) == 1 else combinations[h]
            squares = sum((o - c) ** 2 for o, c in zip(offset, centre, strict=True))
            return (2 * math.pi) ** (-len(t) / 2) * math.exp(-squares / 2)
        case "fourier":  # equation 11
            turns = sum(i * j / m for i, j, m in zip(t, s, length, strict=True))
            return math.cos(2 * math.pi * turns) / math.sqrt(math.prod(length))


def gelu(x):
    """x Phi(x), and its derivative along the imaginary step."""
    a, step = x.real, 1j * x.imag
    phi = 0.5 * (1 + special.erf(a / math.sqrt(2)))
    return a * phi + step * (phi + a * np.exp(-(a**2) / 2) / math.sqrt(2 * math.pi))


def mix(given, kind, gating, shapes, mask, is_causal, ratio):
    """Equations 2 to 4, 13 and 14 by loops: [b t c ...]."""
    queries, keys = (oracle.positions(shape) for shape in shapes)
    dtype = given["queries"].dtype
    outputs = np.zeros((B, len(queries), *given["queries"].shape[2:]), dtype)
    factor = 2 if gating == "glu" else 1
    for b in range(B):
        flat = np.zeros((len(keys), H, factor * D, given["queries"].shape[-1]), dtype)
        for s in range(len(keys)):
            for h in range(H):
                for d in range(factor * D):
                    kernel, bias = given["value/kernel"][:, h, d], given["value/bias"][h, d]
                    flat[s, h, d] = sum(given["keys"][b, s, c] * kernel[c] for c in range(C)) + bias
        if gating == "gelu":  # LN(gelu(v)) over all heads
            for s in range(len(keys)):
                z = gelu(flat[s].reshape(C, -1))
                mean = z.mean(0)
                z = (z - mean) / np.sqrt(((z - mean) ** 2).mean(0) + 1e-6)
                z = z * given["values/norm/scale"] + given["values/norm/bias"]
                flat[s] = z.reshape(H, D, -1)
        if gating == "glu":
            flat = flat[:, :, :D] / (1 + np.exp(-flat[:, :, D:]))
        for t, place in enumerate(queries):
            context = np.zeros((H, D, dtype.itemsize and given["queries"].shape[-1]), dtype)
            for h in range(H):
                kept = [s for s in range(len(keys)) if mask[b, s] and not (is_causal and keys[s] > place)]
                length = (int(mask[b].sum()),) if len(place) == 1 else shapes[1]
                pairs = [(s, energy(kind, given, b, h, place, keys[s], shapes, ratio, length)) for s in kept]
                pairs = [(s, e) for s, e in pairs if e is not None]
                if kind not in ("linear", "gaussian", "fourier"):
                    total = sum(np.exp(e) for _, e in pairs)
                    pairs = [(s, np.exp(e) / total) for s, e in pairs]
                for s, weight in pairs:
                    context[h] = context[h] + weight * flat[s, h]
            if gating == "gelu":
                for h in range(H):
                    for d in range(D):
                        linear = sum(given["queries"][b, t, c] * given["gate/linear/kernel"][c, h, d] for c in range(C))
                        context[h, d] = context[h, d] * gelu(linear + given["gate/linear/bias"][h, d])
            for c in range(C):
                outputs[b, t, c] = given["output/bias"][c] + sum(
                    context[h, d] * given["output/kernel"][h, d, c] for h in range(H) for d in range(D)
                )
    return outputs


def layer_of(kind, gating, shapes):
    values = {"gelu": NormalizedGelu(**DTYPE), "glu": Glu()}.get(gating)
    gate = GeluGate(**DTYPE) if gating == "gelu" else None
    return TokenMixing(H, energies=ENERGIES[kind](*shapes), values=values, gate=gate, **DTYPE)


def flat_of(tree):
    return {"/".join(key.key for key in path): x for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]}


ELSEWHERE = ("shaw", "gaussian", "lightconv", "rposnet")  # each is among the cases below
CASES = [
    *(
        slow(*case) if case[0] in ELSEWHERE else case
        for case in ((kind, "gelu", (3,), (3,), True, 1.0) for kind in ENERGIES if kind != "fourier")
    ),
    ("shaw", None, (3,), (4,), False, 1.5),
    slow("linear", None, (3,), (4,), False, 1.5),
    slow("relative", None, (2, 2), (2, 2), False, 1.0),
    ("gaussian", None, (2, 2), (2, 2), False, 1.0),
    slow("fourier", None, (2, 2), (2, 2), False, 1.0),
    slow("fourier", "gelu", (4,), (4,), False, 1.0),
    ("lightconv", "glu", (4,), (4,), True, 1.0),
    ("shaw", "gelu", (1,), (1,), False, 1.0),
    ("rposnet", "gelu", (5,), (2,), False, 0.4),
    slow("mixed", None, (3,), (4,), False, 1.5),
    *(slow(kind, None, (3,), (4,), False, 1.5) for kind in ("aposnet", "rposnet", "global", "gaussian")),
    *(slow(kind, None, (2, 2), (2, 2), False, 1.0) for kind in ("aposnet", "rposnet", "lightconv")),
]


@pytest.mark.parametrize("kind, gating, shape, keys, is_causal, ratio", CASES, ids=str)
def test_a_mixer_is_its_equation(float64, kind, gating, shape, keys, is_causal, ratio):
    """Values, and gradients of the inputs of both sides and of every parameter; with padding in 1-D."""
    layer, n, m = layer_of(kind, gating, (shape, keys)), math.prod(shape), math.prod(keys)
    mask = np.ones((B, m), bool)
    if len(keys) == 1 and m > 2:
        mask[1, -1] = False
    places = dataclasses.replace(
        at.between(n, m) if len(shape) == 1 else at.of_grid(shape),
        key_mask=jnp.asarray(mask) if len(shape) == 1 else None,
        is_causal=is_causal,
        length_ratio=ratio,
    )
    rng = np.random.default_rng(0)
    queries, memory = (jnp.asarray(rng.normal(size=(B, size, C))) for size in (n, m))
    init = lambda: layer.init(jax.random.key(0), queries, Memory(memory), places, method="mix")["params"]
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), jax.eval_shape(init))

    def total(params, queries, memory):
        outputs, _ = layer.apply({"params": params}, queries, Memory(memory), places, method="mix")
        return outputs.sum(), outputs

    (_, outputs), gradients = jax.jit(jax.value_and_grad(total, (0, 1, 2), has_aux=True))(params, queries, memory)
    given = flat_of(params) | {"queries": queries, "keys": memory}
    expected, expected_gradients = oracle.value_and_gradients(
        lambda arrays: mix(arrays, kind, gating, (shape, keys), mask, is_causal, ratio),
        {name: np.asarray(array) for name, array in given.items()},
    )
    np.testing.assert_allclose(outputs, expected, rtol=1e-10, atol=1e-10)
    found = flat_of(gradients[0]) | {"queries": gradients[1], "keys": gradients[2]}
    for name, gradient in expected_gradients.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-9, atol=1e-9, err_msg=name)


def test_attention_is_flax_attention(float64):
    """`DotProducts()` alone is `MultiHeadDotProductAttention`, whose parameters have the same names and shapes."""
    x, y = jax.random.normal(jax.random.key(0), (2, B, 5, C))
    layer, theirs = TokenMixing(H, **DTYPE), nn.MultiHeadDotProductAttention(H, param_dtype=jnp.float64)
    params = made_params(lambda: theirs.init(jax.random.key(1), y, x)["params"])
    own = {
        "energies": {name: params[name] for name in ("query", "key")},
        "value": params["value"],
        "output": params["out"],
    }
    mix = jax.jit(lambda: layer.apply({"params": own}, y, Memory(x), at.between(5, 5), method="mix")[0])
    np.testing.assert_allclose(mix(), jax.jit(theirs.apply)({"params": params}, y, x), rtol=1e-12)


def approximate(x):
    return x * jax.nn.sigmoid(1.702 * x)


def test_what_a_gate_does_to_the_weights(float64):
    """Equation 18: with gelu(x) = x sigmoid(1.702 x), a gated average has weights alpha beta, and two terms of LN."""
    gate, values = GeluGate(approximate, **DTYPE), NormalizedGelu(approximate, **DTYPE)
    layer = TokenMixing(1, energies=DotProducts(**DTYPE), values=values, gate=gate, **DTYPE)
    x = jax.random.normal(jax.random.key(0), (1, 6, C))
    params = made_params(lambda: layer.init(jax.random.key(1), x, (6,))["params"], 1.0)
    outputs, intermediates = jax.jit(lambda: layer.apply({"params": params}, x, (6,), return_weights=True))()
    alpha = np.asarray(intermediates["weights"])[0, 0]

    def linear(name):
        own = params["gate"]["linear"] if name == "gate" else params[name]
        return np.asarray(x[0] @ own["kernel"][:, 0] + own["bias"][0])

    v, g = linear("value"), np.asarray(approximate(jnp.asarray(linear("gate"))))
    z = np.asarray(approximate(jnp.asarray(v)))
    scale, bias = (np.asarray(params["values"]["norm"][name]) for name in ("scale", "bias"))
    f1 = 1 / np.sqrt(z.var(-1) + 1e-6)
    f2 = z.mean(-1) * f1
    context = np.zeros((6, C))
    weights = latent_weights(jnp.asarray(g[None, :, None]), jnp.asarray(v[None, :, None]), values)
    for t in range(6):
        for s in range(6):
            beta = f1[s] * g[t] / (1 + np.exp(-1.702 * v[s]))  # equation 19
            np.testing.assert_allclose(weights[0, t, s, 0], beta, rtol=1e-9)
            context[t] += scale * alpha[t, s] * beta * v[s]
        context[t] += g[t] * (bias - scale * sum(alpha[t, s] * f2[s] for s in range(6)))
    expected = context @ np.asarray(params["output"]["kernel"])[0] + np.asarray(params["output"]["bias"])
    np.testing.assert_allclose(outputs[0], expected, atol=1e-6)


def test_latent_weights_of_the_exact_gelu_and_of_several_heads(float64):
    """beta = g Phi(v) / std(gelu(v)) over all heads, also where v = 0 and Phi = .5; LN's epsilon is in the variance."""
    rng, values = np.random.default_rng(0), NormalizedGelu(layer_norm_epsilon=0.25, **DTYPE)
    gate, value = rng.normal(size=(B, 5, H, D)), rng.normal(size=(B, 3, H, D))
    value[0, 1, 1, 0] = 0
    beta = latent_weights(jnp.asarray(gate), jnp.asarray(value), values)
    share = special.ndtr(value)
    std = np.sqrt((value * share).reshape(B, 3, -1).var(-1) + 0.25)
    expected = gate[:, :, None] * (share / std[..., None, None])[:, None]
    assert beta.shape == (B, 5, 3, H, D)
    np.testing.assert_allclose(beta, expected, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("kind", POSITION_ONLY)
def test_weights_of_positions_alone_know_no_token(kind):
    layer = TokenMixing(H, energies=ENERGIES[kind]((5,), (5,)))
    x, other = jax.random.normal(jax.random.key(0), (2, B, 5, C))
    params = made_params(lambda: layer.init(jax.random.key(1), x, (5,)))
    weights_of = jax.jit(lambda x: layer.apply(params, x, (5,), return_weights=True)[1]["weights"])
    np.testing.assert_array_equal(weights_of(x), weights_of(other))
    assert len(weights_of(x)) == 1, "made once a batch"


@pytest.mark.parametrize("kind", ["aposnet", "rposnet"])
def test_precomputed_energies(float64, kind):
    """The same outputs within 1e-6, the parameters given untouched, and tables of the paper's sizes."""
    n = 7
    layer = layer_of(kind, "gelu", ((n,), (n,)))
    x = jax.random.normal(jax.random.key(0), (B, n, C))
    params = made_params(lambda: layer.init(jax.random.key(1), x, (n,))["params"])
    before = jax.tree.map(np.array, params)
    places = jnp.arange(n)[:, None]
    if kind == "aposnet":
        features = jax.jit(lambda: SinusoidalPositions().apply({}, places, C)[None])()
    else:
        features = params["energies"]["positions"]["table"][None]
    fixed, tables = precompute(layer, params, features)
    outputs, expected = jax.jit(
        lambda: (fixed.apply({"params": tables}, x, (n,)), layer.apply({"params": params}, x, (n,)))
    )()
    np.testing.assert_allclose(outputs, expected, atol=1e-12)
    jax.tree.map(np.testing.assert_array_equal, params, before)
    assert tables["energies"]["table"].shape == ((H, n, n) if kind == "aposnet" else (H, n, 2 * K + 1))
    plain = TokenMixing(H, energies=ENERGIES["attention"]((n,), (n,)))
    assert precompute(plain, params, features)[0] is plain, "what knows content has nothing to precompute"


@pytest.mark.parametrize("kind", ["shaw", "relative", "lightconv", "gaussian"])
def test_translating_a_sequence_translates_relative_mixers(float64, kind):
    """Shaw, LightConv and Gaussian weights depend on offsets alone: what stands elsewhere is mixed likewise."""
    layer = layer_of(kind, None, ((8,), (8,)))
    x = jax.random.normal(jax.random.key(0), (B, 8, C))
    mask = np.array([[i < 5 for i in range(8)]] * B)
    params = made_params(lambda: layer.init(jax.random.key(1), x, (8,)))
    run = jax.jit(lambda x, mask: layer.apply(params, x, (8,), key_mask=mask))
    here, there = run(x, jnp.asarray(mask)), run(jnp.roll(x, 3, 1), jnp.asarray(np.roll(mask, 3, 1)))
    np.testing.assert_allclose(there[:, 3:], here[:, :5], atol=1e-12)


OF_WEIGHTS, OF_SUMS = ("attention", "rposnet", "lightconv", "linear", "fourier"), ("attention", "gaussian")
DROPPED = [*((kind, "dropout_rate") for kind in OF_WEIGHTS), *((kind, "sum_dropout_rate") for kind in OF_SUMS)]
FURTHER = [(kind, dropped) for kind in ENERGIES for dropped in ("dropout_rate", "sum_dropout_rate")]


@pytest.mark.parametrize("kind, dropped", [*DROPPED, *(slow(*case) for case in FURTHER if case not in DROPPED)])
def test_what_is_dropped(float64, kind, dropped):
    """Weights, or the sums over keys: 0 or twice themselves, drawn for every example where padding is masked.

    Two neighbours share a feature, and maps are the identity: a sum is of two weights, of which one may drop alone.
    """
    n = 8
    layer = TokenMixing(1, energies=ENERGIES[kind]((n,), (n,)), **{dropped: 0.5}, **DTYPE)
    scales = np.tile([1.0, 1.5], C)
    x = jnp.asarray(np.tile(np.repeat(np.eye(C), 2, 0) * scales[:, None], (B, 1, 1)))
    places = at.between(n, n, key_mask=jnp.ones((B, n), bool))
    params = made_params(lambda: layer.init(jax.random.key(0), x, Memory(x), places, method="mix")["params"])
    for name, shape in (("value", (C, 1, C)), ("output", (1, C, C))):
        params[name] = {"kernel": jnp.eye(C).reshape(shape), "bias": jnp.zeros_like(params[name]["bias"])}

    def run(**options):
        mix = jax.jit(lambda params: layer.apply({"params": params}, x, Memory(x), places, method="mix", **options))
        sums, weights = mix(params)
        return np.asarray(sums), np.broadcast_to(weights[:, 0], (B, n, n)) * scales

    plain, weights = run()
    sums, _ = run(deterministic=False, rngs={"dropout": jax.random.key(1)})
    first, second = weights[..., ::2], weights[..., 1::2]
    np.testing.assert_allclose(plain, first + second, atol=1e-12)
    possible = [0 * plain, 2 * plain] + ([2 * first, 2 * second] if dropped == "dropout_rate" else [])
    distances = np.abs(sums - np.stack(possible))
    assert distances.min(0).max() < 1e-12
    told = np.minimum(np.abs(first), np.abs(second)) > 1e-6
    assert set(distances.argmin(0)[told]) == set(range(len(possible)))
    assert not np.array_equal(sums[0] == 0, sums[1] == 0)


def test_a_mixer_in_a_block_of_images():
    block = EncoderBlock(layer_of("rposnet", "gelu", ((3, 3), (3, 3))), 8)
    x = jax.random.normal(jax.random.key(0), (B, 9, C))
    (outputs, intermediates), _ = jax.jit(
        lambda key: block.init_with_output(key, x, (3, 3), return_intermediates=True)
    )(jax.random.key(1))
    assert outputs.shape == x.shape and intermediates == {}


@pytest.mark.parametrize(
    "change, options, message",
    [
        (lambda: {"num_heads": 3}, {}, "num_heads=3 does not divide the width 4"),
        (dict, {"num_class_tokens": 1}, "num_class_tokens, positions: .*TokenMixing"),
        (dict, {"key_mask": jnp.zeros((B, 5))}, "key_mask has dtype float32"),
        (dict, {"reference_shape": (4,)}, r"reference_shape=\(4,\): .*TokenMixing"),
        (lambda: {"energies": PairTable((4,), (4,))}, {}, r"grid of \(5,\): expected at most \(4,\)"),
        (
            lambda: {"energies": FourierWeights()},
            {"is_causal": True},
            "FourierWeights: .*is_causal=False",
        ),
        (lambda: {"energies": OffsetTable(1, "other")}, {}, 'outside="other": .*"drop"'),
        (lambda: {"energies": DotProducts("contnet")}, {}, 'query="contnet": .*"content"'),
        (lambda: {"energies": DotProducts(keys=("key",))}, {}, "content, position, relative"),
        (lambda: {"energies": DotProducts(context=-1)}, {}, "context=-1: expected 0 or more"),
        (lambda: {"energies": GaussianWeights(sigma=0.0)}, {}, "sigma=0.0: expected more than 0"),
    ],
)
def test_what_does_not_fit_together(unchecked, change, options, message):
    layer = TokenMixing(**({"num_heads": H} | change()))
    with pytest.raises(ValueError, match=message):
        layer.init(jax.random.key(0), jnp.zeros((B, 5, C)), (5,), **options)


@pytest.mark.parametrize("parts", [(), (DotProducts(), PairTable((3,), (3,)))])
def test_energies_that_cannot_be_mixed_are_refused(parts):
    with pytest.raises(ValueError, match="one part or more"):
        TokenMixing(H, energies=MixedEnergies(parts)).init(jax.random.key(0), jnp.ones((1, 3, C)), (3,))


def test_a_mixture_is_one_part_where_its_share_is_one():
    """And a key outside of one part's kernel is left out."""
    words, share = jax.random.normal(jax.random.key(1), (B, 5, C)), jnp.array([[0.0, -1e9]] * H)
    layer = TokenMixing(H, energies=MixedEnergies((DotProducts(), OffsetTable(1, "clip"))))
    params = made_params(lambda: layer.init(jax.random.key(0), words, (5,))["params"])
    params["energies"]["mixture"] = share
    alone = params | {"energies": params["energies"]["parts_0"]}
    dropping = TokenMixing(H, energies=MixedEnergies((DotProducts(), OffsetTable(1))))

    @jax.jit
    def run(params, alone):
        expected = TokenMixing(H, energies=DotProducts()).apply({"params": alone}, words, (5,))
        _, intermediates = dropping.apply({"params": params}, words, (5,), return_weights=True)
        return layer.apply({"params": params}, words, (5,)), expected, intermediates["weights"]

    outputs, expected, weights = run(params, alone)
    np.testing.assert_allclose(outputs, expected, atol=1e-6)
    near = np.abs(np.subtract.outer(np.arange(5), np.arange(5))) <= 1
    np.testing.assert_array_equal(weights[0, 0] > 0, near)


class Hiding(nn.Module):
    """Energies that are low for some pairs, and otherwise 0."""

    normalize = True
    knows_content = False
    low: float = 0.0
    shown: jax.Array | None = None

    def __call__(self, inputs, memory, places, heads):
        return jnp.where(self.shown, 0.0, self.low)[None], None


@pytest.mark.parametrize("low", [-jnp.inf, slow(float(np.finfo(np.float64).min)), -1e9], ids=str)
@pytest.mark.parametrize("mixture", [0.0, -2000.0], ids=str)
def test_energies_that_hide(float64, low, mixture):
    """As a mask, whatever the share of the part that hides; a query that sees nothing has outputs of 0."""
    shown = np.random.default_rng(1).random((H, 5, 5)) < 0.6
    shown[:, 3] = False
    x = jax.random.normal(jax.random.key(1), (B, 5, C))

    def layer(low):
        parts = DotProducts(**DTYPE), Hiding(low, jnp.asarray(shown))
        return TokenMixing(num_heads=H, energies=MixedEnergies(parts, **DTYPE), **DTYPE)

    params = made_params(lambda: layer(0.0).init(jax.random.key(0), x, (5,)))
    params["params"]["output"]["bias"] = np.zeros(C)
    params["params"]["energies"]["mixture"] = np.tile([0.0, mixture], (H, 1))

    @jax.jit
    def run(params):
        total = lambda params: jnp.sin(layer(low).apply(params, x, (5,))).sum()
        results = (layer(low).apply(params, x, (5,), return_weights=True) for low in (low, 0.0))
        return *results, jax.grad(total)(params)

    (outputs, found), (_, others), gradients = run(params)
    expected = np.where(shown, others["weights"], 0)
    expected = expected / np.maximum(expected.sum(-1, keepdims=True), 1e-300)
    np.testing.assert_allclose(found["weights"], expected, rtol=1e-10, atol=1e-12)
    assert all(jnp.isfinite(gradient).all() for gradient in jax.tree.leaves(gradients))
    assert not found["weights"][:, :, 3].any() and not outputs[:, 3].any()
