"""Kernels of programs that the compiler shares out over devices: each computes its examples, or its heads."""

import functools
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from posattn_jax.ops.attention import Problem, operation, relative_attention
from posattn_jax.ops.attention.cpu import library
from posattn_jax.system import processes
from tests.ops.attention.attention_suite import make_inputs
from tests.support.command import ROOT, environment
from tests.support.compiler import needs_compiler
from tests.support.slow import slow

pytestmark = needs_compiler
SHAPE = (3, 5)


@pytest.fixture
def inputs():
    inputs = make_inputs(SHAPE, per_head=True, batch=4, dtype=np.float32)
    inputs["relative_bias"] = np.random.default_rng(3).normal(size=(5, 9, 2)).astype(np.float32)
    return jax.tree.map(jnp.asarray, inputs)


def results(x, key_mask, implementation="native", shape=SHAPE):
    def loss(x):
        outputs = relative_attention(**x, grid_shape=shape, key_mask=key_mask, implementation=implementation)
        return jnp.sum(jnp.square(outputs)), outputs

    return jax.grad(loss, has_aux=True)(x)


def placed(inputs, mask, mesh, batch, heads, shape=SHAPE):
    """On the mesh: examples over its axes `batch`, heads over `heads`."""
    over = {"b": batch, "h": heads, "k": heads if inputs["key"].shape[2] == inputs["query"].shape[2] else None}
    axes = Problem(**inputs, grid_shape=shape).axes.given
    there = {name: NamedSharding(mesh, PartitionSpec(*map(over.get, axes[name].split()))) for name in inputs}
    return jax.device_put(inputs, there), jax.device_put(mask, NamedSharding(mesh, PartitionSpec(batch)))


@pytest.mark.parametrize(
    "batch, heads", [("data", None), ("data", "model"), (None, "model"), (("data", "model"), None)]
)
@pytest.mark.parametrize("sigma", ["per head", slow("of all")])
def test_each_device_computes_its_part(inputs, batch, heads, sigma):
    if sigma == "of all":
        inputs["sigma"] = inputs["sigma"][0]
        inputs |= {name: inputs[name][:, :, :1] for name in ("key", "value")}
    if isinstance(batch, tuple):
        inputs = {
            name: jnp.concatenate([x, x]) if name in ("query", "key", "value") else x for name, x in inputs.items()
        }
    mask = jnp.asarray(np.random.default_rng(2).random((len(inputs["query"]), 15)) < 0.8)
    expected = jax.jit(results)(inputs, mask)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    given = placed(inputs, mask, mesh, batch, heads)
    program = jax.jit(results).lower(*given).compile()
    text = str(program.as_text())
    assert text.count(library.target("backward", "float32")) == 1 and "all-gather" not in text
    (_, outputs), wanted = program(*given), given[0]["query"].sharding
    assert outputs.sharding.is_equivalent_to(wanted, 4)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), program(*given), expected)


@pytest.mark.parametrize("count", [2, 4])
def test_heads_that_share_a_key(count):
    """Each device has the heads of keys that its heads of queries need: one of two, or the same as another device."""
    rng = np.random.default_rng(0)
    inputs = {"query": rng.normal(size=(2, 15, 8, 3)), "relative_bias": rng.normal(size=(5, 9, 8))}
    inputs |= {name: rng.normal(size=(2, 15, 2, 3)) for name in ("key", "value")}
    inputs = {name: jnp.asarray(x, jnp.float32) for name, x in inputs.items()}
    mesh = jax.make_mesh((count,), ("model",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])
    of_keys = PartitionSpec(None, None, "model") if count == 2 else PartitionSpec()
    specs = {"query": PartitionSpec(None, None, "model"), "key": of_keys, "value": of_keys}
    specs |= {"relative_bias": PartitionSpec(None, None, "model")}
    given = jax.device_put(inputs, {name: NamedSharding(mesh, spec) for name, spec in specs.items()})
    program = jax.jit(lambda x: results(x, None)).lower(given).compile()
    assert "all-gather" not in str(program.as_text())
    expected = results(inputs, None, "reference")
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), program(given), expected)


def test_what_does_not_divide_is_gathered(inputs):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    inputs = {name: x[:3] if name in ("query", "key", "value") else x for name, x in inputs.items()}
    mask = jnp.ones((3, 15), bool)
    everywhere = NamedSharding(mesh, PartitionSpec())
    by_position = NamedSharding(mesh, PartitionSpec(None, "data"))

    @jax.jit
    def program(x, mask):
        query = jax.lax.with_sharding_constraint(jnp.pad(x["query"], [(0, 0), (0, 1), (0, 0), (0, 0)]), by_position)
        return results(x | {"query": query[:, :15]}, mask)

    found = program(*jax.device_put((inputs, mask), everywhere))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), found, jax.jit(results)(inputs, mask)
    )


def test_seeds_over_devices(inputs):
    """Vmapped arrays are shared out by the axis that is mapped."""
    mesh = jax.make_mesh((2,), ("seeds",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    both = jax.tree.map(lambda x: jnp.stack([x, 1.1 * x]), inputs)
    there = NamedSharding(mesh, PartitionSpec("seeds"))
    mask = jnp.ones((4, 15), bool)
    program = jax.jit(jax.vmap(lambda x: results(x, mask)))
    compiled = program.lower(jax.device_put(both, there)).compile()
    assert "all-gather" not in str(compiled.as_text())
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4),
        compiled(jax.device_put(both, there)),
        program(both),
    )


