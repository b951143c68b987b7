"""Translution as parts of the attention layer: against flax's layers, and as special cases of each other."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.displacements import cut_tables, fan_in_table, kaiming_table
from posattn_jax.nn.projections import LinearProjections
from posattn_jax.nn.relative_content import RelativeContent
from posattn_jax.nn.siren import Siren, SirenEncoding
from posattn_jax.nn.span import GaussianSpan
from posattn_jax.nn.terms import Content, Positional
from posattn_jax.nn.translution import GeneralTranslution, LowRankTranslution, Translution
from posattn_jax.ops.pair_scores import pair_scores
from posattn_jax.ops.translution import translution
from tests.support.made_params import made_params
from tests.support.slow import slow

H, C = 2, 6
FORMS = {
    "full": Translution(),
    "shared": Translution(share_heads=True),
    "low_rank": LowRankTranslution(rank=2, down_dim=4),
    "low_rank, mixing": LowRankTranslution(rank=2, down_dim=4, mix_heads=True),
    "general": GeneralTranslution(num_bases=3),
}
DIFFERENT = ["full", slow("shared"), slow("low_rank"), "low_rank, mixing", "general"]


def make_inputs(grid_shape, cls=0, batch=2):
    return jax.random.normal(jax.random.key(1), (batch, cls + math.prod(grid_shape), C))


def make(layer, inputs, grid_shape, **options):
    params = made_params(lambda: layer.init(jax.random.key(0), inputs, grid_shape, **options))["params"]
    return jax.tree.map(lambda array: array.astype(inputs.dtype), params)


def apply(layer, params, inputs, grid_shape, **options):
    """Compiled as a whole, which takes less time than one operation after the other."""
    arrays = {name: options.pop(name) for name in ("positions", "key_mask") if name in options}
    run = jax.jit(
        lambda params, inputs, arrays: layer.apply(
            {"params": params}, inputs, grid_shape, return_intermediates=True, **arrays, **options
        )
    )
    return run(params, inputs, arrays)


def with_gradients(function, *arguments):
    """Outputs, and the gradients of a weighted sum of them for every argument."""

    def loss(*arguments):
        outputs = function(*arguments)
        return jnp.sum(jax.random.normal(jax.random.key(9), outputs.shape) * outputs), outputs

    return jax.jit(jax.grad(loss, argnums=tuple(range(len(arguments))), has_aux=True))(*arguments)


def check_equal(function, other, *arguments, tolerance=1e-10):
    actual, expected = with_gradients(function, *arguments), with_gradients(other, *arguments)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), actual, expected)


@pytest.mark.parametrize("cls", [slow(0), 1])
def test_the_transformer_is_a_special_case(float64, cls):
    """Where all matrices are one, the layer is `MultiHeadDotProductAttention`: values and gradients."""
    grid_shape, inputs = (2, 3), make_inputs((2, 3), cls)
    layer = PositionalSelfAttention(H, values=Translution(), projections=LinearProjections(use_bias=False))
    usual = nn.MultiHeadDotProductAttention(H, use_bias=False)
    usual_params = make(usual, inputs, inputs)
    as_kernel = lambda name: usual_params[name]["kernel"]

    def ours(inputs, query, key, value, out):
        table = jnp.broadcast_to(value, (3, 5, *value.shape))
        values = {"matrices": table} | ({"class_matrices": jnp.stack([value] * 3)} if cls else {})
        projections = {"kernel": jnp.stack([query, key], 1)}
        params = {"projections": projections, "values": values, "output": {"kernel": out, "bias": jnp.zeros(C)}}
        return apply(layer, params, inputs, grid_shape, num_class_tokens=cls)[0]

    def theirs(inputs, query, key, value, out):
        params = {"query": query, "key": key, "value": value, "out": out}
        return usual.apply({"params": {name: {"kernel": kernel} for name, kernel in params.items()}}, inputs)

    check_equal(ours, theirs, inputs, *(as_kernel(name) for name in ("query", "key", "value", "out")))


def test_convolution_is_a_special_case(float64):
    """Equal scores within a half-span: `flax.linen.Conv` divided by the number of keys that are met."""
    grid_shape, inputs = (4, 5), make_inputs((4, 5))
    projections = LinearProjections(use_bias=False)
    layer = PositionalSelfAttention(1, values=Translution(half_span=(1, 1)), projections=projections, use_output=False)
    params = make(layer, inputs, grid_shape)
    conv = nn.Conv(C, (3, 3), use_bias=False)

    def convolve(x, kernel):
        return conv.apply({"params": {"kernel": kernel}}, x.reshape(len(x), *grid_shape, -1)).reshape(x.shape)

    def ours(inputs, kernel):
        flat = {"projections": jax.tree.map(jnp.zeros_like, params["projections"])}
        return apply(layer, flat | {"values": {"matrices": kernel[..., None, :]}}, inputs, grid_shape)[0]

    def theirs(inputs, kernel):
        met = convolve(jnp.ones_like(inputs), jnp.ones((3, 3, C, C)) / C)
        return convolve(inputs, kernel) / met

    check_equal(ours, theirs, inputs, params["values"]["matrices"][..., 0, :])


class Table(nn.Module):
    """A table of its own instead of a network of displacements."""

    @nn.compact
    def __call__(self, x):
        return jnp.eye(math.prod(x.shape[:-1])).reshape(*x.shape[:-1], -1)


@pytest.mark.parametrize("cls", [slow(0), 1])
def test_general_with_a_table_is_the_full_form(float64, cls):
    grid_shape, inputs = (2, 3), make_inputs((2, 3), cls)
    full = PositionalSelfAttention(H, values=Translution())
    general = PositionalSelfAttention(H, values=GeneralTranslution(num_bases=15, basis=Table()))
    params = make(full, inputs, grid_shape, num_class_tokens=cls)

    def with_basis(params):
        of_class = dict(params["values"])
        matrices = of_class.pop("matrices")
        return params | {"values": of_class | {"bases": matrices.reshape(15, *matrices.shape[2:])}}

    check_equal(
        lambda params, inputs: apply(general, with_basis(params), inputs, grid_shape, num_class_tokens=cls)[0],
        lambda params, inputs: apply(full, params, inputs, grid_shape, num_class_tokens=cls)[0],
        params,
        inputs,
    )


def test_points_of_a_grid_are_the_grid(float64):
    """Positions i / (S - 1), in any order."""
    grid_shape, inputs = (3, 4), make_inputs((3, 4))
    layer = PositionalSelfAttention(H, values=GeneralTranslution(num_bases=3))
    params = make(layer, inputs, grid_shape)
    where = np.stack(np.indices(grid_shape), -1).reshape(-1, 2) / (np.array(grid_shape) - 1)
    order = np.random.default_rng(0).permutation(12)
    positions = jnp.broadcast_to(jnp.asarray(where[order]), (2, 12, 2))
    check_equal(
        lambda params, inputs: apply(layer, params, inputs[:, order], (12,), positions=positions)[0],
        lambda params, inputs: apply(layer, params, inputs, grid_shape)[0][:, order],
        params,
        inputs,
    )


def test_moving_all_points_changes_nothing():
    layer = PositionalSelfAttention(H, values=GeneralTranslution())
    inputs, positions = make_inputs((7,)), jax.random.uniform(jax.random.key(4), (2, 7, 3))
    mask = jnp.arange(7) < jnp.array([[5], [7]])
    params = make(layer, inputs, (7,), positions=positions)
    outputs, moved = (
        apply(layer, params, inputs, (7,), positions=p, key_mask=mask)[0] for p in (positions, positions + 0.3)
    )
    np.testing.assert_allclose(moved, outputs, atol=5e-5)
    other = apply(layer, params, jnp.where(mask[..., None], inputs, 9.0), (7,), positions=positions, key_mask=mask)[0]
    np.testing.assert_allclose(jnp.where(mask[..., None], other - outputs, 0), 0, atol=1e-6)


@pytest.mark.parametrize("form", DIFFERENT)
def test_a_translated_input_gives_a_translated_output(form):
    """On a canvas whose margin is masked."""
    grid_shape, shift = (6, 7), (2, 3)
    layer = PositionalSelfAttention(H, values=FORMS[form])
    content = jax.random.normal(jax.random.key(2), (1, 4, 4, C))

    def place(x, row, column):
        return jnp.pad(x, ((0, 0), (row, 2 - row), (column, 3 - column), (0, 0))).reshape(1, 42, -1)

    params = make(layer, place(content, 0, 0), grid_shape)

    def outputs(row, column):
        mask = place(jnp.ones((1, 4, 4, 1)), row, column)[..., 0] > 0
        y, _ = apply(layer, params, place(content, row, column), grid_shape, key_mask=mask)
        return y.reshape(1, *grid_shape, C)[:, row : row + 4, column : column + 4]

    np.testing.assert_allclose(outputs(*shift), outputs(0, 0), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "threshold, form",
    [(0.1, "full"), (0.6, "general"), *(slow(0.6, form) for form in FORMS if form != "general")],
)
def test_what_a_span_leaves_out_is_not_reached(form, threshold):
    """By the gradient: exactly the keys inside the span, at run time, and within the static half-span."""
    grid_shape, inputs = (7, 6), make_inputs((7, 6), batch=1)
    layer = PositionalSelfAttention(
        H, values=FORMS[form].clone(half_span=(1, 5)), span=GaussianSpan(threshold=threshold, initial_sigma=0.25)
    )
    params = make(layer, inputs, grid_shape)
    outputs = lambda inputs: jnp.abs(apply(layer, params, inputs, grid_shape)[0]).sum((0, 2))
    reached = np.abs(jax.jit(jax.jacobian(outputs))(inputs)).sum((1, 3)) > 0
    where = np.stack(np.indices(grid_shape), -1).reshape(-1, 2)
    half = np.minimum(np.ceil(math.sqrt(-2 * math.log(threshold)) * 0.25 * np.array([6, 5])), [1, 5])
    expected = (np.abs(where[None] - where[:, None]) <= half).all(-1)
    assert 0 < expected.sum() < expected.size
    np.testing.assert_array_equal(reached, expected)


@pytest.mark.slow
def test_a_span_at_run_time_is_one_that_is_known():
    """Every branch gives what the op gives; and the span has a gradient."""
    grid_shape, inputs = (9, 5), make_inputs((9, 5))
    layer = PositionalSelfAttention(H, values=Translution(), span=GaussianSpan(), use_output=False)
    params = make(layer, inputs, grid_shape)
    run = jax.jit(lambda p: apply(layer, p, inputs, grid_shape, return_weights=True))
    differentiate = jax.jit(jax.grad(lambda p: jnp.sum(apply(layer, p, inputs, grid_shape)[0] ** 2)))
    for sigma in (0.02, 0.1, 0.2, 0.9):
        moved = params | {"span": {"sigma": jnp.full(2, sigma)}}
        outputs, made = run(moved)
        expected = translution(made["weights"], inputs, params["values"]["matrices"], grid_shape=grid_shape)
        np.testing.assert_allclose(outputs, expected.reshape(outputs.shape), atol=1e-5)
        gradient = differentiate(moved)
        assert sigma == 0.02 or np.abs(gradient["span"]["sigma"]).min() > 0


def test_parameters_follow_the_half_span_and_not_the_grid():
    def count(values, grid_shape, cls=0):
        layer = PositionalSelfAttention(H, values=values)
        params = jax.eval_shape(lambda: make(layer, make_inputs(grid_shape, cls), grid_shape, num_class_tokens=cls))
        return sum(math.prod(array.shape) for array in jax.tree.leaves(params["values"]))

    matrix = C * C
    assert count(Translution(), (4, 5)) == 7 * 9 * matrix
    assert count(Translution(), (4, 5), cls=1) == (7 * 9 + 3) * matrix
    assert count(Translution(half_span=(1, 2)), (4, 5)) == count(Translution(half_span=(1, 2)), (9, 9)) == 15 * matrix
    assert count(Translution(share_heads=True), (4, 5)) == 7 * 9 * matrix // H
    assert count(FORMS["low_rank"], (4, 5)) == matrix + C * 4 + 7 * 9 * 4 * H * 2 + H * 2 * C // H
    assert count(FORMS["low_rank, mixing"], (4, 5)) == matrix + C * 4 + 7 * 9 * 4 * H * 2 + H * 2 * C
    assert count(FORMS["general"], (4, 5)) == count(FORMS["general"], (16, 16))


def test_the_form_that_mixes_heads_is_the_mean_of_its_parts(float64):
    """With a V that mixes nothing it is half of the form whose heads have their own."""
    inputs = make_inputs((3, 2))
    plain, mixing = (
        PositionalSelfAttention(H, values=FORMS[form], use_output=False) for form in ("low_rank", "low_rank, mixing")
    )
    params = make(plain, inputs, (3, 2))
    values = dict(params["values"])
    values["joint_up"] = jnp.einsum("hkd,hg->hkgd", values.pop("up"), jnp.eye(H))
    outputs, _ = apply(mixing, params | {"values": values}, inputs, (3, 2))
    np.testing.assert_allclose(2 * outputs, apply(plain, params, inputs, (3, 2))[0], rtol=1e-10)


@pytest.mark.parametrize("form", DIFFERENT)
def test_a_larger_grid_than_the_training(form):
    """Displacements keep their meaning; those that the training had not are not attended by tables."""
    layer = PositionalSelfAttention(H, values=FORMS[form])
    params = make(layer, make_inputs((3, 3)), (3, 3))
    inputs = make_inputs((5, 4))
    outputs = lambda inputs: apply(layer, params, inputs, (5, 4), reference_shape=(3, 3))[0]
    reached = np.abs(jax.jit(jax.jacobian(lambda x: jnp.abs(outputs(x)).sum((0, 2))))(inputs)).sum((1, 3)) > 0
    where = np.stack(np.indices((5, 4)), -1).reshape(-1, 2)
    near = (np.abs(where[None] - where[:, None]) <= 2).all(-1)
    np.testing.assert_array_equal(reached, near if form != "general" else np.ones_like(near))


@pytest.mark.slow
@pytest.mark.parametrize(
    "relative, cls",
    [
        ((False, True), 0),
        ((True, True), 1),
        slow((True, False), 0),
        slow((True, False), 1),
        slow((False, True), 1),
        slow((True, True), 0),
    ],
)
def test_relative_content(float64, relative, cls):
    """Equal matrices are the content term; and only the sides as usual are projected."""
    grid_shape, inputs = (2, 3), make_inputs((2, 3), cls)
    term = RelativeContent(relative_query=relative[0], relative_key=relative[1])
    layer = PositionalSelfAttention(H, terms=(term,))
    usual = PositionalSelfAttention(H)
    params = make(layer, inputs, grid_shape, num_class_tokens=cls)
    kernel = make(usual, inputs, grid_shape, num_class_tokens=cls)["projections"]["kernel"]
    sides = [name for name, is_relative in zip(("query", "key"), relative, strict=True) if is_relative]
    assert params["projections"]["kernel"].shape == (C, 3 - len(sides), H, C // H)
    assert all(params["terms_0"][f"{side}_matrices"].shape == (3, 5, C, H, C // H) for side in sides)

    def with_kernel(kernel, equal):
        parts = {"query": kernel[:, 0], "key": kernel[:, 1]}
        if not equal:
            return {"kernel": kernel, "bias": jnp.zeros((3, H, C // H))}, {}
        terms = {f"{side}_matrices": jnp.broadcast_to(parts[side], (3, 5, *parts[side].shape)) for side in sides}
        terms |= {f"{side}_class_matrices": jnp.stack([parts[side]] * 3) for side in sides if cls}
        kept = jnp.stack([part for name, part in parts.items() if name not in sides] + [kernel[:, 2]], 1)
        return {"kernel": kept, "bias": jnp.zeros((kept.shape[1], H, C // H))}, terms

    def run(layer, equal):
        def outputs(inputs, kernel):
            projections, terms = with_kernel(kernel, equal)
            own = {"projections": projections, "output": params["output"]} | ({"terms_0": terms} if terms else {})
            return apply(layer, own, inputs, grid_shape, num_class_tokens=cls)[0]

        return outputs

    check_equal(run(layer, True), run(usual, False), inputs, kernel)


def test_relative_content_is_added_to_content(float64):
    """Through the weights: softmax of both, times 1 / sqrt(d)."""
    grid_shape, inputs = (2, 3), make_inputs((2, 3))
    layer = PositionalSelfAttention(H, terms=(Content(), RelativeContent()))
    params = make(layer, inputs, grid_shape)
    _, made = apply(layer, params, inputs, grid_shape, return_weights=True)
    kernel, bias = params["projections"]["kernel"], params["projections"]["bias"]

    @jax.jit
    def expected():
        query, key, _ = jnp.einsum("btc,cnhd->nbthd", inputs, kernel) + bias[:, None, None]
        relative = pair_scores(inputs, grid_shape=grid_shape, **params["terms_1"])
        return jax.nn.softmax((jnp.einsum("bthd,bshd->bhts", query, key) + relative) / math.sqrt(C // H))

    np.testing.assert_allclose(made["weights"], expected(), rtol=1e-10)


@pytest.mark.slow
def test_relative_content_within_a_span():
    """Queries, keys and values relative, without any projection; the span cuts all of them."""
    parts = {"terms": (RelativeContent(half_span=(2, 1)),), "values": Translution(half_span=(1, 2))}
    layer = PositionalSelfAttention(H, **parts, span=GaussianSpan(initial_sigma=0.9), use_output=False)
    inputs = make_inputs((5, 6))
    params = make(layer, inputs, (5, 6))
    assert set(params) == {"terms_0", "values", "span"}
    outputs = lambda inputs: jnp.abs(apply(layer, params, inputs, (5, 6))[0]).sum((0, 2))
    reached = np.abs(jax.jit(jax.jacobian(outputs))(inputs)).sum((1, 3)) > 0
    where = np.stack(np.indices((5, 6)), -1).reshape(-1, 2)
    np.testing.assert_array_equal(reached, (np.abs(where[None] - where[:, None]) <= 1).all(-1))


@pytest.mark.parametrize("form", DIFFERENT)
def test_bfloat16_compute_keeps_float32_parameters(form):
    layers = [
        PositionalSelfAttention(H, terms=(RelativeContent(),), values=FORMS[form], dtype=dtype)
        for dtype in (jnp.bfloat16, None)
    ]
    inputs = make_inputs((3, 2))
    params = make(layers[0], inputs, (3, 2))
    outputs, exact = (apply(layer, params, inputs, (3, 2))[0] for layer in layers)
    assert outputs.dtype == jnp.bfloat16
    assert {array.dtype for array in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(outputs.astype(jnp.float32), exact, atol=0.1)


def test_initialisation():
    """Kaiming over the table: U(+-1 / sqrt(c h d)); or each matrix as a linear map."""
    for init, bound in ((kaiming_table, 1 / 64), (fan_in_table, 1 / 8)):
        drawn = init(jax.random.key(0), (7, 7, 64, 2, 32))
        assert 0.99 * bound < float(jnp.abs(drawn).max()) <= bound


@pytest.mark.parametrize(
    "fields, options, message",
    [
        ({"values": Translution(half_span=(1,))}, {}, r"half_span=\(1,\)"),
        ({"values": Translution(half_span=(1, -1))}, {}, r"half_span=\(1, -1\)"),
        ({"values": LowRankTranslution(rank=0)}, {}, "rank=0: "),
        ({"values": GeneralTranslution(num_bases=0)}, {}, "num_bases=0"),
        ({"terms": (RelativeContent(relative_query=False, relative_key=False),)}, {}, r"this is Content\(\)"),
        ({"use_output": False, "head_dim": 2}, {}, "use_output=False .* 6"),
        ({"values": Translution()}, {"points": True}, "positions: .*Translution"),
        (
            {"values": GeneralTranslution(), "span": GaussianSpan()},
            {"points": True},
            "positions: expected None with a span",
        ),
        (
            {"terms": (Content(), Positional(SirenEncoding()))},
            {"points": True},
            "positions: expected None with relative",
        ),
    ],
)
def test_what_does_not_fit(fields, options, message):
    layer, inputs, grid_shape = PositionalSelfAttention(H, **fields), make_inputs((3, 2)), (3, 2)
    if options.pop("points", False):
        grid_shape, options = (6,), {"positions": jnp.zeros((2, 6, 2))}
    with pytest.raises(ValueError, match=message):
        make(layer, inputs, grid_shape, **options)


def test_a_network_of_ones_own():
    layer = PositionalSelfAttention(H, values=GeneralTranslution(num_bases=4, basis=Siren(4, hidden_features=5)))
    params = make(layer, make_inputs((3, 2)), (3, 2))
    assert params["values"]["basis"]["kernel_1"].shape == (2, 5)


@pytest.mark.parametrize("values", [Translution(), slow(LowRankTranslution(rank=2))])
def test_tables_cut_to_a_learned_span(values):
    """Fewer parameters, the same outputs."""
    grid_shape, inputs = (7, 6), make_inputs((7, 6))
    terms = (RelativeContent(relative_key=False),)
    layer = PositionalSelfAttention(H, terms=terms, values=values, span=GaussianSpan(initial_sigma=0.15))
    params = make(layer, inputs, grid_shape)
    half = (2, 2)  # ceil(2.146 x .15 x 6), ceil(2.146 x .15 x 5)
    small = PositionalSelfAttention(
        H, terms=(terms[0].clone(half_span=half),), values=values.clone(half_span=half), span=GaussianSpan()
    )
    cut = cut_tables(params, half)
    assert jax.tree.map(jnp.shape, cut) == jax.tree.map(jnp.shape, make(small, inputs, grid_shape))
    np.testing.assert_allclose(
        apply(small, cut, inputs, grid_shape)[0], apply(layer, params, inputs, grid_shape)[0], atol=1e-6
    )
