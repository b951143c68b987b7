"""The fused kernels for NVIDIA GPUs, in Pallas Mosaic GPU: with `wgmma` on Hopper, with `mma` on others from Ampere on.

They ran on an H100: see docs/gpu.md. For other GPUs they have been compiled, and interpreted on a CPU.

A warpgroup takes a block of 64 queries (`fused.blocks`) and loops over the blocks of keys within its half-spans. It
reads the half-spans at run time, so that one program serves every span. Content logits are (q + u) K^T. Positional
logits are (q + v) E^T for the band of offsets between two blocks; each query then reads its row of them with a shift
(`skew`), so that nothing is gathered. G and the masks are computed from sigma in registers, and the softmax is
accumulated. The backward pass computes the weights again, in one kernel for the queries and sigma, one for keys and
values, and one for the encodings. beta is one more feature of E.

Products are of bfloat16, and sums of float32. A float32 number is split into two of bfloat16 (`warpgroup`), which is
closer to float32 than the GPU's default. Head dimensions are padded to multiples of 16, and grids to whole blocks,
whose shape is chosen for the span. Logits are in units of ln 2, because 2^x is an instruction.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from posattn_jax.axes import Array, Sizes
from posattn_jax.ops import span
from posattn_jax.ops.attention.fused.blocks import Blocks, tiles
from posattn_jax.ops.attention.fused.gpu.backward import backward, backward_operands
from posattn_jax.ops.attention.fused.gpu.forward import forward, forward_operands
from posattn_jax.ops.attention.fused.gpu.mma import MmaWarpgroup
from posattn_jax.ops.attention.fused.gpu.pair import Plan
from posattn_jax.ops.attention.fused.gpu.warpgroup import Warpgroup, padded_width, split
from posattn_jax.ops.attention.fused.layout import HOPPER
from posattn_jax.ops.attention.loop import Loop
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.precision import promoted

# The KiB of shared memory that a block of threads may use, by compute capability; then for all others, and what Mosaic
# keeps for itself. Source: the CUDA C++ Programming Guide, "Compute Capabilities".
SHARED_KIB = {"8.0": 163, "8.7": 163, "9.0": 227, "10.0": 227, "10.3": 227}
LEAST_SHARED_KIB, MOSAICS_KIB = 99, 4
LN2 = math.log(2)
OPERANDS = ("content_query", "position_query", "key", "value", "encoding")


class FusedGpu(Loop):
    """The kernels for a `problem`.

    Args:
      capability: the compute capability of the GPU.
      interpret: whether to interpret the kernels on a CPU, for tests.

    Raises:
      ValueError: a `Block`, float64 that is not interpreted, or head dimensions that do not fit shared memory.
    """

    def __init__(self, problem: Problem, capability: str = HOPPER, interpret: bool = False):
        super().__init__(problem, problem.query.shape[2])
        problem.check_local("fused")
        if problem.dtype == jnp.float64 and not interpret:
            raise ValueError('implementation="fused" does not support float64 on a GPU: expected float32 or bfloat16')
        self.capability = capability
        self.interpret = interpret

    def some_forward(self, arrays):
        """As in `Loop`, in one kernel."""
        plan = self.plan(arrays)
        b, h, *_ = arrays["value"].shape
        outputs, largest, inverse = forward(plan, self.inputs(plan, arrays))
        statistics = plan.blocks.grid(jnp.stack([largest, inverse], -1), b, h)
        return plan.blocks.grid(outputs, b, h)[..., : arrays["value"].shape[-1]], None, statistics

    def some_backward(self, arrays, outputs, statistics, cotangent, _):
        """As in `Loop`."""
        plan = self.plan(arrays)
        b, h, *_ = arrays["value"].shape
        inputs = self.inputs(plan, arrays | {"cotangent": cotangent.astype(self.features(arrays))})
        removed = (cotangent.astype(outputs.dtype) * outputs).sum(-1, keepdims=True)
        vectors = {"largest": statistics[..., :1], "inverse": statistics[..., 1:], "removed": removed}
        # Off the grid the inverse is 0, and so are the weights.
        inputs |= {name: plan.blocks.pages(x)[..., 0] for name, x in vectors.items()}
        # The kernels multiply gradients of natural logits by factors for logits in units of ln 2.
        unit = dict.fromkeys((*OPERANDS, "coefficients"), LN2) | {"value": 1.0}
        if not self.multiply:
            unit["coefficients"] = 1.0
        pages = {name: unit[name] * x for name, x in backward(plan, inputs).items()}
        cotangents = {
            name: plan.blocks.grid(pages[name], b, h)[..., : arrays[name].shape[-1]]
            for name in ("content_query", "position_query", "key", "value")
            if name in arrays
        }
        if "encoding" in arrays:
            bands = functools.partial(plan.blocks.bands, reach=plan.reach)
            to_encoding = jax.linear_transpose(bands, arrays["encoding"].astype(plan.warpgroup.dtype))
            (cotangents["encoding"],) = to_encoding(pages["encoding"][..., : arrays["encoding"].shape[-1]])
        if "sigma" in arrays:
            _, to_sigma = jax.vjp(self.problem.coefficients, arrays["sigma"])
            each_head = pages["coefficients"].reshape(b, h, -1, len(plan.exponents)).sum((0, 2))
            d_coefficients = each_head if plan.sigma_heads > 1 else each_head.sum(0, keepdims=True)
            (cotangents["sigma"],) = to_sigma(d_coefficients.astype(arrays["sigma"].dtype))
        return cotangents

    def features(self, arrays: dict[str, Array]) -> Any:
        """The dtype that all operands of products are converted to."""
        dtype = promoted(*(arrays[name] for name in OPERANDS if name in arrays))
        return jnp.dtype(jnp.float32 if dtype == jnp.float16 else dtype)

    @property
    def most_half(self) -> Sizes:
        """A limit that no half-span exceeds."""
        return self.problem.static_half or tuple(size - 1 for size in self.problem.grid_shape)

    @property
    def expected_half(self) -> Sizes:
        """The half-spans to choose tiles for: an eighth of the grid if they are known only at run time."""
        return self.problem.static_half or tuple(max(1, size // 8) for size in self.problem.grid_shape)

    def plan(self, arrays: dict[str, Array]) -> Plan:
        """The first plan whose kernels fit shared memory."""
        for shared in (False, True):
            for tile in tiles(self.problem.grid_shape, self.expected_half):
                plan = self._plan(arrays, Blocks(self.problem.grid_shape, tile), shared)
                operands = [forward_operands(plan), *backward_operands(plan)]
                if max(map(plan.bytes, operands)) <= plan.shared_bytes:
                    return plan
        features, room = arrays["value"].shape[-1], self.shared_bytes // 1024
        raise ValueError(f'implementation="fused" has no room for head_dim={features} in {room} KiB of shared memory')

    @property
    def shared_bytes(self) -> int:
        """The bytes of shared memory that a kernel may use."""
        return (SHARED_KIB.get(self.capability, LEAST_SHARED_KIB) - MOSAICS_KIB) * 1024

    def warpgroup(self, blocks: Blocks, features: Any) -> Warpgroup:
        """The operations that the kernels consist of."""
        if self.capability == HOPPER:
            return Warpgroup(blocks, features, self.interpret)
        has_tma = self.interpret or int(self.capability.partition(".")[0]) >= 9
        return MmaWarpgroup(blocks, features, self.interpret, has_tma)

    def _plan(self, arrays, blocks, shared):
        b, h, *_ = arrays["value"].shape
        sigma = arrays.get("sigma")
        widths = {name: padded_width(arrays[name].shape[-1]) for name in OPERANDS if name in arrays}
        if shared:
            widths = dict.fromkeys(widths, max(widths.values()))
        return Plan(
            warpgroup=self.warpgroup(blocks, self.features(arrays)),
            batch=b,
            heads=h,
            widths=widths | {"cotangent": widths["value"]},
            scaling=self.problem.scaling / LN2,
            multiply=self.multiply,
            is_causal=self.problem.is_causal,
            masks_span=sigma is not None and self.problem.threshold > 0,
            masks_offsets=self.problem.masks_offsets,
            exponents=() if sigma is None else tuple(span.pairs(sigma)),
            sigma_heads=1 if sigma is None else len(sigma),
            addend_batch=len(arrays["key_addend"]) if "key_addend" in arrays else 0,
            reach=blocks.reach(self.most_half),
            shared=shared,
            shared_bytes=self.shared_bytes,
        )

    def inputs(self, plan: Plan, arrays: dict[str, Array]) -> dict[str, Array]:
        """The inputs of the kernels: numbers of the span, and pages of features."""
        sigma, dtype = arrays.get("sigma"), plan.warpgroup.dtype
        if sigma is None:
            half = jnp.asarray(self.problem.grid_shape) - 1
            coefficients = jnp.zeros(1)
        else:
            half = self.problem.half_of(sigma)
            half = jnp.where(jnp.isnan(half), 0, half)  # the query alone, whose ln G is NaN
            coefficients = self.problem.coefficients(sigma)
        inputs = {"half": half.astype(jnp.int32).ravel(), "coefficients": coefficients.astype(dtype).ravel() / LN2}
        for name in (*OPERANDS, "cotangent"):
            if name in arrays:
                x = arrays[name].astype(plan.warpgroup.features)
                x = plan.blocks.bands(x, plan.reach) if name == "encoding" else plan.blocks.pages(x)
                inputs[name] = split(x, plan.widths[name])
        if "key_addend" in arrays:
            inputs["key_addend"] = plan.blocks.pages(arrays["key_addend"].astype(dtype))[..., 0]
        return inputs
