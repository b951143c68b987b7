"""The fused kernels for GPUs: the suite of layouts through Pallas' interpreter on a CPU, and lowered with no GPU."""

import functools
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from posattn_jax.ops.attention import relative_attention
from posattn_jax.ops.attention.fused import layout as fused
from posattn_jax.ops.attention.fused.blocks import BLOCK, Blocks, pairs, tiles
from posattn_jax.ops.attention.fused.gpu.layout import FusedGpu
from posattn_jax.ops.attention.fused.gpu.pair import SharedMemory
from tests.ops.attention.attention_suite import FusedSuite, StaticSpanSuite, make_inputs
from tests.support.slow import slow

pytestmark = pytest.mark.skipif(jax.__version_info__ < fused.GPU_NEEDS, reason="the kernels need a newer jax")


@pytest.fixture(params=[fused.HOPPER, slow("8.0")])
def interpreted(request, monkeypatch):
    """By `wgmma`, and by `mma`."""
    monkeypatch.setitem(fused.KERNELS, "cpu", functools.partial(FusedGpu, capability=request.param, interpret=True))


@pytest.fixture
def lowered(monkeypatch):
    """A program for a GPU is traced where there is none."""
    monkeypatch.setitem(fused.KERNELS, "cpu", FusedGpu)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
class TestFusedGpu(FusedSuite):
    """In float64 within 1e-10 of the oracle: the interpreter computes products as they are asked for."""

    implementation = "fused"

    def test_without_positions_is_dot_product_attention(self):
        """In float32 products are of two bfloat16 parts: 2^-16 where the other layouts have 2^-24."""
        inputs = make_inputs((7,), dtype=np.float32)
        q, k, v = (jnp.asarray(inputs[name]) for name in ("query", "key", "value"))
        for is_causal in (False, True):
            expected = jax.nn.dot_product_attention(q, k, v, is_causal=is_causal)
            outputs = self.attend({"query": q, "key": k, "value": v}, (7,), is_causal=is_causal)
            np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)

    def test_bad_sigma(self):
        inputs = jax.tree.map(jnp.asarray, make_inputs((4,), dtype=np.float32))
        for bad in (0.0, np.nan, np.inf):
            with pytest.raises(ValueError, match="sigma"):
                self.attend(inputs | {"sigma": jnp.array([bad])}, (4,))
        traced = jax.jit(lambda sigma: self.attend(inputs | {"sigma": sigma}, (4,), span_bound=(2,)))
        np.testing.assert_allclose(traced(jnp.zeros(1)), inputs["value"], rtol=1e-5)  # each query attends to itself
        assert np.isnan(traced(jnp.array([np.nan]))).all()
        gradient = jax.grad(lambda sigma: self.attend(inputs | {"sigma": sigma}, (4,), span_bound=(2,)).sum())
        assert np.isfinite(jax.jit(gradient)(jnp.zeros(1))).all()

    def test_a_traced_span_over_its_bound_is_nan(self):
        inputs = jax.tree.map(jnp.asarray, make_inputs((6, 5), dtype=np.float32))
        traced = jax.jit(lambda sigma: self.attend(inputs | {"sigma": sigma}, (6, 5), span_bound=(2, 3)))
        expected = self.attend(inputs | {"sigma": jnp.array([0.15, 0.3])}, (6, 5))
        np.testing.assert_allclose(traced(jnp.array([0.15, 0.3])), expected, rtol=1e-5, atol=1e-5)
        assert np.isnan(traced(jnp.array([0.15, 0.4]))).all()


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
def test_gradients_of_gradients(float64):
    """The Hessian times a vector, in both modes: the kernels' gradients are differentiated through another layout."""
    inputs = jax.tree.map(jnp.asarray, make_inputs((4, 3), batch=1))
    along = jax.tree.map(jnp.cos, inputs)

    def products(implementation):
        gradients = jax.grad(lambda x: (relative_attention(**x, **options) ** 2).sum())
        options = {"grid_shape": (4, 3), "implementation": implementation}

        def slope(x):
            return sum(jnp.vdot(gradient, along[name]) for name, gradient in gradients(x).items())

        return jax.jit(lambda x: (jax.grad(slope)(x), jax.jvp(gradients, (x,), (along,))[1]))(inputs)

    check = lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)
    jax.tree.map(check, products("fused"), products("reference"))


