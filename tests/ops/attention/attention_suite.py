"""One suite for every implementation of relative attention, whose test subclasses it and says what it is called."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.ops.attention import relative_attention
from posattn_jax.ops.grid import toeplitz
from posattn_jax.ops.span import half_span, span_size
from tests import oracle
from tests.support.compiler import NO_COMPILER
from tests.support.slow import slow

B, H, D = 2, 2, 2
NATIVE = ("native",) if NO_COMPILER is None else ()
SPANS = {
    "no span": {},
    "span": {"threshold": 0.1},
    "no threshold": {"threshold": 0.0},
    "log_add": {"threshold": 0.3, "span_mode": "log_add"},
    "box": {"threshold": 0.3, "span_mode": "box"},
}
GRIDS = [(5,), (3, 2), (2, 1, 3)]
SMALLEST = [(1,), (2,), (2, 1), (1, 1, 1)]
# How additive masks are written.
LOW = {
    "infinity": -np.inf,
    "lowest float64": np.finfo(np.float64).min,
    "lowest float32": np.finfo(np.float32).min,
    "-1e30": -1e30,
    "-1e9": -1e9,
}
# Spans under which the scores that hide are raised: far offsets have a Gaussian of 0.
HIDDEN_UNDER = {
    **SPANS,
    "narrow": {"threshold": 0.0, "sigma": 0.02},
    "narrow log_add": SPANS["log_add"] | {"sigma": 0.02},
}
# Those of a span are tried with one program.
FAST, FURTHER = ("infinity", "lowest float32", "-1e9"), ("lowest float64", "-1e30")
HIDING = [(FAST, "narrow"), (("infinity",), "no span"), slow(FURTHER, "narrow")]
HIDING += [slow(("infinity",), span) for span in HIDDEN_UNDER if span not in ("narrow", "no span")]
CASES = [
    ((3, 2), "no span"),
    ((5,), "log_add"),
    ((3, 2), "box"),
    *((each, "span") for each in ((2, 1, 3), (1,))),
]
CASES += [slow(*each) for each in itertools.product((*GRIDS, *SMALLEST), SPANS) if each not in CASES]


def make_inputs(grid_shape, span=True, per_head=False, covariance="diagonal", batch=B, seed=0, dtype=np.float64):
    """`covariance="full"` makes of sigma a factor whose rows are as long as the sigma would be large."""
    rng = np.random.default_rng([seed, *grid_shape])
    n, p = math.prod(grid_shape), len(grid_shape)
    shapes = {
        "query": (batch, n, H, D),
        "key": (batch, n, H, D),
        "value": (batch, n, H, D),
        "relative_encoding": (*(2 * size - 1 for size in grid_shape), H, D),
        "content_bias": (H, D),
        "position_bias": (H, D),
    }
    inputs = {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    if span:
        sigma_shape = (H, p) if per_head else (p,)
        inputs["sigma"] = (rng.uniform(0.15, 0.5, sigma_shape) * rng.choice([-1, 1], sigma_shape)).astype(dtype)
        if covariance == "full":
            inputs["sigma"] = make_factor(rng, np.atleast_2d(inputs["sigma"]))
    return inputs


def make_factor(rng, sigma):
    """A Cholesky factor [h p p] of random correlations with the deviations sigma [h p]; above the diagonal noise."""
    rows = rng.uniform(-1, 1, (*sigma.shape, sigma.shape[-1])) + np.eye(sigma.shape[-1])
    rows /= np.linalg.norm(np.tril(rows), axis=-1, keepdims=True)
    return (sigma[..., None] * rows).astype(sigma.dtype)


class AttentionSuite:
    """Subclass it as Test..., and set `implementation`."""

    implementation: str
    exact = 1e-10  # how far what is computed in float64 may be off
    single = 1e-6  # and in float32

    def given(self, x):
        """An array as the implementation is given it."""
        return jnp.asarray(x)

    def attend(self, inputs, grid_shape, **options):
        """As `relative_attention`, jitted; numpy arrays are welcome."""
        inputs = {name: array if array is None else self.given(array) for name, array in inputs.items()}
        options |= {name: jnp.asarray(options[name]) for name in ("key_mask", "mask", "segment_ids") if name in options}
        inputs.setdefault("key", None)
        static = {"grid_shape": grid_shape, "implementation": self.implementation}
        if isinstance(inputs.get("sigma"), jax.core.Tracer):
            return relative_attention(**inputs, **static, **options)
        sigma = {"sigma": inputs.pop("sigma")} if "sigma" in inputs else {}
        return jax.jit(lambda x: relative_attention(**x, **sigma, **static, **options))(inputs)

    def bounded(self, options, inputs, grid_shape):
        """The options to give where the sigma of `inputs` is traced."""
        return options

    def check_against_oracle(self, inputs, grid_shape, shown=None, compiled=None, **options):
        """Values and gradients of every input within `exact` of the oracle's.

        `shown`: a mask for the oracle alone, of the pairs that no score of `inputs` hides. `compiled`: what an earlier
        call with the same shapes, spans and options has returned.
        """
        weights = np.random.default_rng(1).normal(size=inputs["query"].shape)
        masks = options if shown is None else options | {"mask": shown & np.asarray(options.get("mask", True))}

        def weighted(x):
            return weights[..., None] * oracle.attention(x, grid_shape, **masks)

        bounded = self.bounded(options, inputs, grid_shape)
        expected, expected_gradients = oracle.value_and_gradients(weighted, inputs)

        @jax.jit
        def differentiate(x):
            def loss(x):
                weighted = weights * self.attend(x, grid_shape, **bounded)
                return weighted.sum(), weighted

            return jax.grad(loss, has_aux=True)(x)

        compiled = compiled or differentiate
        gradients, outputs = compiled(jax.tree.map(jnp.asarray, inputs))
        np.testing.assert_allclose(outputs, expected, rtol=self.exact, atol=self.exact)
        assert set(gradients) == set(expected_gradients)
        for name, gradient in gradients.items():
            np.testing.assert_allclose(
                gradient, expected_gradients[name], rtol=self.exact, atol=self.exact, err_msg=name
            )
        return compiled

    @pytest.mark.parametrize("grid_shape, span", CASES, ids=str)
    def test_values_and_gradients(self, float64, grid_shape, span):
        self.check_against_oracle(make_inputs(grid_shape, span != "no span", batch=1), grid_shape, **SPANS[span])

    @pytest.mark.parametrize("grid_shape", [(3, 2), slow((5,)), slow((2, 1, 2))], ids=str)
    def test_causal_and_padding(self, float64, grid_shape):
        mask = np.random.default_rng(2).random((B, math.prod(grid_shape))) < 0.6
        self.check_against_oracle(make_inputs(grid_shape), grid_shape, is_causal=True, key_mask=mask, scale=0.7)

    @pytest.mark.parametrize(
        "grid_shape, is_causal",
        [
            ((3, 2), (False, True)),
            slow((3, 2), (True, True)),
            slow((2, 1, 3), (True, False, True)),
        ],
        ids=str,
    )
    def test_causal_dimensions(self, float64, grid_shape, is_causal):
        self.check_against_oracle(make_inputs(grid_shape), grid_shape, is_causal=is_causal)

    @pytest.mark.parametrize("grid_shape", [(5,), slow((3, 2))], ids=str)
    def test_segments(self, float64, grid_shape):
        """Packed in one row, and apart in another; the last has a segment of one token."""
        segment_ids = np.array([[7, 7, 7, -1, -1, 3], [1, 0, 1, 0, 2, 1]])[:, : math.prod(grid_shape)]
        self.check_against_oracle(make_inputs(grid_shape), grid_shape, segment_ids=segment_ids, threshold=0.01)

    @pytest.mark.parametrize("grid_shape", [(3, 2), slow((5,))], ids=str)
    def test_sigma_per_head(self, float64, grid_shape):
        """And both heads share one of keys and values."""
        inputs = make_inputs(grid_shape, per_head=True)
        inputs |= {name: inputs[name][:, :, :1] for name in ("key", "value")}
        self.check_against_oracle(inputs, grid_shape, threshold=0.2)

    def test_reference_shape(self, float64):
        self.check_against_oracle(make_inputs((4, 3)), (4, 3), reference_shape=(2, 3))

    @pytest.mark.parametrize("left_out", ["key", *map(slow, ("relative_encoding", "content_bias", "position_bias"))])
    def test_terms_left_out(self, float64, left_out):
        inputs = make_inputs((3, 2))
        del inputs[left_out]
        inputs.pop({"key": "content_bias", "relative_encoding": "position_bias"}.get(left_out, ""), None)
        self.check_against_oracle(inputs, (3, 2))

    @pytest.mark.parametrize(
        "left_out, span_mode",
        [
            ((), "multiply"),
            slow(("relative_encoding", "position_bias"), "log_add"),
            slow(("key", "content_bias"), "multiply"),
        ],
        ids=["all terms", "and content", "and positions"],
    )
    def test_relative_bias(self, float64, left_out, span_mode):
        inputs = make_inputs((3, 2), batch=1)
        inputs["relative_bias"] = np.random.default_rng(3).normal(size=(5, 3, H))
        inputs = {name: array for name, array in inputs.items() if name not in left_out}
        self.check_against_oracle(inputs, (3, 2), span_mode=span_mode, scale=0.7)

    def test_relative_bias_alone(self, float64):
        """Weights of positions alone."""
        inputs = make_inputs((4,), span=False)
        inputs = {"query": inputs["query"], "value": inputs["value"]}
        inputs["relative_bias"] = np.random.default_rng(3).normal(size=(7, H))
        self.check_against_oracle(inputs, (4,), is_causal=True)

    @pytest.mark.parametrize("lows, span", HIDING)
    def test_a_relative_bias_that_hides(self, float64, lows, span):
        """As a mask, whatever G is: a few offsets, and for the first head all that the last row of queries has."""
        grid_shape, options = (3, 2), dict(HIDDEN_UNDER[span])
        inputs = make_inputs(grid_shape, span != "no span", per_head=span == "log_add", batch=1)
        if "sigma" in options:
            inputs["sigma"] = np.full(2, options.pop("sigma"))
        bias = np.random.default_rng(3).normal(size=(5, 3, H))
        hidden = np.random.default_rng(4).random(bias.shape) < 0.3
        hidden[:3, :, 0] = True
        shown = np.moveaxis(np.asarray(toeplitz(jnp.asarray(~hidden), grid_shape)), -1, 0)[None]
        assert not shown[0, 0, 4:].any() and shown[0].any((0, 2)).all()
        compiled = None
        for low in lows:
            inputs["relative_bias"] = np.where(hidden, LOW[low], bias)
            compiled = self.check_against_oracle(inputs, grid_shape, shown, compiled, scale=0.7, **options)

    @pytest.mark.parametrize("low", [-jnp.inf, slow(jnp.finfo(jnp.float32).min)], ids=str)
    def test_values_by_hand(self, low):
        """Two tokens, q = k = 1, v = (0, 1); key 1 is hidden from query 0."""
        ones = jnp.ones((1, 2, 1, 4))
        inputs = {"query": ones, "key": ones, "value": ones * jnp.arange(2.0)[:, None, None]}
        inputs["relative_bias"] = jnp.array([[0.0], [0.0], [low]])

        def outputs(sigma):
            return self.attend(inputs | {"sigma": sigma}, (2,), **self.bounded({}, inputs | {"sigma": sigma}, (2,)))

        np.testing.assert_allclose(outputs(jnp.array([0.05]))[0, :, 0, 0], [0, 0.8808], atol=1e-4)
        sigma = jnp.array([0.5])
        bounded = self.bounded({}, inputs | {"sigma": sigma}, (2,))
        total = jax.jit(jax.grad(lambda sigma: self.attend(inputs | {"sigma": sigma}, (2,), **bounded).sum()))
        np.testing.assert_allclose(total(sigma) / 4, [-0.27710], atol=1e-4)

    @pytest.mark.parametrize("dtype", [slow("bfloat16"), slow("float16"), "float32"])
    def test_the_lowest_number_hides(self, dtype):
        """In the dtype of all arrays: values, and finite gradients, are those of the offsets that are left."""
        inputs = make_inputs((9,), span=False, dtype=np.float32)
        inputs = {name: jnp.asarray(array, dtype) for name, array in inputs.items()}
        near = np.abs(np.arange(-8, 9)) <= 2

        def differentiated(span):
            def total(x, bias):
                outputs = self.attend(x | {"relative_bias": bias} | span, (9,), threshold=0.0)
                return outputs.astype(jnp.float32).sum(), outputs

            return jax.jit(jax.grad(total, has_aux=True))

        def results(low, differentiate):
            bias = jnp.where(near[:, None], jnp.zeros(H, dtype), jnp.asarray(low, dtype))
            return differentiate(inputs, bias)

        def check(found, expected):
            assert np.isfinite(found).all()
            np.testing.assert_array_equal(found, expected)

        without, narrow = map(differentiated, ({}, {"sigma": jnp.array([0.05])}))
        for each in (without, narrow):  # whose G is 1e-22 at the first hidden offset
            jax.tree.map(check, results(jnp.finfo(dtype).min, each), results(-jnp.inf, each))
        exact = {name: array.astype(jnp.float32) for name, array in inputs.items()}
        mask = np.abs(np.subtract.outer(np.arange(9), np.arange(9)))[None, None] <= 2
        static = {"grid_shape": (9,), "mask": jnp.asarray(mask), "implementation": "reference"}
        expected = jax.jit(lambda x: relative_attention(**x, **static))(exact)
        tolerance = 1e-5 if dtype == "float32" else 0.05
        gradients, outputs = results(-jnp.inf, without)
        np.testing.assert_allclose(outputs.astype(jnp.float32), expected, atol=tolerance)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradients))

    @pytest.mark.parametrize("is_causal", [slow(False), True])
    def test_without_positions_is_dot_product_attention(self, is_causal):
        inputs = make_inputs((7,), dtype=np.float32)
        q, k, v = (jnp.asarray(inputs[name]) for name in ("query", "key", "value"))
        expected = jax.nn.dot_product_attention(q, k, v, is_causal=is_causal)
        outputs = self.attend({"query": q, "key": k, "value": v}, (7,), is_causal=is_causal)
        np.testing.assert_allclose(outputs, expected, rtol=10 * self.single, atol=self.single)

    def test_a_very_wide_span_is_no_span(self, float64):
        inputs = make_inputs((3, 4), span=False)
        wide = self.attend(inputs | {"sigma": jnp.array([1e6, 1e6])}, (3, 4))
        np.testing.assert_allclose(wide, self.attend(inputs, (3, 4)), rtol=self.exact, atol=self.exact)

    def test_translation_equivariance(self, float64):
        """What moves over an otherwise masked canvas takes its outputs along."""
        inputs = make_inputs((6, 5), batch=1)
        sigma = jnp.asarray(inputs.pop("sigma"))
        attend = jax.jit(lambda x, mask: self.attend(x | {"sigma": sigma}, (6, 5), key_mask=mask))

        def placed(row, column):
            def move(array):
                content = array.reshape(6, 5, H, D)[:3, :2]
                return np.zeros((6, 5, H, D)), content

            moved = dict(inputs)
            for name in ("query", "key", "value"):
                canvas, content = move(inputs[name][0])
                canvas[row : row + 3, column : column + 2] = content
                moved[name] = canvas.reshape(1, 30, H, D)
            mask = np.zeros((6, 5), bool)
            mask[row : row + 3, column : column + 2] = True
            outputs = attend(moved, mask.reshape(1, 30))
            return outputs.reshape(6, 5, H, D)[row : row + 3, column : column + 2]

        expected = placed(0, 0)
        for row, column in [(1, 0), (2, 3), (3, 2)]:
            np.testing.assert_allclose(placed(row, column), expected, rtol=self.exact, atol=0.01 * self.exact)

    @pytest.mark.parametrize(
        "grid_shape, sigma", [slow((9,), [0.1]), ((5, 6), [0.15, 0.3]), slow((3, 1, 5), [0.2, 0.3, 0.2])]
    )
    def test_receptive_field_is_the_box(self, float64, grid_shape, sigma):
        inputs = make_inputs(grid_shape, span=False, batch=1) | {"sigma": jnp.asarray(sigma)}
        half = (np.asarray(span_size(jnp.asarray(sigma), 0.1, grid_shape)) - 1) // 2
        total = lambda value: self.attend(inputs | {"value": value}, grid_shape).sum((0, 2, 3))
        jacobian = jax.jit(jax.jacobian(total))
        reached = np.abs(jacobian(jnp.asarray(inputs["value"]))).sum((1, 3, 4)) > 0
        where = np.array(oracle.positions(grid_shape))
        expected = np.all(np.abs(where[None] - where[:, None]) <= half, axis=-1)
        np.testing.assert_array_equal(reached, expected)
        assert not expected.all()

    def test_a_query_without_keys_gives_zero(self):
        inputs = jax.tree.map(jnp.asarray, make_inputs((5,), dtype=np.float32))
        mask = jnp.zeros((B, 5), bool).at[0].set(True)
        options = self.bounded({"key_mask": mask}, inputs, (5,))

        def total(x):
            outputs = self.attend(x, (5,), **options)[1]
            return outputs.sum(), outputs

        gradients, outputs = jax.jit(jax.grad(total, has_aux=True))(inputs)
        np.testing.assert_array_equal(outputs, 0)
        for gradient in jax.tree.leaves(gradients):
            np.testing.assert_array_equal(gradient, 0)

    def test_bfloat16(self):
        inputs = make_inputs((6, 4), dtype=np.float32)
        half = {name: jnp.asarray(array, jnp.bfloat16) for name, array in inputs.items() if name != "sigma"}
        exact = {name: array.astype(jnp.float32) for name, array in half.items()}
        sigma = {"sigma": jnp.asarray(inputs["sigma"])}
        outputs = self.attend(half | sigma, (6, 4))
        assert outputs.dtype == jnp.bfloat16
        np.testing.assert_allclose(outputs.astype(jnp.float32), self.attend(exact | sigma, (6, 4)), atol=0.05)

    def test_bad_sigma(self):
        inputs = jax.tree.map(jnp.asarray, make_inputs((4,), dtype=np.float32))
        for bad in (0.0, np.nan, np.inf):
            with pytest.raises(ValueError, match="sigma"):
                self.attend(inputs | {"sigma": jnp.array([bad])}, (4,))

        def total(sigma):
            outputs = self.attend(inputs | {"sigma": sigma}, (4,), span_bound=(2,))
            return outputs.sum(), outputs

        traced = jax.jit(jax.grad(total, has_aux=True))
        gradient, of_itself = traced(jnp.zeros(1))  # each query attends to itself
        np.testing.assert_allclose(of_itself, inputs["value"], atol=self.single)
        assert np.isfinite(gradient).all()
        assert np.isnan(traced(jnp.array([np.nan]))[1]).all()

    def test_a_traced_span_over_its_bound_is_nan(self):
        inputs = jax.tree.map(jnp.asarray, make_inputs((6, 5), dtype=np.float32))
        traced = jax.jit(lambda sigma: self.attend(inputs | {"sigma": sigma}, (6, 5), span_bound=(2, 3)))
        expected = self.attend(inputs | {"sigma": jnp.array([0.15, 0.3])}, (6, 5))
        np.testing.assert_allclose(traced(jnp.array([0.15, 0.3])), expected, rtol=10 * self.single, atol=self.single)
        assert np.isnan(traced(jnp.array([0.15, 0.4]))).all()


class AllPairsSuite(AttentionSuite):
    """For the implementations that hold a weight for every pair, and so can return and drop them."""

    @pytest.mark.parametrize("span", ["span", slow("log_add"), slow("no span")])
    @pytest.mark.parametrize("sizes", [(1, H), *map(slow, ((B, H), (B, 1), (1, 1)))], ids=str)
    def test_mask_and_bias_of_pairs(self, float64, sizes, span):
        rng = np.random.default_rng(4)
        inputs = make_inputs((3, 2), span != "no span") | {"bias": rng.normal(size=(*sizes, 6, 6))}
        mask = rng.random((*sizes, 6, 6)) < 0.6
        self.check_against_oracle(inputs, (3, 2), mask=mask, scale=0.7, **SPANS[span])

    @pytest.mark.parametrize("lows, span", HIDING)
    def test_a_bias_that_hides(self, float64, lows, span):
        """As a mask, whatever G is; a query may be left with no key."""
        inputs = make_inputs((3, 2), span != "no span", per_head=span == "log_add")
        options = dict(HIDDEN_UNDER[span])
        if "sigma" in options:
            inputs["sigma"] = np.full(2, options.pop("sigma"))
        rng = np.random.default_rng(4)
        shown = rng.random((B, H, 6, 6)) < 0.6
        shown[0, :, 2] = False
        bias, mask, compiled = rng.normal(size=shown.shape), rng.random((1, H, 6, 6)) < 0.8, None
        for low in lows:
            inputs["bias"] = np.where(shown, bias, LOW[low])
            compiled = self.check_against_oracle(inputs, (3, 2), shown, compiled, mask=mask, scale=0.7, **options)

    @pytest.mark.parametrize("dtype", [slow("bfloat16"), slow("float16"), "float32"])
    def test_the_lowest_number_as_a_bias(self, dtype):
        """It hides in its own dtype, as -inf and a mask do; numbers that float16 has room for do not overflow."""
        inputs = {
            name: jnp.asarray(x, dtype) for name, x in make_inputs((5,), dtype=np.float32).items() if name != "sigma"
        }
        sigma, shown = jnp.array([0.05]), np.random.default_rng(4).random((1, 1, 5, 5)) < 0.5

        def differentiated(**given):
            def total(x, sigma, more):
                outputs = self.attend(x | {"sigma": sigma}, (5,), threshold=0.0, scale=0.1, **given, **more)
                return outputs.astype(jnp.float32).sum(), outputs

            run = jax.jit(jax.grad(total, (0, 1), has_aux=True))
            return lambda **more: run(inputs, sigma, more)

        expected, run = differentiated(mask=shown)(), differentiated()
        for low in (-jnp.inf, jnp.finfo(dtype).min):
            found = run(bias=jnp.where(shown, 0, jnp.asarray(low, dtype)))
            jax.tree.map(np.testing.assert_array_equal, found, expected)
        low = jax.tree.leaves(differentiated(span_mode="log_add")(bias=jnp.full((1, 1, 5, 5), -1e4, dtype)))
        assert all(jnp.isfinite(x).all() for x in low) and all(jnp.any(x != 0) for x in low[-1:])

    def test_weights_are_a_distribution_over_attended_keys(self):
        inputs = make_inputs((4, 3), dtype=np.float32)
        mask = np.random.default_rng(0).random((B, 12)) < 0.7
        mask[:, 0] = True
        outputs, weights = self.attend(inputs, (4, 3), key_mask=mask, threshold=0.0, return_weights=True)
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
        assert (np.asarray(weights) > 0).any(axis=(1, 2))[mask].all()
        assert (np.asarray(weights).transpose(0, 3, 1, 2)[~mask] == 0).all()
        np.testing.assert_allclose(
            outputs, jnp.einsum("bhts,bshd->bthd", weights, inputs["value"]), rtol=1e-4, atol=1e-5
        )

    def test_dropout(self):
        inputs = make_inputs((16, 8), dtype=np.float32)
        options = {"dropout_rate": 0.25, "dropout_rng": jax.random.key(3), "return_weights": True}
        _, kept = self.attend(inputs, (16, 8), threshold=0.0, **options)
        _, weights = self.attend(inputs, (16, 8), threshold=0.0, return_weights=True)
        dropped = np.asarray(kept) == 0
        assert abs(dropped.mean() - 0.25) < 0.01
        np.testing.assert_allclose(np.asarray(kept)[~dropped], np.asarray(weights)[~dropped] / 0.75, rtol=1e-4)
        inputs = jax.tree.map(jnp.asarray, inputs)
        static = {"grid_shape": (16, 8), "threshold": 0.0, "implementation": "reference"} | options
        reference = jax.jit(lambda x: relative_attention(**x, **static))(inputs)
        np.testing.assert_array_equal(dropped, np.asarray(reference[1]) == 0)


class LocalSuite(AttentionSuite):
    """For the implementations that hold no weight outside the span, and say what they cannot do."""

    @pytest.mark.parametrize(
        "options, named",
        [
            ({"return_weights": True}, "return_weights"),
            ({"dropout_rate": 0.5, "dropout_rng": jax.random.key(0)}, "dropout"),
            ({"mask": np.ones((1, 1, 4, 4), bool)}, "mask, bias or other scores of pairs"),
        ],
        ids=["weights", "dropout", "mask"],
    )
    def test_what_needs_all_pairs_is_refused(self, options, named):
        message = f'implementation="{self.implementation}" does not support {named}'
        with pytest.raises(ValueError, match=message):
            self.attend(make_inputs((4,), dtype=np.float32), (4,), **options)


class StaticSpanSuite(LocalSuite):
    """For the local implementations whose shapes depend on the span: its bound is tight where sigma is traced."""

    def bounded(self, options, inputs, grid_shape):
        if "sigma" not in inputs:
            return options
        threshold, reference_shape = options.get("threshold", 0.1), options.get("reference_shape")
        half = half_span(jnp.asarray(inputs["sigma"]), threshold, grid_shape, reference_shape)
        bound = np.asarray(half).reshape(-1, len(grid_shape)).max(0)
        return {"span_bound": tuple(int(reach) for reach in bound)} | options

    @pytest.mark.parametrize(
        "grid_shape, sigma, half",
        [
            ((5, 3), [0.2, 0.2], (2, 1)),
            slow((4,), [0.4], (3,)),
            slow((5,), [0.2], (2,)),
            slow((3, 2, 1), [0.2, 0.2, 0.1], (1, 1, 0)),
        ],
        ids=str,
    )
    def test_a_patch_as_large_as_the_grid(self, float64, grid_shape, sigma, half):
        inputs = make_inputs(grid_shape, span=False, batch=1) | {"sigma": np.array(sigma)}
        assert self.bounded({}, inputs, grid_shape)["span_bound"] == half
        self.check_against_oracle(inputs, grid_shape, is_causal=True)

    def test_a_traced_sigma_without_bound(self):
        inputs = jax.tree.map(jnp.asarray, make_inputs((4,), dtype=np.float32))
        message = f'implementation="{self.implementation}" needs span_bound where sigma is traced'
        with pytest.raises(ValueError, match=message):
            jax.jit(lambda x: self.attend(x, (4,)))(inputs)

    @pytest.mark.parametrize("bound", [(3, 2), slow((5, 1)), (9, 9)], ids=str)
    def test_a_bound_larger_than_the_span_changes_nothing(self, float64, bound):
        inputs = jax.tree.map(jnp.asarray, make_inputs((6, 4), span=False) | {"sigma": np.array([0.15, 0.1])})
        traced = jax.jit(lambda x: self.attend(x, (6, 4), span_bound=bound))
        np.testing.assert_allclose(traced(inputs), self.attend(inputs, (6, 4)), rtol=self.exact, atol=self.exact)

    @pytest.mark.parametrize("per_head", [False, slow(True)])
    def test_equals_the_reference(self, per_head):
        grid_shape = (7, 2, 5)
        inputs = jax.tree.map(jnp.asarray, make_inputs(grid_shape, per_head=per_head, dtype=np.float32))
        mask = np.random.default_rng(2).random((B, 70)) < 0.8
        options = self.bounded({"key_mask": jnp.asarray(mask)}, inputs, grid_shape)
        weights = np.random.default_rng(1).normal(size=inputs["value"].shape).astype(np.float32)

        def differentiate(implementation):
            def loss(x):
                outputs = relative_attention(**x, grid_shape=grid_shape, implementation=implementation, **options)
                return (weights * outputs).sum(), outputs

            return jax.jit(jax.grad(loss, has_aux=True))(inputs)

        def check(actual, expected):
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)

        jax.tree.map(check, differentiate(self.implementation), differentiate("reference"))


class KernelSuite(LocalSuite):
    """For kernels, which have a rule of their own for `jax.vmap`."""

    def test_vmapped(self, float64):
        """As seeds that train together: every array, and the span, has an axis of its own."""
        grid_shape, rng = (3, 5), np.random.default_rng(6)
        inputs = jax.tree.map(jnp.asarray, make_inputs(grid_shape, batch=1))
        both = {name: x + jnp.asarray(rng.normal(size=(2, *x.shape))) for name, x in inputs.items() if name != "sigma"}
        both["sigma"] = inputs["sigma"] * jnp.array([1.0, 1.4])[:, None]

        def results(arrays, attend):
            outputs, pull_back = jax.vjp(lambda arrays: attend(arrays, grid_shape, span_bound=(2, 4)), arrays)
            return outputs, pull_back(jnp.cos(outputs))[0]

        def reference(arrays, grid_shape, **options):
            return relative_attention(**arrays, grid_shape=grid_shape, **options, implementation="reference")

        found = jax.jit(jax.vmap(lambda arrays: results(arrays, self.attend)))(both)
        alone = jax.jit(lambda arrays: results(arrays, reference))
        for i in range(2):
            expected = alone({name: x[i] for name, x in both.items()})
            jax.tree.map(
                lambda x, y, i=i: np.testing.assert_allclose(x[i], y, rtol=self.exact, atol=self.exact), found, expected
            )


class FusedTpuSuite(KernelSuite):
    """For the kernels for TPUs, which have no segments and no causal single dimensions, and say so."""

    test_causal_dimensions = None
    test_segments = None

    @pytest.mark.parametrize(
        "options, named",
        [
            ({"return_weights": True}, "return_weights"),
            ({"dropout_rate": 0.5, "dropout_rng": jax.random.key(0)}, "dropout"),
            ({"mask": np.ones((1, 1, 4, 4), bool)}, "mask, bias or other scores of pairs"),
            ({"segment_ids": np.zeros((B, 4), np.int32)}, "segment_ids"),
            ({"is_causal": (True, False)}, "is_causal of single dimensions"),
        ],
        ids=["weights", "dropout", "mask", "segments", "causal dimension"],
    )
    def test_what_needs_all_pairs_is_refused(self, options, named):
        with pytest.raises(ValueError, match=f'implementation="fused" .*{named}'):
            self.attend(make_inputs((2, 2), dtype=np.float32), (2, 2), **options)