@pytest.mark.parametrize(
    "check_vma, implementation", [(False, "tiled"), (True, "native"), slow(True, "tiled"), slow(False, "native")]
)
def test_inside_a_shard_map(inputs, check_vma, implementation):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    features = ("query", "key", "value")
    specs = {name: PartitionSpec("data") if name in features else PartitionSpec() for name in inputs}

    def attend(x):
        return relative_attention(**x, grid_shape=SHAPE, implementation=implementation, span_bound=(2, 4))

    options = {"mesh": mesh, "in_specs": (specs,), "out_specs": PartitionSpec("data"), "check_vma": check_vma}

    def results(attend):
        return jax.jit(jax.value_and_grad(lambda x: jnp.sum(jnp.square(attend(x)))))(inputs)

    found, expected = results(jax.shard_map(attend, **options)), results(attend)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), found, expected)


def test_where_kernels_can_be():
    """Not where some axes are shared out by hand and others, of several devices, by the compiler, or all by types."""
    found = []

    def attend(x):
        found.append(operation.is_possible_here())
        return x

    auto, narrow, explicit = (
        jax.make_mesh(sizes, ("data", "model"), axis_types=(kind,) * 2, devices=jax.devices()[: sizes[0] * sizes[1]])
        for sizes, kind in (((4, 2), AxisType.Auto), ((4, 1), AxisType.Auto), ((4, 2), AxisType.Explicit))
    )
    for mesh, axes in ((auto, {"data"}), (auto, {"data", "model"}), (narrow, {"data"})):
        options = {"in_specs": PartitionSpec(), "out_specs": PartitionSpec(), "axis_names": axes, "check_vma": False}
        jax.eval_shape(jax.shard_map(attend, mesh=mesh, **options), jnp.ones(8))
    for mesh in (auto, explicit):
        with jax.set_mesh(mesh):
            jax.eval_shape(attend, jnp.ones(8))
    assert [operation.is_possible_here(), *found] == [True, False, True, True, True, False]


def test_over_some_axes_of_a_mesh(inputs):
    """A kernel that is asked for by name computes the same on all devices along the other axis."""
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
    given, _ = placed(inputs, jnp.ones((4, 15), bool), mesh, "data", "model")
    specs = {name: PartitionSpec("data" if name in ("query", "key", "value") else None) for name in inputs}

    def attend(x):
        return relative_attention(**x, grid_shape=SHAPE, implementation="native")

    by_example = jax.shard_map(
        attend, mesh=mesh, in_specs=(specs,), out_specs=PartitionSpec("data"), axis_names={"data"}
    )
    program = jax.jit(by_example).lower(given).compile()
    assert library.target("forward", "float32") in str(program.as_text())
    np.testing.assert_allclose(program(given), jax.jit(attend)(inputs), rtol=1e-4, atol=1e-4)


def of_a_process(implementation, model):
    """In each of two processes of four devices: checks its parts of results, and tells whether kernels were used."""
    shape = (2, 8)  # for which "auto" takes the kernel
    mesh = jax.make_mesh((8 // model, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    inputs = make_inputs(shape, per_head=True, batch=8, dtype=np.float32)
    mask = np.random.default_rng(2).random((8, 16)) < 0.8
    given = placed(inputs, mask, mesh, "data", "model", shape)
    each = functools.partial(results, shape=shape)
    program = jax.jit(functools.partial(each, implementation=implementation)).lower(*given).compile()
    expected = jax.jit(functools.partial(each, implementation="dense"))(inputs, mask)
    for x, whole in zip(*map(jax.tree.leaves, (program(*given), expected)), strict=True):
        for shard in x.addressable_shards:
            np.testing.assert_allclose(shard.data, whole[shard.index], rtol=1e-4, atol=1e-4)
    text = str(program.as_text())
    print("kernel" if library.target("backward", "float32") in text else "no kernel", file=sys.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    "implementation, model, missing_in, found",
    [("auto", 2, None, "kernel"), ("native", 1, None, "kernel"), ("auto", 2, 1, "no kernel")],
    ids=["auto", "by-name", "missing-in-one"],
)
def test_two_processes_of_four_devices_are_as_one(implementation, model, missing_in, found):
    """Values and gradients. A kernel that one process does not have is used by none."""
    call = "from posattn_jax.system import processes; processes.join()\n"  # before devices are asked for
    call += f"from tests.ops.attention.test_partition import of_a_process; of_a_process({implementation!r}, {model})"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    shared = environment(4) | {processes.COORDINATOR: address, processes.COUNT: "2"}
    own = [{processes.INDEX: str(i)} | ({library.VARIABLE: "0"} if i == missing_in else {}) for i in range(2)]
    started = [
        subprocess.Popen([sys.executable, "-c", call], cwd=ROOT, env=shared | each, stderr=subprocess.PIPE, text=True)
        for each in own
    ]
    said = [process.communicate(timeout=300)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert [each.splitlines()[-1] for each in said] == [found] * 2, said
