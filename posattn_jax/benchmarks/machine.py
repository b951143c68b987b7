"""What a benchmark's figures depend on beside the code."""

import os
import platform
import re
import shutil
import subprocess
from importlib import metadata
from typing import Any

import jax
from jax.extend.backend import get_backend

# The environment variables that change speed: the compiler's, and the allocator's of a CPU.
ENVIRONMENT = ("XLA_FLAGS", "GLIBC_TUNABLES", "MALLOC_")


def describe_machine() -> dict[str, Any]:
    """The device, the CPUs, the environment and the versions."""
    return {
        "device": {"kind": jax.devices()[0].device_kind, "platform": jax.default_backend()},
        "cpu_count": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "environment": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(ENVIRONMENT)},
        "versions": {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
        | {"python": platform.python_version()},
    }


# What a GPU's programs are made by: JAX's plugin, CUDA's libraries and compiler, PyTorch.
GPU_PACKAGES = r"jax-cuda\d+-(plugin|pjrt)|nvidia-(cudnn|cublas|cuda-nvcc|cuda-runtime)(-cu\d+)?|torch|triton"


def describe_gpu() -> dict[str, str]:
    """The versions beside JAX's that a GPU's figures depend on, of what is installed; none on a machine without."""
    found = {(each.metadata["Name"] or "").lower(): each.version for each in metadata.distributions()}
    versions = {name: found[name] for name in sorted(found) if re.fullmatch(GPU_PACKAGES, name)}
    if jax.default_backend() == "gpu":
        versions["backend"] = " ".join(get_backend().platform_version.split())  # CUDA's among others
    if shutil.which("nvidia-smi"):
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
        versions |= {"driver": answer[0]} if answer else {}
    return versions