@pytest.mark.parametrize(
    "grid_shape, span, batch",
    [
        slow((3, 2), {"threshold": 0.1, "per_head": True, "is_causal": True}, 1),
        slow((70,), {"threshold": 0.3}, 2),
        slow((130,), {"threshold": 0.3, "span_mode": "log_add", "is_causal": True}, 1),
        slow((5, 40), {"threshold": 0.1, "per_head": True}, 1),
        slow((3, 70), {"threshold": 0.2, "is_causal": True}, 1),
        slow((20, 12), {"threshold": 0.3, "per_head": True}, 1),
        slow((20, 3), {"threshold": 0.0}, 1),
        slow((2, 5, 20), {"threshold": 0.2, "per_head": True}, 1),
    ],
    ids=str,
)
def test_values_and_gradients_of_many_blocks(interpreted, float64, grid_shape, span, batch):
    """Several blocks in some dimensions and padded ones, with a mask of keys: within 1e-10 of the oracle."""
    options = {name: value for name, value in span.items() if name != "per_head"}
    options["key_mask"] = np.random.default_rng(2).random((batch, math.prod(grid_shape))) < 0.7
    inputs = make_inputs(grid_shape, per_head="per_head" in span, batch=batch)
    inputs["relative_bias"] = np.random.default_rng(3).normal(size=inputs["relative_encoding"].shape[:-1])
    TestFusedGpu().check_against_oracle(inputs, grid_shape, **options)


@pytest.mark.slow
@pytest.mark.parametrize("grid_shape", [(5,), (3, 4)], ids=str)
def test_full_covariance(interpreted, float64, grid_shape):
    inputs = make_inputs(grid_shape, per_head=True, covariance="full")
    TestFusedGpu().check_against_oracle(inputs, grid_shape, threshold=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "grid_shape, tile",
    [((9, 11), (1, 64)), ((9, 11), (8, 8)), ((9, 11), (16, 4)), ((3, 5, 9), (2, 4, 8)), ((3, 5, 5), (4, 4, 4))],
    ids=str,
)
def test_every_tile(interpreted, float64, monkeypatch, grid_shape, tile):
    """Spans that end in a block, and one wider than the grid."""
    monkeypatch.setattr("posattn_jax.ops.attention.fused.gpu.layout.tiles", lambda grid_shape, half: [tile])
    inputs = make_inputs(grid_shape, batch=1, per_head=True)
    inputs["sigma"][0] = 2.0
    TestFusedGpu().check_against_oracle(inputs, grid_shape, is_causal=True)


@pytest.mark.slow
def test_a_span_with_a_bound(interpreted, float64):
    """There are bands of blocks that can meet alone; those of others have no gradient."""

    class Bounded(StaticSpanSuite):
        implementation = "fused"

    inputs = make_inputs((200,), batch=1) | {"sigma": np.array([0.03])}
    Bounded().check_against_oracle(inputs, (200,))


@pytest.mark.slow
def test_encodings_in_several_kernels(interpreted, float64, monkeypatch):
    """Sums that do not fit shared memory at once, and operands that take turns there."""
    monkeypatch.setattr(FusedGpu, "shared_bytes", 160 * 1024)
    inputs = make_inputs((5, 7), batch=1)
    TestFusedGpu().check_against_oracle(inputs, (5, 7))


def make_traced(grid_shape, head_dim, dtype, beta=False):
    b, n, h = 2, math.prod(grid_shape), 2
    relative = tuple(2 * size - 1 for size in grid_shape)
    shapes = dict.fromkeys(("query", "key", "value"), (b, n, h, head_dim))
    shapes |= dict.fromkeys(("content_bias", "position_bias"), (h, head_dim))
    shapes["relative_encoding"] = (*relative, h, head_dim)
    if beta:
        shapes["relative_bias"] = (*relative, h)
    arrays = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in shapes.items()}
    return arrays | {"sigma": jax.ShapeDtypeStruct((h, len(grid_shape)), jnp.float32)}


