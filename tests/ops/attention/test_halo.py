"""A grid cut over devices: values and gradients against the oracle and one device, what is refused, what it costs."""

import logging
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from benchmarks.compilers.halo import collective_bytes, compile_cut
from posattn_jax.ops.attention import exchange_bytes, halo, halo_attention, relative_attention
from posattn_jax.ops.grid import toeplitz
from posattn_jax.ops.span import half_span
from tests.ops.attention.attention_suite import B, D, H, StaticSpanSuite, make_inputs
from tests.support.slow import slow


def mesh_of(num_devices):
    axis = (AxisType.Auto,)
    return jax.make_mesh((num_devices,), ("grid",), axis_types=axis, devices=jax.devices()[:num_devices])


class Cut(StaticSpanSuite):
    """The suite's check, with the grid cut over the mesh in scope and the tightest bound."""

    implementation = "auto"

    def attend(self, inputs, grid_shape, **options):
        options = {name: jnp.asarray(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
        return halo_attention(**inputs, grid_shape=grid_shape, implementation=self.implementation, **options)


def tight_bound(sigma, grid_shape, reference_shape=None):
    half = np.asarray(half_span(jnp.asarray(sigma), 0.1, grid_shape, reference_shape)).reshape(-1, len(grid_shape))
    return tuple(half.max(0).astype(int).tolist())


@pytest.mark.parametrize(
    "grid_shape, num_devices, sigma, hops, options",
    [
        ((13,), 4, [0.2], 2, {}),
        ((7, 2), 2, [0.15, 0.6], 1, {"is_causal": True, "masked": True}),
        slow((5, 1, 2), 8, [[0.1, 0.2, 0.3], [0.2, 0.2, 0.3]], 2, {"span_mode": "log_add", "scale": 0.7}),
    ],
    ids=["1d-two-hops", "2d-causal-padding", "3d-per-head-fewer-rows-than-devices"],
)
@pytest.mark.parametrize("implementation", ["tiled", "native"])
def test_values_and_gradients_are_the_oracles(float64, grid_shape, num_devices, sigma, hops, options, implementation):
    options, cut = dict(options), Cut()
    cut.implementation = implementation
    if options.pop("masked", False):
        options["key_mask"] = np.random.default_rng(2).random((1, math.prod(grid_shape))) < 0.7
    inputs = make_inputs(grid_shape, span=False, batch=1) | {"sigma": np.array(sigma)}
    exchange = halo.plan_exchange(grid_shape, tight_bound(sigma, grid_shape), num_devices)
    assert len(exchange.takes) == hops and not exchange.gathers
    with jax.set_mesh(mesh_of(num_devices)):
        cut.check_against_oracle(inputs, grid_shape, **options)


@pytest.mark.parametrize("implementation", ["tiled", "native", slow("dense")])
def test_a_relative_bias_that_hides(float64, implementation):
    """As a mask of the offsets, of tables that hold only those within the bound."""
    grid_shape = (13,)
    inputs = make_inputs(grid_shape, span=False, batch=1) | {"sigma": np.array([0.1])}
    hidden = np.random.default_rng(2).random((25, H)) < 0.4
    hidden[10:, 0] = True  # the first two places see nothing
    inputs["relative_bias"] = np.where(hidden, -np.inf, 0.5)
    shown = np.moveaxis(np.asarray(toeplitz(jnp.asarray(~hidden), grid_shape)), -1, 0)[None]
    cut = Cut()
    cut.implementation = implementation
    with jax.set_mesh(mesh_of(4)):
        cut.check_against_oracle(inputs, grid_shape, shown)


def check_against_one_device(grid_shape, num_devices, implementation, seed=0, bound=None, **options):
    """Values and gradients of every array, beta too, within 1e-10 of those of "dense" on one device."""
    rng = np.random.default_rng(seed)
    inputs = make_inputs(grid_shape, seed=seed, **options.pop("inputs", {}))
    inputs["relative_bias"] = rng.normal(size=(*(2 * size - 1 for size in grid_shape), H))
    inputs = jax.tree.map(jnp.asarray, inputs | options.pop("arrays", {}))
    factors = jnp.asarray(rng.normal(size=inputs["value"].shape))

    def differentiate(attend, **fixed):
        def loss(x):
            outputs = attend(**x, grid_shape=grid_shape, **options, **fixed)
            return (outputs * factors).sum(), outputs

        return jax.jit(jax.grad(loss, has_aux=True))(inputs)

    gradients, outputs = differentiate(relative_attention, implementation="dense")
    with jax.set_mesh(mesh_of(num_devices)):
        cut_gradients, cut_outputs = differentiate(halo_attention, implementation=implementation, span_bound=bound)
    np.testing.assert_allclose(cut_outputs, outputs, rtol=1e-10, atol=1e-10)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(cut_gradients[name], gradient, rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "grid_shape, num_devices, implementation",
    [slow((6, 2), 4, "dense"), ((3, 2), 8, "tiled"), ((3, 2), 8, "native")],
    ids=["dense", "tiled-fewer-rows-than-devices", "native-fewer-rows-than-devices"],
)
def test_gathered_is_as_one_device(float64, grid_shape, num_devices, implementation):
    """Without a bound all keys may be needed."""
    check_against_one_device(grid_shape, num_devices, implementation, span_mode="log_add", threshold=0.0)


# What is asked for next to a half-span along the first dimension: of 0, 1, all rows of a neighbour, one of the next.
ASKED = (
    {"inputs": {"covariance": "full", "per_head": True}, "is_causal": True},
    {"inputs": {"per_head": True}, "span_mode": "log_add", "key_mask": 0.8},
    {"reference_shape": 2, "scale": 0.7},
    {},
)


@pytest.mark.slow
@pytest.mark.parametrize("asked", range(len(ASKED)))
@pytest.mark.parametrize(
    "grid_shape, num_devices, implementation",
    [
        ((13,), 4, "tiled"),
        ((40,), 8, "dense"),
        ((150,), 2, "native"),
        ((11, 3), 2, "dense"),
        ((19, 2), 8, "tiled"),
        ((19, 2), 8, "native"),
        ((9, 2, 3), 4, "auto"),
        ((21, 2, 2), 8, "tiled"),
        ((21, 2, 2), 8, "native"),
    ],
    ids=str,
)
def test_values_and_gradients_are_those_of_one_device(float64, grid_shape, num_devices, implementation, asked):
    options, rows = dict(ASKED[asked]), -(-grid_shape[0] // num_devices)
    if "key_mask" in options:
        kept = np.random.default_rng(3).random((B, math.prod(grid_shape))) < options["key_mask"]
        options["key_mask"] = jnp.asarray(kept)
    if "reference_shape" in options:
        options["reference_shape"] = tuple(size + options["reference_shape"] for size in grid_shape)
    half = (0, 1, rows, min(rows + 1, grid_shape[0] - 1))[asked]
    unit = options.get("reference_shape", grid_shape)
    sigma = make_inputs(grid_shape, **options.get("inputs", {}))["sigma"]
    first = sigma[:, 0, 0] if sigma.ndim == 3 else sigma[..., 0]  # of L's first row the only entry
    first[...] = (half - 0.5) / (unit[0] - 1) / math.sqrt(-2 * math.log(0.1)) if half else 0.0
    bound = tight_bound(sigma, grid_shape, unit)
    assert bound[0] == half
    check_against_one_device(
        grid_shape, num_devices, implementation, seed=asked, bound=bound, arrays={"sigma": sigma}, **options
    )


@pytest.mark.parametrize("implementation", ["native", slow("tiled")])
def test_a_span_as_wide_as_a_padded_grid_meets_no_other_encodings(implementation):
    """14 rows of keys, of which one is padding: E of 13 rows is not read beyond its ends, where another E is."""
    inputs = {name: jnp.asarray(x) for name, x in make_inputs((13,), dtype=np.float32).items()}
    inputs["sigma"], encoding = jnp.array([0.9]), inputs.pop("relative_encoding")
    options = {"grid_shape": (13,), "span_mode": "log_add"}
    expected = relative_attention(**inputs, relative_encoding=encoding, **options)

    @jax.jit
    @jax.vmap
    def cut(encoding):
        return halo_attention(**inputs, relative_encoding=encoding, implementation=implementation, **options)

    with jax.set_mesh(mesh_of(2)):
        others = jnp.full_like(encoding, jnp.nan)
        outputs = cut(jnp.stack([others, encoding, others]))
    np.testing.assert_allclose(outputs[1], expected, rtol=1e-5, atol=1e-5)


def test_a_traced_span_over_its_bound_is_nan():
    inputs = jax.tree.map(jnp.asarray, make_inputs((8,), dtype=np.float32))
    with jax.set_mesh(mesh_of(4)):
        cut = jax.jit(lambda sigma: halo_attention(**inputs | {"sigma": sigma}, grid_shape=(8,), span_bound=(2,)))
        assert np.isfinite(cut(jnp.array([0.1]))).all()
        assert np.isnan(cut(jnp.array([0.2]))).all()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"axis_name": "rows"}, r'axis_name="rows": .*grid'),
        (
            {"implementation": "patch"},
            'implementation="patch": .*tiled',
        ),
        ({"sigma": None}, "sigma is None"),
        ({"sigma": np.array([0.5])}, r"span_bound=\(2,\): .*\(8,\)"),
        ({"span_bound": (2, 2)}, r"span_bound=\(2, 2\)"),
        ({"relative_encoding": np.ones((3, H, D))}, r"relative_encoding .*\(3, 2, 2\): .*\(5, 2, 2\)"),
        ({"key": np.ones((B, 8, H, D))}, r"key .*\(2, 8, 2, 2\): .*\(2, 9, 2, 2\)"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_cut_is_refused(unchecked, change, message):
    inputs = make_inputs((9,), span=False, dtype=np.float32) | {"sigma": np.array([0.1])}
    arguments = {"grid_shape": (9,), "span_bound": (2,)} | inputs | change
    arguments = {name: jnp.asarray(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
    with jax.set_mesh(mesh_of(4)), pytest.raises(ValueError, match=message):
        halo_attention(**arguments)


def test_all_gather_is_announced_once(caplog):
    inputs = jax.tree.map(jnp.asarray, make_inputs((16,), dtype=np.float32))
    halo._say_that_it_gathers.cache_clear()
    with jax.set_mesh(mesh_of(4)), caplog.at_level(logging.WARNING):
        for bound in ((7,), (8,), (8,)):
            jax.eval_shape(lambda x, bound=bound: halo_attention(**x, grid_shape=(16,), span_bound=bound), inputs)
    (record,) = caplog.records
    assert "12 rows in 2 hops" in record.getMessage()
    assert "an all-gather of 12 rows is cheaper" in record.getMessage()


def test_cost_of_the_exchange():
    row_bytes = 2 * 2 * 5 * 3 * 4 * 8
    sizes = {"batch_size": 2, "num_heads": 3, "head_dim": 4, "itemsize": 8}

    def cost(span_bound, num_devices, rows=16):
        sent = exchange_bytes((rows, 5), span_bound, num_devices, **sizes)
        return sent["hops"], sent["halo"] / row_bytes, sent["all_gather"] / row_bytes

    assert cost((3, 1), 4) == (1, 6, 12)
    assert cost((3, 1), 2) == (1, 3, 8)  # each has one neighbour
    assert cost((5, 1), 4) == (2, 9, 12)  # the second of four: four rows of the first, five of the others
    assert cost((8, 1), 4) == (2, 12, 12)  # half of the grid: a device in the middle sends to all
    assert cost(None, 4) == (3, 12, 12)
    assert cost((0, 1), 4) == (0, 0, 12)
    assert cost((3, 1), 1) == (0, 0, 0)
    assert cost((3, 1), 4, rows=13) == (1, 6, 12)  # four rows a device, three of them empty
    assert cost((2, 1), 8, rows=3) == (2, 4, 7)
    with pytest.raises(ValueError, match="num_devices=0: expected at least 1"):
        cost((3, 1), 0)


@pytest.mark.parametrize(
    "line, sent",
    [
        ("%p.1 = f32[2,3]{1,0} collective-permute(%x), source_target_pairs={{0,1},{1,2}}", (24, 0)),
        ("%g = bf16[4,3]{1,0} all-gather(%x), channel_id=1", (18, 0)),
        ("%g = f64[3]{0} reduce-scatter(%x), channel_id=1", (72, 0)),
        ("%r = (f32[4]{0}, f32[], /*index=5*/f32[3]{0}) all-reduce(%x, %y, %z), channel_id=1", (0, 48)),
        ("%a = f32[4]{0} add(%x, %y)", (0, 0)),
    ],
    ids=lambda value: value.split("(")[0].split(" ")[-1] if isinstance(value, str) else "",
)
def test_bytes_are_read_from_a_program(line, sent):
    assert tuple(collective_bytes(line, 4).values()) == sent


def sent_bytes(grid_shape, half, num_devices, backward=False):
    program = compile_cut(grid_shape, half, num_devices, (1, 2, 4), backward).as_text()
    return collective_bytes(program, num_devices)


def test_bytes_sent_grow_with_the_span_and_not_with_the_grid():
    """Counted from the compiled program: keys and values of the halo, and nothing else."""
    for length, half in ((32, 3), (64, 3), (32, 6)):
        expected = exchange_bytes((length,), (half,), 8, num_heads=2, head_dim=4)
        sent = sent_bytes((length,), half, 8)
        assert sent == {"exchanged": expected["halo"], "summed": 0}
        assert sent["exchanged"] == 2 * half * 2 * 2 * 4 * 4


@pytest.mark.parametrize("rest", [slow(()), (6,), slow((4, 5))], ids=str)
def test_bytes_sent_backward(rest):
    """The gradients of the halo once more; and the sums of what all devices share, whose size follows the span."""
    counted = {}
    for rows, half in ((16, 1), (32, 1), (16, 2), (16, 3)):
        grid_shape = (rows, *rest)
        expected = exchange_bytes(grid_shape, [half] * len(grid_shape), 8, num_heads=2, head_dim=4)
        sent = counted[rows, half] = sent_bytes(grid_shape, half, 8, backward=True)
        assert sent["exchanged"] == 2 * expected["halo"] < 2 * expected["all_gather"]
        encoding = (2 * half + 1) ** len(grid_shape) * 2 * 4 * 4
        assert 2 * encoding * 7 / 8 <= sent["summed"] < 2 * (encoding + 100)
    assert counted[16, 1] == counted[32, 1]
    assert counted[16, 2]["exchanged"] == 2 * counted[16, 1]["exchanged"]


@pytest.mark.slow
@pytest.mark.parametrize("backward", [False, True])
def test_memory_of_a_volume_on_eight_devices(backward):
    """Of each: less than what one device needs, cut by 8, and all features once more on the grid of a device's keys."""

    def all_bytes(num_devices):
        memory = compile_cut((128, 32, 32), 2, num_devices, (1, 4, 16), backward).memory_analysis()
        return memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes

    assert all_bytes(8) <= all_bytes(1) / 8 * (1.05 + (128 / 8 + 2 * 2) / (128 / 8))


def test_weights_of_a_cut_grid_are_refused(unchecked):
    inputs = make_inputs((8,), dtype=np.float32)
    inputs = {name: jnp.asarray(x) for name, x in inputs.items()} | {"sigma": jnp.array([0.1])}
    with jax.set_mesh(mesh_of(4)), pytest.raises(ValueError, match="halo_attention .*return_weights"):
        halo_attention(**inputs, grid_shape=(8,), return_weights=True)


@pytest.mark.parametrize(
    "argument",
    [
        {"dilation": (2,)},
        {"mask": np.ones((1, 1, 8, 8), bool)},
        {"bias": np.zeros((1, 1, 8, 8), np.float32)},
        {"segment_ids": np.zeros((1, 8), np.int32)},
        {"query_seq_lengths": np.array([8])},
        {"key_value_seq_lengths": np.array([8])},
        {"query_grid_shape": (8,)},
    ],
    ids=lambda argument: next(iter(argument)),
)
@pytest.mark.parametrize("num_devices", [slow(1), 4])
def test_what_a_cut_grid_does_not_take_is_refused(unchecked, argument, num_devices):
    inputs = {name: jnp.asarray(x) for name, x in make_inputs((8,), dtype=np.float32).items()}
    message = f"{next(iter(argument))}: expected None with halo_attention; relative_attention supports it"
    with jax.set_mesh(mesh_of(num_devices)), pytest.raises(ValueError, match=message):
        halo_attention(**inputs | {"sigma": jnp.array([0.1])} | argument, grid_shape=(8,))
