"""Ways to tell attention about positions, each against its paper's formula, and what they promise."""

import itertools
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.biases import BucketedBias, LearnedDecay, LinearBias
from posattn_jax.nn.encodings import AxialEncoding, KernelEncoding, SinusoidalEncoding
from posattn_jax.nn.positions import FourierPositions
from posattn_jax.nn.score_network import ScoreNetwork
from posattn_jax.nn.siren import SirenEncoding
from posattn_jax.nn.span import GaussianSpan, WindowSpan
from posattn_jax.nn.terms import Content, ContentBias, Positional, PositionalBias, RelativeBias, RotaryContent
from posattn_jax.nn.tokens import Tokens
from posattn_jax.nn.values import PlusRelative
from posattn_jax.ops import grid
from posattn_jax.ops.biases import slopes
from posattn_jax.ops.encodings import rotate
from tests import oracle
from tests.support.made_params import made_params
from tests.support.slow import slow

B, H = 2, 2
F64 = {"param_dtype": jnp.float64}


def flat(params):
    """The parameters by their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {"/".join(entry.key for entry in path): np.asarray(leaf, float) for path, leaf in leaves}


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def turned(x, place, base):
    """R_t x: pair j of dimension i turned by place_i base^(-2 j / (d / p))."""
    each, out = len(x) // len(place), []
    for i, coordinate in enumerate(place):
        for j in range(each // 2):
            angle = coordinate * base ** (-2 * j / each)
            a, b = x[i * each + 2 * j], x[i * each + 2 * j + 1]
            out += [a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)]
    return out


def clipped(offset, half):
    return tuple(max(-half, min(half, o)) + half for o in offset)


class Rotary:
    layer: ClassVar[dict] = {"terms": (RotaryContent(base=50.0),)}

    def logit(self, x, query, key, t, s):
        return {h: dot(turned(query[h], t, 50.0), turned(key[h], s, 50.0)) for h in range(H)}


class Alibi:
    layer: ClassVar[dict] = {"terms": (Content(), LinearBias())}

    def logit(self, x, query, key, t, s):
        scale = math.sqrt(len(query[0]))  # the bias is not divided by it
        return {h: dot(query[h], key[h]) - scale * 2 ** (-4 * (h + 1)) * math.dist(t, s) for h in range(H)}


class Decay:
    layer: ClassVar[dict] = {"terms": (Content(), LearnedDecay(**F64))}

    def logit(self, x, query, key, t, s):
        """Of weights that are multiplied by exp(-a_h |s - t|); the bias is not divided by the scale."""
        scale, rates = math.sqrt(len(query[0])), np.exp(x["terms_1/log_a"])
        return {h: dot(query[h], key[h]) - scale * rates[h] * math.dist(t, s) for h in range(H)}


class Shaw:
    layer: ClassVar[dict] = {
        "terms": (Content(), Positional(KernelEncoding((3,), **F64))),
        "values": PlusRelative(KernelEncoding((5,), **F64)),
    }

    def logit(self, x, query, key, t, s):
        entry = clipped((s[0] - t[0],), 1)
        return {h: dot(query[h], key[h] + x["terms_1/encoding/table"][(*entry, 0)]) for h in range(H)}

    def value(self, x, value, t, s):
        return value + x["values/encoding/table"][(*clipped((s[0] - t[0],), 2), slice(None))]


class ShawOnAGrid(Shaw):
    layer: ClassVar[dict] = {
        "terms": (Content(), Positional(KernelEncoding((3, 3), **F64))),
        "values": PlusRelative(KernelEncoding((3, 3), share_heads=False, **F64)),
    }

    def logit(self, x, query, key, t, s):
        entry = clipped(np.subtract(s, t), 1)
        return {h: dot(query[h], key[h] + x["terms_1/encoding/table"][(*entry, 0)]) for h in range(H)}

    def value(self, x, value, t, s):
        return value + x["values/encoding/table"][clipped(np.subtract(s, t), 1)]


class Ramachandran:
    layer: ClassVar[dict] = {"terms": (Content(), Positional(AxialEncoding(**F64))), "span": WindowSpan((1, 1))}
    shape = (2, 3)

    def logit(self, x, query, key, t, s):
        if any(abs(a - b) > 1 for a, b in zip(t, s, strict=True)):
            return None
        made = {}
        for h in range(H):
            parts = [
                x[f"terms_1/encoding/dimension_{i + 1}/table"][s[i] - t[i] + self.shape[i] - 1, h] for i in range(2)
            ]
            made[h] = dot(query[h], key[h] + np.concatenate(parts))
        return made


class Ho(Ramachandran):
    layer: ClassVar[dict] = {"terms": (Content(), Positional(AxialEncoding(combine="sum", **F64)))}

    def logit(self, x, query, key, t, s):
        made = {}
        for h in range(H):
            rows, columns = (
                x[f"terms_1/encoding/dimension_{i + 1}/table"][s[i] - t[i] + self.shape[i] - 1, h] for i in range(2)
            )
            made[h] = dot(query[h], key[h] + rows + columns)
        return made


class SeveralBiases(Alibi):
    kernel = RelativeBias((3, 3), bias_init=jax.nn.initializers.normal(1.0), **F64)
    layer: ClassVar[dict] = {"terms": (Content(), kernel, LinearBias(), kernel.copy(), LinearBias())}

    def logit(self, x, query, key, t, s):
        scale, content = math.sqrt(len(query[0])), super().logit(x, query, key, t, s)
        entry = clipped(np.subtract(s, t), 1)
        biases = {
            h: x["terms_1/beta"][(*entry, h)] + x["terms_3/beta"][(*entry, h)] - 2 ** (-4 * (h + 1)) * math.dist(t, s)
            for h in range(H)
        }
        return {h: content[h] + scale * biases[h] for h in range(H)}


class T5:
    """Eight buckets: offsets up to 1 have their own, from 6 on all share one."""

    layer: ClassVar[dict] = {"terms": (Content(), BucketedBias(8, 6, **F64))}

    def logit(self, x, query, key, t, s):
        scale = math.sqrt(len(query[0]))  # the bias is not divided by it
        entry = tuple(self.bucket(b - a) for a, b in zip(t, s, strict=True))
        return {h: dot(query[h], key[h]) + scale * x["terms_1/table"][(*entry, h)] for h in range(H)}

    def bucket(self, offset):
        after, distance = 4 * (offset > 0), abs(offset)
        if distance < 2:
            return after + distance
        return after + min(3, 2 + math.floor(math.log(distance / 2) / math.log(6 / 2) * 2))


class SeveralEncodings:
    layer: ClassVar[dict] = {
        "terms": (
            Content(),
            Positional(KernelEncoding((3, 3), **F64)),
            Positional(KernelEncoding((3, 5), share_heads=False, **F64)),
        )
    }

    def logit(self, x, query, key, t, s):
        near = x["terms_1/encoding/table"][clipped(np.subtract(s, t), 1)][0]
        wide = x["terms_2/encoding/table"][clipped(np.subtract(s, t)[:1], 1) + clipped(np.subtract(s, t)[1:], 2)]
        return {h: dot(query[h], key[h] + near + wide[h]) for h in range(H)}


class Zhao:
    layer: ClassVar[dict] = {"terms": (ScoreNetwork(hidden_features=3, **F64),)}
    shape = (2, 3)

    def logit(self, x, query, key, t, s):
        network = {name.removeprefix("terms_0/"): array for name, array in x.items()}
        offset = [(b - a) / (size - 1) for a, b, size in zip(t, s, self.shape, strict=True)]
        places = [sum(o * network["places/kernel"][i, j] for i, o in enumerate(offset)) for j in range(2)]
        hidden = []
        for f in range(3):
            total = network["of_offsets/bias"][f]
            for h in range(H):
                total = total + dot(query[h], key[h]) * network["of_products/kernel"][h, f]
            for i, place in enumerate(places):
                total = total + place * network["of_offsets/kernel"][i, f]
            hidden.append(np.where(total.real > 0, total, 0))
        kernel, bias = network["output/kernel"], network["output/bias"]
        return {h: dot(hidden, kernel[:, h]) + bias[h] for h in range(H)}


ALIKE = ("rotary-1d", "shaw-1d", "t5-3d", "several encodings")  # the last is also `test_encodings_add_up`
METHODS = {
    "rotary-1d": (Rotary(), (4,), 2),
    "rotary-2d": (Rotary(), (2, 3), 4),
    "alibi": (Alibi(), (2, 3), 2),
    "learned decay": (Decay(), (2, 3), 2),
    "t5-1d": (T5(), (9,), 1),
    "t5-3d": (T5(), (2, 1, 5), 1),
    "shaw-1d": (Shaw(), (4,), 2),
    "shaw-2d": (ShawOnAGrid(), (3, 2), 2),
    "ramachandran": (Ramachandran(), (2, 3), 2),
    "ho": (Ho(), (2, 3), 1),
    "several biases": (SeveralBiases(), (2, 3), 2),
    "several encodings": (SeveralEncodings(), (2, 3), 2),
    "zhao": (Zhao(), (2, 3), 2),
}


@pytest.mark.parametrize("name", [slow(name) if name in ALIKE else name for name in METHODS])
def test_values_and_gradients_of_a_layer(float64, name):
    """Outputs, and gradients of the inputs and of every parameter, against loops over pairs."""
    method, grid_shape, d = METHODS[name]
    where, rng = oracle.positions(grid_shape), np.random.default_rng(0)
    n, c = len(where), H * d
    layer = PositionalSelfAttention(H, use_output=False, implementation="dense", **method.layer, **F64)
    inputs = jnp.asarray(rng.normal(size=(B, n, c)))
    params = made_params(lambda: layer.init(jax.random.key(0), inputs, grid_shape)["params"], 0.7)
    mixed = rng.normal(size=(B, n, c))

    def expected_outputs(x):
        projected = np.einsum("btcx,cnhdx->nbthdx", x["inputs"], x["projections/kernel"])
        query, key, value = projected + x["projections/bias"][:, None, None]
        outputs = np.zeros((B, n, H, d, query.shape[-1]), complex)
        for b, t in itertools.product(range(B), range(n)):
            logits = {s: method.logit(x, query[b, t], key[b, s], where[t], where[s]) for s in range(n)}
            logits = {s: each for s, each in logits.items() if each is not None}
            for h in range(H):
                exps = {s: np.exp(each[h] / math.sqrt(d)) for s, each in logits.items()}
                for s, e in exps.items():
                    own = value[b, s]
                    if hasattr(method, "value"):
                        own = method.value(x, own, where[t], where[s])
                    outputs[b, t, h] += e / sum(exps.values()) * own[h]
        return mixed[..., None] * outputs.reshape(B, n, c, -1)

    expected, expected_gradients = oracle.value_and_gradients(
        expected_outputs, {"inputs": np.asarray(inputs)} | flat(params)
    )

    @jax.jit
    def differentiate(params, inputs):
        def loss(params, inputs):
            outputs = mixed * layer.apply({"params": params}, inputs, grid_shape)
            return outputs.sum(), outputs

        return jax.grad(loss, (0, 1), has_aux=True)(params, inputs)

    (gradients, of_inputs), outputs = differentiate(params, inputs)
    np.testing.assert_allclose(outputs, expected, rtol=1e-9, atol=1e-10)
    for path, gradient in ({"inputs": of_inputs} | flat(gradients)).items():
        np.testing.assert_allclose(gradient, expected_gradients[path], rtol=1e-8, atol=1e-9, err_msg=path)


@pytest.mark.parametrize("grid_shape", [slow((1,)), slow((7,)), (3, 1, 2)], ids=str)
def test_a_decay_multiplies_weights(grid_shape):
    """Without content all that is left is exp(-a |s - t|), normalised."""
    layer, n = PositionalSelfAttention(H, terms=(LearnedDecay(initial_decay=0.7),)), math.prod(grid_shape)
    inputs = jnp.ones((1, n, 4))

    @jax.jit
    def run():
        variables = layer.init(jax.random.key(0), inputs, grid_shape)
        return layer.apply(variables, inputs, grid_shape, return_intermediates=True, return_weights=True)

    _, intermediates = run()
    where = np.array(oracle.positions(grid_shape), float)
    expected = np.exp(-0.7 * np.linalg.norm(where[:, None] - where, axis=-1))
    expected /= expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(intermediates["weights"][0], np.broadcast_to(expected, (H, n, n)), rtol=1e-5)
    for wrong in (0.0, np.inf, np.nan):
        with pytest.raises(ValueError, match=f"initial_decay={wrong}: expected a finite"):
            LearnedDecay(initial_decay=wrong)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16])
def test_a_decay_of_any_size_is_a_number(dtype):
    """Where exp(log_a) is infinite, each query sees itself alone; gradients are finite."""
    layer = PositionalSelfAttention(H, terms=(LearnedDecay(param_dtype=dtype),))
    inputs = jax.random.normal(jax.random.key(1), (1, 5, 4))
    params = layer.init(jax.random.key(0), inputs)["params"]

    def told(log_a):
        return layer.apply({"params": params | {"terms_0": {"log_a": log_a}}}, inputs, return_weights=True)

    weights = told(jnp.full(H, 90, dtype))[1]["weights"]
    np.testing.assert_array_equal(weights[0], np.broadcast_to(np.eye(5), (H, 5, 5)))
    gradient = jax.grad(lambda log_a: told(log_a)[0].sum())(jnp.full(H, 90, dtype))
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("p", [1, 2])
def test_learned_fourier_features_of_places(float64, p):
    """Li 2021, Algorithm 1: values, and gradients of every parameter."""
    positions = FourierPositions(num_features=4, hidden_features=3, gamma=2.0, **F64)
    places = jnp.asarray([(0, 3), (2, 1), (5, 0)], jnp.int32)[:, :p]
    params = made_params(lambda: positions.init(jax.random.key(0), places, 5)["params"])
    mixed = np.random.default_rng(0).normal(size=(3, 5))

    def expected(x):
        rows = []
        for place in np.asarray(places).tolist():
            angles = [dot(place, x["frequencies"][:, f]) for f in range(2)]
            features = [np.cos(a) / 2 for a in angles] + [np.sin(a) / 2 for a in angles]
            hidden = [dot(features, x["hidden/kernel"][:, j]) + x["hidden/bias"][j] for j in range(3)]
            hidden = [z * (1 + scipy.special.erf(z / math.sqrt(2))) / 2 for z in hidden]
            rows.append([dot(hidden, x["output/kernel"][:, j]) + x["output/bias"][j] for j in range(5)])
        return mixed[..., None] * np.array(rows)

    values, gradients = oracle.value_and_gradients(expected, flat(params))

    def total(params):
        outputs = mixed * positions.apply({"params": params}, places, 5)
        return outputs.sum(), outputs

    found, outputs = jax.jit(jax.grad(total, has_aux=True))(params)
    np.testing.assert_allclose(outputs, values, rtol=1e-12)
    for path, gradient in flat(found).items():
        np.testing.assert_allclose(gradient, gradients[path], rtol=1e-9, atol=1e-12, err_msg=path)


@pytest.mark.parametrize("grid_shape", [(5,), (3, 4), (2, 1, 3)], ids=str)
def test_rotary_scores_depend_on_the_offset_alone(float64, grid_shape):
    """The same query and the same key everywhere: every pair of the same offset has the same score."""
    rng, n = np.random.default_rng(0), math.prod(grid_shape)
    turn = jax.jit(lambda x: rotate(x, grid_shape))
    query, key = (turn(np.broadcast_to(rng.normal(size=12), (1, n, 1, 12))) for _ in range(2))
    scores = np.einsum("btd,bsd->ts", query[:, :, 0], key[:, :, 0])
    offsets = [
        tuple(o)
        for o in (grid.positions(grid_shape) - grid.positions(grid_shape)[:, None]).reshape(-1, len(grid_shape))
    ]
    first: dict = {}
    for offset, score in zip(offsets, scores.ravel(), strict=True):
        np.testing.assert_allclose(score, first.setdefault(offset, score), rtol=1e-10)
    assert len({round(float(score), 9) for score in first.values()}) == len(first)


def test_a_rotation_keeps_lengths_and_dtype():
    x = np.random.default_rng(0).normal(size=(2, 6, 3, 8)).astype(np.float32)
    turn = jax.jit(lambda x: rotate(x, (2, 3)))
    turned_x = np.asarray(turn(x))
    np.testing.assert_allclose(np.linalg.norm(turned_x, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5)
    np.testing.assert_array_equal(turned_x[:, 0], x[:, 0])  # place 0
    low = turn(x.astype(jnp.bfloat16))
    assert low.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(low, np.float32), turned_x, atol=0.05)


def test_slopes_of_alibi():
    """Press 2021: 8 heads have 1/2, 1/4, ..., 1/256; 6 heads those of 4, then of 8 every other."""
    np.testing.assert_allclose(slopes(8), [2.0**-i for i in range(1, 9)], rtol=1e-6)
    np.testing.assert_allclose(slopes(6), [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3], rtol=1e-6)
    np.testing.assert_allclose(slopes(1), [2**-8])
    tokens = Tokens(jnp.zeros((1, 3, 4)), (3,), 2, 2)
    bias = LinearBias().apply({}, None, None, tokens).relative_bias
    np.testing.assert_allclose(bias[:, 0], [-2 / 16, -1 / 16, 0, -1 / 16, -2 / 16])


def apply(layer, grid_shape, cls=0, variables=None, **options):
    """Random inputs and parameters, and what the layer makes of them."""
    inputs = jax.random.normal(jax.random.key(1), (B, cls + math.prod(grid_shape), 8))
    if variables is None:
        variables = made_params(lambda: layer.init(jax.random.key(0), inputs, grid_shape, num_class_tokens=cls))
    run = jax.jit(
        lambda variables: layer.apply(
            variables, inputs, grid_shape, num_class_tokens=cls, return_intermediates=True, **options
        )
    )
    return variables, run(variables)


@pytest.mark.parametrize("cls", [0, 1])
def test_relative_values_of_zero_are_none(cls):
    layer = PositionalSelfAttention(H, values=PlusRelative(KernelEncoding((3, 3))))
    variables, (outputs, _) = apply(layer, (2, 3), cls)
    variables["params"]["values"]["encoding"]["table"] = jnp.zeros((3, 3, 1, 4))
    _, (without, _) = apply(layer, (2, 3), cls, variables)
    own = {name: array for name, array in variables["params"].items() if name != "values"}
    _, (plain, _) = apply(PositionalSelfAttention(H), (2, 3), cls, {"params": own})
    np.testing.assert_allclose(without, plain, atol=1e-5)
    assert not np.allclose(outputs, plain, atol=1e-3)


def test_no_softmax_sees_the_bias_of_the_baseline():
    """So Transformer-XL's encoding, which has none, and the baseline's are one."""

    def layer(use_bias):
        terms = (Content(), Positional(SinusoidalEncoding(use_bias=use_bias)), ContentBias(), PositionalBias())
        return PositionalSelfAttention(H, terms=terms, implementation="dense")

    variables, (with_bias, _) = apply(layer(True), (2, 3))
    del variables["params"]["terms_1"]["encoding"]["linear"]["bias"]
    _, (without, _) = apply(layer(False), (2, 3), variables=variables)
    np.testing.assert_allclose(without, with_bias, atol=1e-5)


@pytest.mark.parametrize("grid_shape, half", [slow((7,), (2,)), ((4, 5), (1, 3)), ((4, 1), (9, 1))], ids=str)
def test_a_window_is_the_keys_within_it(grid_shape, half):
    layer = PositionalSelfAttention(H, span=WindowSpan(half))
    _, (_, made) = apply(layer, grid_shape, return_weights=True)
    offsets = np.abs(grid.positions(grid_shape) - grid.positions(grid_shape)[:, None])
    np.testing.assert_array_equal(made["weights"][0, 0] > 0, (offsets <= np.array(half)).all(-1))
    plain = PositionalSelfAttention(H)
    _, (_, everywhere) = apply(plain, grid_shape, return_weights=True)
    ratio = np.where(made["weights"] > 0, everywhere["weights"], 0)
    np.testing.assert_allclose(made["weights"], ratio / ratio.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("implementation", ["tiled", slow("patch"), slow("window"), slow("reference")])
def test_implementations_agree_on_turned_queries_in_a_window(implementation):
    layer = PositionalSelfAttention(H, terms=(RotaryContent(), LinearBias()), span=WindowSpan((1, 2)))
    variables, (expected, _) = apply(layer.clone(implementation="dense"), (3, 4))
    bound = (1, 2) if implementation in ("patch", "window") else None
    _, (outputs, _) = apply(layer.clone(implementation=implementation), (3, 4), variables=variables, span_bound=bound)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


def test_class_tokens_are_not_turned():
    """A class token's query meets its own key as it is, and what it scores with others depends on their places."""
    term, rng = RotaryContent(), np.random.default_rng(0)
    query, key = (jnp.asarray(rng.normal(size=(1, 5, 2, 4)), jnp.float32) for _ in range(2))
    tokens = Tokens(jnp.zeros((1, 5, 8)), (2, 2), 2, 4, num_class_tokens=1)

    @jax.jit
    def run(*given):
        scores = term.apply({}, *given, tokens)
        return [scores.query, scores.key], [rotate(x[:, 1:], (2, 2)) for x in given]

    for turned, alone, given in zip(*run(query, key), (query, key), strict=True):
        np.testing.assert_array_equal(turned[:, 0], given[:, 0])
        np.testing.assert_allclose(turned[:, 1:], alone, rtol=1e-6)


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {"terms": (RotaryContent(), Positional(SirenEncoding()))},
            "terms: .*relative_encoding",
        ),
        (
            {"terms": (RotaryContent(), ContentBias())},
            "terms: .*content_bias",
        ),
        (
            {"terms": (RotaryContent(),), "head_dim": 3},
            "head_dim=3: .* 4",
        ),
        ({"terms": (RotaryContent(base=0.0),)}, "base=0.0"),
        ({"span": WindowSpan((1,))}, r"half_span=\(1,\)"),
        ({"span": WindowSpan((1, 0))}, r"half_span=\(1, 0\)"),
        (
            {"terms": (Content(), Positional(AxialEncoding())), "head_dim": 3},
            "head_dim=3: vectors of 2 dimensions need",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit(unchecked, fields, message):
    with pytest.raises(ValueError, match=message):
        apply(PositionalSelfAttention(H, **fields), (2, 3))


@pytest.mark.parametrize("term", [RotaryContent(), ScoreNetwork()], ids=lambda term: type(term).__name__)
def test_points_lie_on_no_grid(unchecked, term):
    layer = PositionalSelfAttention(H, terms=(term,))
    with pytest.raises(ValueError, match=f"positions: .*{type(term).__name__}"):
        layer.init(jax.random.key(0), jnp.zeros((1, 4, 8)), (4,), positions=jnp.zeros((1, 4, 2)))


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"num_features": 3}, "num_features=3"),
        ({"gamma": 0.0}, "gamma=0.0"),
    ],
)
def test_fourier_features_that_cannot_be(unchecked, fields, message):
    with pytest.raises(ValueError, match=message):
        FourierPositions(**fields).init(jax.random.key(0), jnp.zeros((2, 1), jnp.int32), 4)


def test_a_learned_span_over_turned_queries_is_wider_than_a_window():
    """A span and RoPE are parts of one layer."""
    layer = PositionalSelfAttention(H, terms=(RotaryContent(),), span=GaussianSpan())
    _, (outputs, made) = apply(layer, (2, 3))
    assert np.isfinite(outputs).all() and made["sigma"].shape == (2,)