@pytest.mark.slow
def test_one_program_serves_every_span(interpreted):
    shape = (3, 70)
    inputs = jax.tree.map(jnp.asarray, make_inputs(shape, batch=1, dtype=np.float32))

    def program(implementation):
        def loss(x):
            outputs = relative_attention(**x, grid_shape=shape, implementation=implementation)
            return (outputs * inputs["query"]).sum(), outputs

        return jax.jit(jax.grad(loss, has_aux=True))

    kernels, tiled = program("fused"), program("tiled")
    for sigma in ((0.3, 0.02), (0.8, 0.1), (1.0, 1.0)):
        x = inputs | {"sigma": jnp.array(sigma)}
        jax.tree.map(
            lambda actual, expected: np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=2e-3),
            kernels(x),
            tiled(x),
        )
    assert kernels._cache_size() == 1


@pytest.mark.parametrize(
    "grid_shape, head_dim, dtype, beta",
    [
        slow((32, 32), 64, jnp.bfloat16, False),
        ((100,), 8, jnp.float32, True),
        *(
            slow(grid_shape, head_dim, dtype, beta)
            for grid_shape in ((300,), (16, 16), (40, 70), (4, 5, 6))
            for head_dim in (8, 32, 64, 128)
            for dtype in (jnp.bfloat16, jnp.float32)
            for beta in (False, True)
            if (head_dim, dtype, beta) != (128, jnp.float32, True)  # no room
        ),
    ],
    ids=str,
)
def test_lowers_for_a_gpu(lowered, grid_shape, head_dim, dtype, beta):
    """Forward and backward become kernels of Mosaic, with no GPU at hand; the span is not known."""

    def loss(x):
        return relative_attention(**x, grid_shape=grid_shape, implementation="fused").astype(jnp.float32).sum()

    program = export.export(jax.jit(jax.value_and_grad(loss)), platforms=["cuda"])
    text = program(make_traced(grid_shape, head_dim, dtype, beta)).mlir_module()
    assert text.count("mosaic_gpu_v2") >= 4  # forward, queries, keys and values, encodings
    assert "stablehlo.while" not in text  # the loops are inside


@pytest.mark.slow
def test_layers_share_kernels_and_seeds_have_them_too(lowered):
    """Three layers are lowered as often as one, and vmapped seeds need no kernels of another kind."""
    x = make_traced((20,), 8, jnp.float32)

    def kernels(layers, seeds):
        def loss(x):
            query = x["query"]
            for _ in range(layers):
                query = relative_attention(**(x | {"query": query}), grid_shape=(20,), implementation="fused")
            return query.sum()

        given = {name: jax.ShapeDtypeStruct((*seeds, *each.shape), each.dtype) for name, each in x.items()}
        function = jax.value_and_grad(loss)
        mapped = jax.vmap(function) if seeds else function
        return export.export(jax.jit(mapped), platforms=["cuda"])(given).mlir_module().count("mosaic_gpu_v2")

    assert kernels(3, ()) == kernels(1, ()) == kernels(1, (5,)) > 3


@pytest.mark.slow
def test_a_copy_that_nothing_waits_for_is_told(lowered, monkeypatch):
    """While a kernel is traced: its next wait would be for that copy."""
    jax.clear_caches()  # another test may have traced the same kernels
    monkeypatch.setattr(SharedMemory, "need", lambda self, name: self.scratch[self._slot(name)])
    with pytest.raises(AssertionError, match="nothing has waited for: content_query, position_query"):
        jax.eval_shape(
            lambda x: relative_attention(**x, grid_shape=(9,), implementation="fused"),
            make_traced((9,), 8, jnp.float32),
        )


