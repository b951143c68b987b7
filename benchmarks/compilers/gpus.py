"""Descriptions of GPUs, with which XLA's compiler can compile for a GPU that is not there."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Gpu:
    """The properties of a GPU, from data sheets and the CUDA C++ Programming Guide, "Compute Capabilities".

    Attributes:
      kind: the name, as in JAX's `device_kind`.
      capability: the compute capability.
      cores: the number of streaming multiprocessors.
      shared_kib: the shared memory per core.
      bandwidth: the memory bandwidth in bytes per second.
      l2_mib: the second-level cache.
      clock_ghz: the boost clock.
      memory_gb: the memory of the device.
      product_flops: FLOPs per clock and core, of products in bfloat16 (float16 before Ampere) summed in float32.
      fpus: the number of float32 units per core.
    """

    kind: str
    capability: tuple[int, int]
    cores: int
    shared_kib: int
    bandwidth: float
    l2_mib: int
    clock_ghz: float
    memory_gb: int
    product_flops: int
    fpus: int = 128

    @property
    def description(self) -> str:
        """XLA's GpuTargetConfigProto, as text."""
        major, minor = self.capability
        accelerated = "ACCELERATED_FEATURES" if major >= 9 else "NONE"
        # On Turing a block can use all shared memory of a core; later GPUs keep 1 KiB of it.
        shared_by_block = (self.shared_kib - (major >= 8)) * 1024
        return f"""
            gpu_device_info {{
              threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
              shared_memory_per_core: {self.shared_kib * 1024} shared_memory_per_block_optin: {shared_by_block}
              threads_per_core_limit: 2048 core_count: {self.cores} fpus_per_core: {self.fpus}
              block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
              thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
              registers_per_core_limit: 65536 registers_per_block_limit: 65536
              memory_bandwidth: {self.bandwidth:.0f} l2_cache_size: {self.l2_mib * 2**20}
              clock_rate_ghz: {self.clock_ghz} device_memory_size: {self.memory_gb * 10**9}
              cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {accelerated} }}
              device_vendor: "NVIDIA Corporation" platform_version: "Compute Capability {major}.{minor}"
              name: "{self.kind}" driver_version: "13.0.0" runtime_version: "12.8.0"
              compile_time_toolkit_version: "12.8.0" dnn_version: "9.10.0"
            }}
            platform_name: "CUDA"
            dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
            device_description_str: "{self.kind}"
        """


GPUS = {
    "t4": Gpu("Tesla T4", (7, 5), 40, 64, 320e9, 4, 1.59, 16, 1024, fpus=64),
    "a100": Gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 164, 2039e9, 40, 1.41, 80, 2048, fpus=64),
    "rtx3090": Gpu("NVIDIA GeForce RTX 3090", (8, 6), 82, 100, 936e9, 6, 1.7, 24, 512),
    "l4": Gpu("NVIDIA L4", (8, 9), 58, 100, 300e9, 48, 2.04, 24, 1024),
    "rtx4090": Gpu("NVIDIA GeForce RTX 4090", (8, 9), 128, 100, 1008e9, 72, 2.52, 24, 512),
    "h200": Gpu("NVIDIA H200", (9, 0), 132, 228, 4800e9, 50, 1.98, 141, 4096),
    "b200": Gpu("NVIDIA B200", (10, 0), 148, 228, 8000e9, 126, 1.965, 180, 8192),
    "rtx5090": Gpu("NVIDIA GeForce RTX 5090", (12, 0), 170, 100, 1792e9, 96, 2.4, 32, 512),
}
