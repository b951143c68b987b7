"""When the kernels for GPUs are used, and when they are not: without a GPU, and without its compiler."""

import dataclasses
import functools
import logging
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.ops.attention import operation, platform, relative_attention, select
from posattn_jax.ops.attention.cuda import kernel, library, program
from posattn_jax.ops.attention.kernel import Kernel
from posattn_jax.ops.attention.problem import Problem

GPU = types.SimpleNamespace(platform="gpu", device_kind="NVIDIA made up", compute_capability="9.0")


def make_problem(d=8, dtype=jnp.float32, **fields):
    x = jnp.ones((1, 12, 2, d), dtype)
    given = {"query": x, "key": x, "value": x, "sigma": jnp.array([0.3, 0.2])}
    return Problem(**given | fields, grid_shape=(3, 4))


@pytest.fixture
def gpu(monkeypatch):
    """Programs are traced for a GPU, whose kernels are right; they are lowered for this CPU."""
    monkeypatch.setattr(kernel, "get_default_device", lambda: GPU)
    monkeypatch.setattr(select, "get_default_device", lambda: GPU)
    monkeypatch.setattr(library, "obstacle", lambda capability: None)
    monkeypatch.setattr(kernel, "VERIFIED", (("9.0", "float32"), ("9.0", "bfloat16"), ("8.6", "float32")))
    return monkeypatch


@pytest.mark.parametrize(
    "fields, told",
    [
        ({}, None),
        ({"segment_ids": jnp.zeros((1, 12), jnp.int32), "is_causal": (True, False)}, None),
        ({"dtype": jnp.float16}, None),
        ({"return_weights": True}, "return_weights"),
        ({"dropout_rate": 0.1, "dropout_rng": jnp.zeros(2)}, "dropout"),
        ({"mask": jnp.ones((1, 1, 12, 12), bool)}, "mask, bias or other scores of pairs"),
        ({"d": 300}, "300 features a head, of at most 256"),
        ({"d": 256}, None),
    ],
    ids=lambda each: ",".join(each) if isinstance(each, dict) else None,
)
def test_obstacles(gpu, fields, told):
    assert kernel.supports(make_problem(**fields)) == told


@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize(
    "size, half", [((1, 1, 4096), (0, 0, 512)), ((1, 32, 32), (0, 31, 31)), ((9, 9, 9), (8, 8, 8))]
)
def test_any_features_fit_on_any_device(size, half, planes):
    """With all that a problem may have, within the shared memory of the least device."""
    flags = dict.fromkeys(("KEY", "ENCODING", "FACTOR", "ADDEND", "KEY_MASK", "SEGMENTS"), 1)
    flags = {f"HAS_{name}": one for name, one in flags.items()} | {"TANGENTS": 6, "CAUSAL": 0}
    room = program.LEAST_SHARED_KIB * 1024
    for features in (1, 17, 64, 65, 128, 256):
        plan = program.make_plan(size, half, features, planes, tuple(flags.items()), room)
        assert max(plan.shared) <= room and f"WIDTH={plan.width}" in plan.defines and features <= plan.width


def test_float64_is_refused(gpu, float64):
    assert kernel.supports(make_problem(dtype=jnp.float64)) == "float64 on a GPU"


def test_weights_of_a_large_head(gpu):
    shape = (200, 200)
    x = jax.ShapeDtypeStruct((1, 40000, 1, 8), jnp.bfloat16)
    found = []
    jax.eval_shape(lambda x: found.append(kernel.supports(Problem(query=x, key=x, value=x, grid_shape=shape))), x)
    assert found == ["weights of 3.0 GiB a head"]


@pytest.mark.parametrize("capability, told", [("7.5", "compute capability 7.5 is older than 8.0"), ("gfx942", None)])
def test_a_device_without_kernels(gpu, monkeypatch, capability, told):
    monkeypatch.undo()
    monkeypatch.setattr(library, "_obstacles", {})
    other = types.SimpleNamespace(**vars(GPU) | {"compute_capability": capability})
    monkeypatch.setattr(kernel, "get_default_device", lambda: other)
    told = "the device NVIDIA made up" if told is None else f"this GPU ({told})"
    assert kernel.supports(make_problem()) == told and not kernel.is_here()


def test_what_is_refused_says_so(gpu):
    x = jnp.ones((1, 4, 1, 300))
    with pytest.raises(ValueError, match='implementation="fused" .*300 features'):
        relative_attention(x, x, x, grid_shape=(4,), implementation="fused")


def test_a_capability_of_devices():
    other = types.SimpleNamespace(compute_capability="8.0")
    assert kernel.capability_of([GPU, GPU]) == "9.0"
    assert kernel.capability_of([GPU, other]) is kernel.capability_of([]) is kernel.capability_of(jax.devices()) is None


def lowered(function, *arguments):
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


def attend(x):
    return relative_attention(x, x, x, grid_shape=(3, 4), implementation="fused")