@pytest.mark.parametrize("grid_shape", [(1,), (70,), (3, 5), (20, 12), (5, 40), (2, 3, 70), (4, 3, 2)], ids=str)
def test_blocks_hold_the_grid_and_their_windows_the_encodings(grid_shape):
    """Pages are undone by `grid`; i and j of two blocks meet the encoding of their offset, and it has a place."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(2, 3, *grid_shape, 2)).astype(np.float32)
    encoding = rng.normal(size=(*(2 * size - 1 for size in grid_shape), 3, 2)).astype(np.float32)
    for tile in tiles(grid_shape, (1,) * len(grid_shape))[:3]:
        blocks = Blocks(grid_shape, tile)
        assert math.prod(tile) == BLOCK
        pages = jax.jit(blocks.pages)(features)
        assert pages.shape == (2 * 3 * blocks.count, BLOCK, 2)
        np.testing.assert_array_equal(jax.jit(blocks.grid, static_argnums=(1, 2))(pages, 2, 3), features)
        reach = blocks.reach((9,) * len(grid_shape))
        bands = np.asarray(jax.jit(blocks.bands, static_argnums=1)(encoding, reach))
        bands = bands.reshape(3, *(2 * steps + 1 for steps in reach), -1, 2)
        for _ in range(20):
            query = rng.integers(0, grid_shape)
            key = np.clip(query + rng.integers(-9, 10, len(grid_shape)), 0, np.array(grid_shape) - 1)
            step = key // tile - query // tile + reach
            i, j = (int(np.ravel_multi_index(where % tile, tile)) for where in (query, key))
            place, conditions = blocks.place_of(i, np.arange(blocks.chunks * BLOCK))
            held = np.flatnonzero(
                functools.reduce(np.logical_and, [(s >= 0) & (s < t) for s, t in conditions], place >= 0)
            )
            assert len(set(place[held])) == len(held) == math.prod(blocks.row)
            (number,) = held[place[held] == blocks.place(i, j)]
            met = bands[(slice(None), *step, number)]
            np.testing.assert_array_equal(met, encoding[tuple(key - query + np.array(grid_shape) - 1)])


@pytest.mark.parametrize(
    "grid_shape, half, tile", [((64, 64), (8, 8), (8, 8)), ((64, 64), (0, 40), (1, 64)), ((500,), (9,), (64,))], ids=str
)
def test_the_tile_follows_the_span(grid_shape, half, tile):
    assert tiles(grid_shape, half)[0] == tile
    blocks = Blocks(grid_shape, tile)
    positions = np.stack(np.meshgrid(*map(np.arange, grid_shape), indexing="ij"), -1).reshape(-1, len(grid_shape))
    number = np.ravel_multi_index((positions // tile).T, blocks.counts)
    met = np.zeros((blocks.count, blocks.count), bool)
    for offset in np.ndindex(*(2 * reach + 1 for reach in half)):
        others = positions + np.array(offset) - half
        inside = np.all((others >= 0) & (others < grid_shape), 1)
        met[number[inside], np.ravel_multi_index((others[inside] // tile).T, blocks.counts)] = True
    assert pairs(blocks, half) == met.sum()


def test_what_there_is_no_kernel_for_is_refused(lowered, monkeypatch, float64):
    inputs = jax.tree.map(jnp.asarray, make_inputs((4,)))
    with pytest.raises(ValueError, match='implementation="fused" does not support float64 on a GPU'):
        relative_attention(**inputs, grid_shape=(4,), implementation="fused")
    sums = jax.grad(lambda x: relative_attention(**x, grid_shape=(4,), implementation="fused").sum())
    for wide, beta in ((512, False), (128, True)):
        with pytest.raises(ValueError, match=f"no room for head_dim={wide} in 223 KiB of shared memory"):
            jax.eval_shape(sums, make_traced((4,), wide, jnp.float32, beta))
    for capability in ("7.5", "gfx942"):
        device = types.SimpleNamespace(platform="gpu", compute_capability=capability)
        with monkeypatch.context() as context:
            context.setattr(fused, "get_default_device", lambda device=device: device)
            with pytest.raises(ValueError, match=f"no kernel for compute capability {capability}: expected 8.0 or new"):
                relative_attention(**inputs, grid_shape=(4,), implementation="fused")
    monkeypatch.delitem(fused.KERNELS, "cpu")
    with pytest.raises(ValueError, match='implementation="fused" has no kernel for platform "cpu"'):
        relative_attention(**inputs, grid_shape=(4,), implementation="fused")
