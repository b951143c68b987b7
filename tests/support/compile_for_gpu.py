"""Compiles attention by the fused kernels, forward and backward, for a GPU that is not there.

  MOSAIC_GPU_DUMP_TO=FOLDER JAX_PLATFORMS=cpu python -m tests.support.compile_for_gpu CAPABILITY HEAD_DIM

Leaves each kernel's PTX, and what `ptxas` says of its registers, in FOLDER. Needs jax's plugin for CUDA.
"""

import functools
import sys

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from posattn_jax.ops.attention import relative_attention
from posattn_jax.ops.attention.fused import layout

# XLA asks for a device's numbers; kernels of Mosaic are compiled by the compute capability alone.
DEVICE = """
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {features} }}
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 core_count: 100 fpus_per_core: 128
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  memory_bandwidth: 1000000000000 l2_cache_size: 50000000 clock_rate_ghz: 1.5 device_memory_size: 80000000000
  device_vendor: "NVIDIA Corporation" platform_version: "Compute Capability {major}.{minor}" name: "a GPU"
  driver_version: "13.0.0" runtime_version: "12.8.0" compile_time_toolkit_version: "12.8.0" dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "a GPU"
"""


def main(capability: str, head_dim: int) -> None:
    major, minor = map(int, capability.split("."))
    features = "ACCELERATED_FEATURES" if major >= 9 else "NONE"
    config = DEVICE.format(major=major, minor=minor, features=features)
    topology = topologies.get_topology_desc(platform="cuda", target_config=config, topology="1x1x1")
    mesh = topologies.make_mesh(topology, (1,), ("device",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    layout.KERNELS["cpu"] = functools.partial(layout.for_gpu, capability=capability)

    grid_shape, heads = (64, 64), 2
    shapes = dict.fromkeys(("query", "key", "value"), (1, 4096, heads, head_dim))
    shapes |= {"relative_encoding": (127, 127, heads, head_dim)}
    arrays = {name: jax.ShapeDtypeStruct(x, jnp.bfloat16, sharding=sharding) for name, x in shapes.items()}
    arrays["sigma"] = jax.ShapeDtypeStruct((2,), jnp.float32, sharding=sharding)

    def loss(arrays):
        options = {"grid_shape": grid_shape, "span_bound": (8, 8), "implementation": "fused"}
        return relative_attention(**arrays, **options).astype(jnp.float32).sum()

    with jax.default_device(topology.devices[0]):
        jax.jit(jax.grad(loss)).lower(arrays).compile()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