def test_a_program_for_gpus_calls_the_kernels(gpu, monkeypatch):
    """Those of the devices that it is lowered for; another implementation where these are not known."""
    x, compiled = jnp.ones((1, 12, 2, 8), jnp.bfloat16), []
    monkeypatch.setattr(library, "program", lambda defines, capability: compiled.append((defines, capability)) or "it")
    assert library.TARGET not in lowered(attend, x)
    with monkeypatch.context() as patch:
        patch.setattr(operation, "_devices", lambda context: [GPU])
        text = lowered(jax.grad(lambda x: attend(x).astype(float).sum()), x)
    assert text.count(f"@{library.TARGET}(") == 2
    ((defines, capability),) = set(compiled)
    assert capability == "9.0" and {"WIDTH=16", "PLANES=1", "HAS_KEY=1", "HAS_ENCODING=0"} <= set(defines)
    assert "f32[1,12,2,8]" not in str(jax.make_jaxpr(attend)(x))  # outputs leave the kernel as they are asked for


def test_on_a_cpu_such_a_program_gives_the_same(gpu):
    x = jax.random.normal(jax.random.key(0), (1, 12, 2, 8))
    expected = relative_attention(x, x, x, grid_shape=(3, 4), implementation="reference")
    np.testing.assert_allclose(attend(x), expected, atol=1e-5)


@pytest.fixture
def device(monkeypatch):
    """A GPU of this process that is not verified; what its kernels are compared with is this CPU's implementation."""
    here = dataclasses.make_dataclass("Device", ["compute_capability"])("8.9")
    devices = jax.local_devices
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: devices(backend=backend) if backend else [here])
    monkeypatch.setattr(kernel, "_faults", {})
    monkeypatch.setattr(jax, "default_device", lambda device: jax.disable_jit(False))
    return here


def fault(d=8, capability="8.9", **fields):
    problem = make_problem(d, **fields)
    return kernel.fault(problem, program.plan_of(problem, program.Device(capability)), capability)


def other_kernel(device, plan, wrong=1.0):
    """As `kernel.made`, by another implementation."""

    def attend(problem):
        return jax.vmap(lambda problem: select.portable_attention(problem)[0])(problem)

    def forward(problem, rows):
        return attend(problem), None

    def backward(problem, rows, outputs, statistics, cotangent):
        (found,) = jax.vjp(attend, problem)[1](cotangent)
        is_sigma = lambda path: path[-1].name == "sigma"
        return jax.tree_util.tree_map_with_path(lambda path, x: wrong * x if is_sigma(path) else x, found)

    return Kernel(forward, backward)


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": jnp.bfloat16, "sigma": jnp.full((2, 2, 2), 0.3), "segment_ids": jnp.zeros((1, 12), jnp.int32)},
        {"key": None, "relative_bias": jnp.ones((5, 7, 2)), "sigma": None, "is_causal": True},
    ],
    ids=",".join,
)
def test_kernels_that_are_right_are_used(monkeypatch, device, caplog, fields):
    """Each program is compared with the parts, the features and the dtype that it is compiled for."""
    compared, problem = [], make_problem(**fields)
    monkeypatch.setattr(kernel, "check", lambda *given: compared.append(given))
    assert fault(**fields) is fault(**fields) is None and not caplog.records
    ((_, small, dtype),) = compared
    assert dtype == problem.query.dtype and small.is_causal == problem.is_causal
    assert {name: (x.ndim, x.dtype) for name, x in small.given.items()} == {
        name: (x.ndim, x.dtype) for name, x in problem.given.items()
    }
    assert fault(d=9, **fields) is None and [each[1].query.shape[-1] for each in compared] == [8, 9]


def test_kernels_that_are_wrong_are_told_once(monkeypatch, device, caplog):
    monkeypatch.setattr(library, "obstacle", lambda capability: None)
    monkeypatch.setattr(kernel, "made", functools.partial(other_kernel, wrong=0.5))
    for _ in range(2):
        told = kernel.obstacle(make_problem(), "8.9")
    assert told is not None and told.startswith("this GPU (the compiled kernel is not right: sigma")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "8 features of float32 fails" in record.message
    assert kernel.find(make_problem(), [device]) is None


def test_kernels_that_fail_are_not_used(monkeypatch, device):
    def failing(device, plan):
        raise RuntimeError("CUDA_ERROR_INVALID_IMAGE\nand more")

    monkeypatch.setattr(kernel, "made", failing)
    assert fault() == "CUDA_ERROR_INVALID_IMAGE"
    assert fault(capability="8.0") is None  # no such device is here: nothing runs


def test_auto_has_them_on_gpus(gpu, monkeypatch):
    x = jnp.ones((1, 12, 2, 8))

    def is_kernel(**options):
        found = jax.make_jaxpr(lambda x: relative_attention(x, x, x, grid_shape=(3, 4), **options))(x)
        return "attention_forward" in str(found)

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(platform, "supports", lambda problem: "not asked")
    with monkeypatch.context() as patch:
        patch.setattr(jax, "process_count", lambda: 2)
        assert not is_kernel()
    assert is_kernel() and is_kernel(segment_ids=jnp.zeros((1, 12), jnp.int32))
    assert not is_kernel(return_weights=True) and not is_kernel(mask=jnp.ones((1, 1, 12, 12), bool))
    assert not select.chooses_at_run_time((20, 20))
    monkeypatch.setattr(library, "obstacle", lambda capability: "anything")
    assert not is_kernel() and select.chooses_at_run_time((20, 20))
