"""What JAX has that is private, experimental or not the same in all versions, in one place: a new release is met here.

Pallas is not here: it is imported where it is asked for, by `ops/attention/tpu` and `ops/attention/platform.py`.
"""

import functools

import jax
import jax.experimental
from jax import lax
from jax._src.dispatch import prim_requires_devices_during_lowering as prim_requires_devices_during_lowering
from jax._src.distributed import global_state as global_state
from jax.core import ShapedArray as ShapedArray
from jax.core import Tracer as Tracer
from jax.experimental import multihost_utils as multihost_utils
from jax.experimental.custom_partitioning import custom_partitioning as custom_partitioning
from jax.extend.backend import get_default_device as get_default_device
from jax.extend.core import ClosedJaxpr as ClosedJaxpr
from jax.extend.core import Jaxpr as Jaxpr
from jax.extend.core import Primitive as Primitive
from jax.interpreters import ad as ad
from jax.interpreters import batching as batching
from jax.interpreters import mlir as mlir

enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else vars(jax.experimental)["enable_x64"]  # of an older jax
pvary = functools.partial(lax.pcast, to="varying") if hasattr(lax, "pcast") else vars(lax)["pvary"]  # likewise
