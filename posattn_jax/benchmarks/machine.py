"""What a benchmark's figures depend on beside the code."""

import os
import platform
from importlib import metadata
from typing import Any

import jax

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
