"""What a device's figures depend on beside the code and JAX."""

import re
import shutil
import subprocess
from importlib import metadata

import jax
from jax.extend.backend import get_backend

# What programs are made by: libtpu; JAX's plugin for GPUs, CUDA's libraries and compiler, PyTorch.
PACKAGES = r"libtpu|jax-cuda\d+-(plugin|pjrt)|nvidia-(cudnn|cublas|cuda-nvcc|cuda-runtime)(-cu\d+)?|torch|triton"


def describe_device() -> dict[str, str]:
    """The versions beside JAX's that a device's figures depend on, of what is installed; none on a machine without."""
    found = {(each.metadata["Name"] or "").lower(): each.version for each in metadata.distributions()}
    versions = {name: found[name] for name in sorted(found) if re.fullmatch(PACKAGES, name)}
    if jax.default_backend() != "cpu":
        versions["backend"] = " ".join(get_backend().platform_version.split())  # CUDA's or libtpu's among others
    if shutil.which("nvidia-smi"):
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
        versions |= {"driver": answer[0]} if answer else {}
    return versions
