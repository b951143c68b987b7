"""The whole attention layer against the oracle, and its slots."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.nn.attending import Attention
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.encodings import LearnedEncoding, SinusoidalEncoding
from posattn_jax.nn.mixing import TokenMixing
from posattn_jax.nn.precompute import precompute_encoding
from posattn_jax.nn.scores import Scores
from posattn_jax.nn.siren import SirenEncoding
from posattn_jax.nn.span import GaussianSpan
from posattn_jax.nn.terms import Content, ContentBias, Positional, PositionalBias, RotaryContent, renamed
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops.attention import Cache
from posattn_jax.ops.attention.xla import factorised
from tests import oracle
from tests.support.made_params import made_params
from tests.support.slow import slow

H, D, C = 2, 1, 3


def make_layer(**fields):
    terms = (
        Content(),
        Positional(SirenEncoding(hidden_features=3, omega_initial=10.0)),
        ContentBias(),
        PositionalBias(),
    )
    return PositionalSelfAttention(**({"num_heads": H, "head_dim": D, "terms": terms} | fields))


def flat_names(params, inputs):
    """The layer's parameters by the oracle's names."""
    siren = {f"siren_{name}": array for name, array in params["terms_1"]["encoding"]["siren"].items()}
    span = dict(params.get("span", {}))
    if "cholesky" in span:
        span = {"sigma": span["cholesky"].reshape(-1, *span["cholesky"].shape[-2:])}
    return (
        {
            "inputs": inputs,
            "projections_kernel": params["projections"]["kernel"],
            "projections_bias": params["projections"]["bias"],
            "content_bias": params["terms_2"]["u"],
            "position_bias": params["terms_3"]["v"],
            "output_kernel": params["output"]["kernel"],
            "output_bias": params["output"]["bias"],
        }
        | siren
        | span
    )


def test_terms_have_the_names_that_they_are_given():
    """An added term renames no other; otherwise it is the layer of the same terms in a tuple."""
    names = "what", "where", "u", "v"
    numbered = make_layer()
    named = make_layer(terms=dict(zip(names, numbered.terms, strict=True)))
    inputs = jax.random.normal(jax.random.key(0), (1, 6, C))
    params = made_params(lambda: numbered.init(jax.random.key(0), inputs, (2, 3))["params"])
    shapes = jax.eval_shape(lambda: named.init(jax.random.key(0), inputs, (2, 3))["params"])
    assert shapes.keys() == {"projections", "output", "terms_where", "terms_u", "terms_v"}
    own = {"terms_where": params["terms_1"], "terms_u": params["terms_2"], "terms_v": params["terms_3"]}
    own |= {name: params[name] for name in ("projections", "output")}
    expected = numbered.apply({"params": params}, inputs, (2, 3))
    np.testing.assert_array_equal(named.apply({"params": own}, inputs, (2, 3)), expected)
    tables, table = precompute_encoding(named, own, jnp.ones((3, 5, H, D)))
    assert [*tables.terms] == [*names] and table["terms_where"]["encoding"]["table"].shape == (3, 5, H, D)


@pytest.mark.parametrize(
    "given, like, expected",
    [
        (("10", "2"), ("b", "a"), {"b": "10", "a": "2"}),  # the order of numbers is not that of their digits
        (("b", "a"), ("10", "2"), {"10": "b", "2": "a"}),
        (("a",), ("b",), {"a": "a"}),  # another term
        (("1",), ("2",), {"1": "1"}),
        (("1", "2"), ("a",), {"1": "1", "2": "2"}),
    ],
)
def test_only_numbers_and_names_are_exchanged(given, like, expected):
    layers = ({"attention": {f"terms_{name}": name for name in names}} for names in (given, like))
    assert renamed(*layers) == {"attention": {f"terms_{name}": value for name, value in expected.items()}}


@pytest.mark.parametrize(
    "grid_shape, span, options",
    [
        ((2, 3), GaussianSpan(threshold=0.3, mode="log_add", per_head=True), {"is_causal": True}),
        slow((2, 1, 2), GaussianSpan(threshold=0.0), {}),
        ((3, 2), GaussianSpan(covariance="full"), {}),
        ((2, 2), None, {"key_mask": np.array([[True, False, True, True]])}),
        slow((5,), GaussianSpan(initial_sigma=0.35), {}),
        slow((2, 2), GaussianSpan(covariance="full", per_head=True, mode="log_add"), {}),
    ],
    ids=["2d-log_add-causal", "3d-no-threshold", "2d-full", "2d-no-span-padding", "1d", "2d-full-per-head"],
)
def test_values_and_gradients_of_every_parameter(float64, grid_shape, span, options):
    rng = np.random.default_rng(0)
    n = int(np.prod(grid_shape))
    layer = make_layer(span=span, implementation="dense")
    inputs = rng.normal(size=(1, n, C))
    params = made_params(lambda: layer.init(jax.random.key(0), jnp.asarray(inputs), grid_shape)["params"])
    params = jax.tree.map(lambda array: np.asarray(array, float) + 0.01 * rng.normal(size=array.shape), params)
    weights = rng.normal(size=inputs.shape)
    oracle_options = dict(options)
    if span is not None:
        oracle_options |= {"threshold": span.threshold, "span_mode": span.mode}

    def expected_outputs(x):
        return weights[..., None] * oracle.layer(x, grid_shape, H, D, **oracle_options)

    expected, expected_gradients = oracle.value_and_gradients(
        expected_outputs, {name: np.asarray(array) for name, array in flat_names(params, inputs).items()}
    )

    @jax.jit
    def differentiate(params, inputs):
        def loss(params, inputs):
            arrays = {name: jnp.asarray(value) if name == "key_mask" else value for name, value in options.items()}
            outputs = layer.apply({"params": params}, inputs, grid_shape, **arrays)
            return jnp.sum(weights * outputs), weights * outputs

        return jax.grad(loss, argnums=(0, 1), has_aux=True)(params, inputs)

    (params_gradients, inputs_gradients), outputs = differentiate(params, jnp.asarray(inputs))
    np.testing.assert_allclose(outputs, expected, rtol=1e-10, atol=1e-10)
    for name, gradient in flat_names(params_gradients, inputs_gradients).items():
        np.testing.assert_allclose(gradient, expected_gradients[name], rtol=1e-9, atol=1e-10, err_msg=name)


def apply(layer, grid_shape=(4,), **options):
    inputs = jax.random.normal(jax.random.key(1), (2, int(np.prod(grid_shape)), 8))
    variables = made_params(lambda: layer.init(jax.random.key(0), inputs, grid_shape))
    run = jax.jit(lambda variables, x: layer.apply(variables, x, grid_shape, return_intermediates=True, **options))
    return inputs, variables, run(variables, inputs)


def test_content_alone_knows_no_positions():
    layer = PositionalSelfAttention(num_heads=2)
    inputs, variables, (outputs, made) = apply(layer, (6,))
    order = jnp.array([3, 0, 5, 1, 2, 4])
    moved = jax.jit(lambda x: layer.apply(variables, x, (6,)))(inputs[:, order])
    np.testing.assert_allclose(moved, outputs[:, order], atol=1e-5)
    assert made == {}


def test_returns_its_intermediates():
    layer = make_layer(head_dim=4, span=GaussianSpan(per_head=True))
    _, _, (outputs, made) = apply(layer, (2, 3), return_weights=True)
    shapes = {name: array.shape for name, array in made.items()}
    assert outputs.shape == (2, 6, 8)
    assert shapes == {"relative_encoding": (3, 5, 2, 4), "sigma": (2, 2), "weights": (2, 2, 6, 6)}


def test_a_full_covariance_starts_as_a_diagonal_one():
    """The same parameters otherwise, the same outputs."""
    _, variables, (outputs, _) = apply(make_layer(head_dim=4, span=GaussianSpan(initial_sigma=0.2)), (2, 3))
    for per_head, shape in ((False, (2, 2)), (True, (2, 2, 2))):
        span = GaussianSpan(covariance="full", initial_sigma=0.2, per_head=per_head)
        _, full, (leaning, made) = apply(make_layer(head_dim=4, span=span), (2, 3))
        assert full["params"]["span"]["cholesky"].shape == shape
        assert variables["params"].keys() == full["params"].keys()
        np.testing.assert_allclose(leaning, outputs, rtol=1e-5, atol=1e-6)
        assert made["sigma"].shape == (2 if per_head else 1, 2, 2)


def test_values_and_gate_slots():
    plain = PositionalSelfAttention(num_heads=2)
    doubled = PositionalSelfAttention(num_heads=2, values=Doubled(), bias_init=nn.initializers.zeros)
    closed = PositionalSelfAttention(num_heads=2, gate=lambda inputs, outputs: 0 * outputs)
    inputs, _, _ = apply(plain)
    variables = jax.jit(lambda: plain.init(jax.random.key(0), inputs, (4,)))()  # whose biases begin at 0
    run = lambda layer: jax.jit(lambda: layer.apply(variables, inputs, (4,)))()
    np.testing.assert_allclose(run(doubled), 2 * run(plain), atol=1e-6)
    np.testing.assert_array_equal(run(closed), 0)


class Doubled(nn.Module):
    """Twice the values."""

    needs: ClassVar = ("value",)

    def __call__(self, attention, value, tokens):
        return attention.average(2 * value)


class SharedProjections(nn.Module):
    """Queries, keys and values are one and the same map."""

    @nn.compact
    def __call__(self, tokens, parts):
        features = nn.DenseGeneral((tokens.num_heads, tokens.head_dim))(tokens.inputs)
        return features, features, features


def test_projections_slot():
    _, variables, (outputs, _) = apply(PositionalSelfAttention(num_heads=2, projections=SharedProjections()))
    assert variables["params"]["projections"]["DenseGeneral_0"]["kernel"].shape == (8, 2, 4)
    assert outputs.shape == (2, 4, 8)


def test_attention_dropout_follows_its_rng():
    layer = PositionalSelfAttention(num_heads=2, dropout_rate=0.5)
    inputs, variables, (outputs, _) = apply(layer)
    drop = jax.jit(
        lambda seed: layer.apply(variables, inputs, (4,), deterministic=False, rngs={"dropout": jax.random.key(seed)})
    )
    np.testing.assert_array_equal(drop(0), drop(0))
    assert not np.allclose(drop(0), drop(1))
    assert not np.allclose(drop(0), outputs)


def test_bfloat16_compute_keeps_float32_parameters():
    layer = make_layer(head_dim=4, span=GaussianSpan(), dtype=jnp.bfloat16)
    inputs, variables, (outputs, _) = apply(layer)
    exact = jax.jit(lambda v: make_layer(head_dim=4, span=GaussianSpan()).apply(v, inputs, (4,)))(variables)
    assert outputs.dtype == jnp.bfloat16
    assert {array.dtype for array in jax.tree.leaves(variables)} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(outputs.astype(jnp.float32), exact, atol=0.05)


def test_one_content_term():
    with pytest.raises(ValueError, match="two terms give key, .*RotaryContent"):
        apply(PositionalSelfAttention(num_heads=2, terms=(Content(), RotaryContent())))


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["tiled", slow("dense")])
def test_encodings_add_up(implementation):
    """A SIREN, and sinusoids, and the table of their sum are one layer; so are two u, or v, and their sum."""
    terms = (Content(), Positional(SirenEncoding()), ContentBias(), PositionalBias())
    several = (*terms, Positional(SinusoidalEncoding()), ContentBias(), PositionalBias())
    fields = {"num_heads": 2, "span": GaussianSpan(initial_sigma=0.2), "implementation": implementation}
    layer = PositionalSelfAttention(terms=several, **fields)
    inputs, variables, (outputs, made) = apply(layer, (3, 4))
    params = dict(variables["params"])
    encoding, sums = made["relative_encoding"], {}
    for i, name in ((2, "u"), (3, "v")):
        sums[f"terms_{i}"] = {name: params[f"terms_{i}"][name] + params[f"terms_{i + 3}"][name]}
    sums["terms_1"] = {"encoding": {"table": encoding}}
    one = PositionalSelfAttention(terms=(terms[0], Positional(LearnedEncoding()), *terms[2:]), **fields)
    shared = {name: params[name] for name in ("projections", "output", "span")}
    expected = jax.jit(lambda params: one.apply({"params": params}, inputs, (3, 4)))(shared | sums)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    assert not np.allclose(
        encoding, apply(PositionalSelfAttention(terms=terms, **fields), (3, 4))[2][1]["relative_encoding"]
    )
    made, tables = precompute_encoding(layer, params, encoding)
    outputs_of_tables = jax.jit(lambda params: made.apply({"params": params}, inputs, (3, 4)))(tables)
    np.testing.assert_allclose(outputs_of_tables, outputs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"num_heads": "2"}, "num_heads='2': expected a whole number"),
        ({"num_heads": 2.0}, r"num_heads=2\.0: expected a whole number"),
        ({"dropout_rate": "half"}, "dropout_rate='half': expected at least 0"),
    ],
    ids=str,
)
def test_numbers_of_another_kind_are_refused(unchecked, fields, message):
    with pytest.raises(ValueError, match=message):
        PositionalSelfAttention(**{"num_heads": 2} | fields)


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="num_heads=3 does not divide the width 8"):
        apply(PositionalSelfAttention(num_heads=3))


def test_initialisation_is_the_papers():
    """Bounds at c = 64, h = d = 8: .1531 for the fused q, k, v, .2165 for the output, .612 for u and v."""
    layer = PositionalSelfAttention(
        num_heads=8, terms=(Content(), Positional(SirenEncoding()), ContentBias(), PositionalBias())
    )
    params = jax.jit(lambda: layer.init(jax.random.key(0), jnp.zeros((1, 4, 64)), (4,))["params"])()
    bounds = {
        ("projections", "kernel"): 0.15309,
        ("output", "kernel"): 0.21651,
        ("terms_2", "u"): 0.61237,
        ("terms_3", "v"): 0.61237,
    }
    for path, bound in bounds.items():
        largest = float(jnp.abs(params[path[0]][path[1]]).max())
        assert 0.9 * bound < largest <= bound + 1e-5, path
    assert not params["projections"]["bias"].any() and not params["output"]["bias"].any()


SINUSOIDAL = (Content(), Positional(SinusoidalEncoding()), ContentBias(), PositionalBias())


def sinusoidal_layer(**fields):
    return PositionalSelfAttention(**({"num_heads": 2, "terms": SINUSOIDAL} | fields))


@pytest.mark.slow
def test_factorised_has_the_parameters_and_outputs_of_the_others():
    inputs, variables, (expected, expected_made) = apply(sinusoidal_layer(implementation="dense"), (2, 3))
    layer = sinusoidal_layer(implementation="factorised")
    assert jax.tree.map(jnp.shape, apply(layer, (2, 3))[1]) == jax.tree.map(jnp.shape, variables)

    def gradients(layer):
        return jax.jit(jax.grad(lambda v: (layer.apply(v, inputs, (2, 3)) ** 2).sum()))(variables)

    outputs, made = layer.apply(variables, inputs, (2, 3), return_intermediates=True)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(made["relative_encoding"], expected_made["relative_encoding"])
    jax.tree.map(
        lambda actual, expected: np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4),
        gradients(layer),
        gradients(sinusoidal_layer(implementation="dense")),
    )


def test_auto_factorises_where_it_pays(monkeypatch):
    def used(layer, pays):
        chosen = []
        monkeypatch.setattr(factorised, "factorised_pays", lambda query: pays)
        monkeypatch.setattr(
            factorised, "factorised_attention", lambda problem, _: (chosen.append(True), (problem.query, None))[1]
        )
        jax.eval_shape(lambda inputs: layer.init_with_output(jax.random.key(0), inputs, (4,)), jnp.ones((2, 4, 8)))
        monkeypatch.undo()
        return bool(chosen)

    assert used(sinusoidal_layer(), pays=True)
    assert not used(sinusoidal_layer(), pays=False)
    assert not used(sinusoidal_layer(implementation="dense"), pays=True)
    assert not used(sinusoidal_layer(span=GaussianSpan()), pays=True)
    assert not used(make_layer(head_dim=4), pays=True)


@pytest.mark.parametrize(
    "layer, options, message",
    [
        (sinusoidal_layer(span=GaussianSpan()), {}, "a span"),
        (make_layer(head_dim=4), {}, "terms without one sinusoidal encoding"),
        (PositionalSelfAttention(num_heads=2), {}, "terms without one sinusoidal encoding"),
        (make_layer(terms=(*SINUSOIDAL, Positional(SirenEncoding()))), {}, "terms without one sinusoidal encoding"),
        (sinusoidal_layer(), {"return_weights": True}, "return_weights"),
        (
            sinusoidal_layer(dropout_rate=0.5),
            {"deterministic": False, "rngs": {"dropout": jax.random.key(0)}},
            "dropout",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_factorised_is_refused(layer, options, message):
    with pytest.raises(ValueError, match=f'implementation="factorised" .*{message}'):
        apply(layer.clone(implementation="factorised"), **options)


def test_a_part_that_does_not_say_what_it_needs(unchecked):
    with pytest.raises(ValueError, match="does not say what it `needs`"):
        apply(PositionalSelfAttention(num_heads=2, values=lambda attention, value, tokens: value))


def test_unknown_covariance(unchecked):
    with pytest.raises(ValueError, match='covariance="round": .*"full"'):
        apply(PositionalSelfAttention(2, span=GaussianSpan(covariance="round")))


def test_unknown_implementation(unchecked):
    with pytest.raises(ValueError, match='implementation="fast": .*factorised'):
        apply(PositionalSelfAttention(num_heads=2, implementation="fast"))


@pytest.mark.parametrize("options", [{}, {"num_class_tokens": 1}], ids=str)
def test_an_additive_mask_is_refused(unchecked, options):
    mask = jnp.where(jnp.arange(4 + len(options)) < 2, 0.0, -1e9)[None]
    with pytest.raises(ValueError, match="key_mask has dtype float32"):
        apply(PositionalSelfAttention(num_heads=2), key_mask=mask, **options)


class Given(nn.Module):
    """A term that gives its `Scores`."""

    needs: ClassVar = ()
    scores: Scores

    def __call__(self, query, key, tokens):
        return self.scores


@pytest.mark.parametrize("low", [slow(-jnp.inf), slow(jnp.finfo(jnp.float16).min), jnp.finfo(jnp.float32).min], ids=str)
def test_terms_and_biases_that_hide(low):
    """In a term's pair scores, or its relative bias, or the layer's bias; also as float16 among other dtypes."""
    kind = jnp.float16 if low == jnp.finfo(jnp.float16).min else jnp.float32
    x = jax.random.normal(jax.random.key(1), (2, 5, 4))
    near = jnp.abs(jnp.arange(5)[:, None] - jnp.arange(5)) <= 1
    near = near[None, None] & (jnp.arange(5) < jnp.array([[3], [2]]))[:, None, None]  # the last queries see nothing
    pairs = jnp.broadcast_to(jnp.where(near, 0, jnp.asarray(low, kind)), (2, 2, 5, 5))
    by_offset = jnp.broadcast_to(jnp.where(jnp.abs(jnp.arange(-4, 5)) <= 1, 0, jnp.asarray(low, kind))[:, None], (9, 2))
    shapes = {"relative_bias": (9, 2), "pair_scores": (2, 2, 5, 5)}
    other = Given(Scores(**{name: jnp.full(shape, 0.1, jnp.float32) for name, shape in shapes.items()}))
    span = {"span": GaussianSpan(initial_sigma=0.02, threshold=0.0)}
    params = made_params(lambda: make_layer(terms=(Content(), other), **span).init(jax.random.key(0), x))

    def results(*terms, **given):
        layer = make_layer(terms=(Content(), other, *terms), **span)

        def total(params, x):
            outputs = layer.apply(params, x, **given)
            return jnp.sin(outputs).sum(), outputs

        return jax.jit(jax.grad(total, (0, 1), has_aux=True))(params, x)

    keys = {"key_mask": jnp.arange(5) < jnp.array([[3], [2]])}
    expected = results(mask=near)
    for found in (
        results(Given(Scores(pair_scores=pairs))),
        results(bias=pairs),
        results(Given(Scores(relative_bias=by_offset)), **keys),
    ):
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), found, expected)


def test_scores_add():
    one, other = (Scores(content_bias=jnp.full((2, 4), x), limit=limit) for x, limit in ((1.0, (3, 1)), (2.0, (2, 2))))
    total = one + other + Scores(key=jnp.ones((1, 4, 2, 4)))
    np.testing.assert_array_equal(total.content_bias, 3)
    assert total.limit == (2, 1) and total.key is not None and total.is_pairwise and total.relative_bias is None
    with pytest.raises(ValueError, match="two terms give key"):
        total + Scores(key=jnp.ones((1, 4, 2, 4)))
    with pytest.raises(ValueError, match="terms: .*content_bias"):
        total + Scores(query=jnp.ones((1, 4, 2, 4)))


LAYERS_OF_GRIDS = {
    "attention": PositionalSelfAttention(2, terms=(Content(), Positional(SirenEncoding())), span=GaussianSpan()),
    "mixing": TokenMixing(num_heads=2),
    "block": EncoderBlock(PositionalSelfAttention(2, span=GaussianSpan()), mlp_dim=8),
}


@pytest.mark.parametrize(
    "name, grid_shape",
    [("attention", (5,)), ("mixing", (3, 4)), ("block", (2, 1, 3)), slow("attention", (3, 4)), slow("mixing", (5,))],
)
def test_inputs_may_have_the_axes_of_their_grid(name, grid_shape):
    """[b *S c] is what [b t c] with S is, and comes back in its shape; its mask too."""
    layer = LAYERS_OF_GRIDS[name]
    rng = np.random.default_rng(0)
    inputs = jnp.asarray(rng.normal(size=(2, *grid_shape, 8)), jnp.float32)
    mask = jnp.asarray(rng.random((2, *grid_shape)) < 0.7)
    flat, flat_mask = inputs.reshape(2, -1, 8), mask.reshape(2, -1)
    variables = made_params(lambda: layer.init(jax.random.key(0), inputs))

    @jax.jit
    def run(variables):
        apply = lambda *given, **options: layer.apply(variables, *given, **options)
        shaped = [
            apply(*given, key_mask=mask, return_intermediates=True)[0] for given in ((inputs,), (inputs, grid_shape))
        ]
        line = [apply(flat, key_mask=mask)] if len(grid_shape) == 1 else []
        return apply(flat, grid_shape, key_mask=flat_mask), shaped, line

    expected, shaped, line = run(variables)
    for outputs in shaped:
        np.testing.assert_array_equal(outputs.reshape(flat.shape), expected)
        assert outputs.shape == inputs.shape
    for outputs in line:
        np.testing.assert_array_equal(outputs, expected)


@pytest.mark.parametrize(
    "inputs, fields, expected",
    [
        ((1, 3, 4, 8), {"grid_shape": (4, 3)}, r"\(3, 4\): .*grid_shape=\(4, 3\)"),
        ((1, 3, 4, 8), {"num_class_tokens": 1}, r"expected none .*\[b t c\]"),
        ((1, 2, 2, 2, 2, 8), {}, r"grid_shape=\(2, 2, 2, 2\)"),
        ((1, 1, 8), {"cache": Cache.empty(1, 5, 2, 4)}, "cache: expected grid_shape with it"),
    ],
)
def test_inputs_of_another_grid(unchecked, inputs, fields, expected):
    with pytest.raises(ValueError, match=expected):
        PositionalSelfAttention(num_heads=2).init(jax.random.key(0), jnp.ones(inputs), **fields)


def test_class_tokens_stand_before_a_line():
    """Without a grid, t less the class tokens is its length."""
    layer = PositionalSelfAttention(num_heads=2, terms=(Content(), Positional(SirenEncoding())))
    inputs = jax.random.normal(jax.random.key(1), (1, 6, 8))
    variables = made_params(lambda: layer.init(jax.random.key(0), inputs, (5,), num_class_tokens=1))
    run = jax.jit(lambda v, shape: layer.apply(v, inputs, shape, num_class_tokens=1), static_argnums=1)
    outputs, expected = (run(variables, shape) for shape in (None, (5,)))
    np.testing.assert_array_equal(outputs, expected)


def test_weights_within_a_limit_leave_the_attention_as_it_is():
    """Their values are those of scores without the keys beyond it, and `average` has the others still."""
    query, key, value = jax.random.normal(jax.random.key(0), (3, 1, 4, H, D))
    attention = Attention(query, Scores(key=key), None, Tokens(jnp.zeros((1, 4, C)), (4,), H, D), return_weights=True)
    scores = jnp.einsum("bthd,bshd->bhts", query, key) / D**0.5
    near = attention.weights((1,))
    banded = jnp.where(jnp.abs(jnp.subtract.outer(jnp.arange(4), jnp.arange(4))) <= 1, scores, -jnp.inf)
    np.testing.assert_allclose(near, jax.nn.softmax(banded), atol=1e-6)
    assert attention.intermediates["weights"] is near
    np.testing.assert_allclose(attention.weights(), jax.nn.softmax(scores), atol=1e-6)
    assert attention.weights() is attention.weights()
    expected = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), value)
    np.testing.assert_allclose(attention.average(value), expected, atol=1e-6)
