"""The operations of the fused kernels with `mma`, which every GPU from Ampere on has; `warpgroup` uses `wgmma`.

Operands are read from shared memory into registers, and a product is complete before the next instruction begins.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu

from posattn_jax.axes import Array
from posattn_jax.ops.attention.fused.gpu.skew import barrier
from posattn_jax.ops.attention.fused.gpu.warpgroup import Warpgroup, store


@dataclasses.dataclass(frozen=True)
class MmaWarpgroup(Warpgroup):
    """The operations of a kernel.

    Attributes:
      has_tma: whether a unit of the GPU copies to shared memory, as from Hopper on; else each thread copies a part.
    """

    has_tma: bool = True

    def barriers(self, copies: int) -> dict[str, Any]:
        """As in `Warpgroup`; none if every thread waits for its own copies."""
        return super().barriers(copies) if self.has_tma else {}

    def copy(self, source: Any, page: Any, barriers: Any, which: int) -> None:
        """As in `Warpgroup`."""
        if self.has_tma:
            super().copy(source, page, barriers, which)
        else:
            plgpu.copy_gmem_to_smem(source, page, oob_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS)

    def wait(self, barriers: Any, which: int, later: int) -> None:
        """As in `Warpgroup`."""
        if self.has_tma:
            super().wait(barriers, which, later)
        else:
            plgpu.wait_gmem_to_smem(later)
            barrier()  # every thread has waited for its part

    def store_part(self, page: Any, x: Array) -> None:
        """As in `Warpgroup`; only threads read the page, so barriers are enough."""
        barrier()
        store(page, x)
        barrier()

    def product(
        self, a: Any, b: Any, *, transpose_a: bool = False, transpose_b: bool = False, add_to: Array | None = None
    ) -> Array:
        """As in `Warpgroup`."""
        left = [self._left(x) for x in self.split(a)] if isinstance(a, jax.Array) else self._read(a, transpose_a, "LHS")
        right = self._read(b, transpose_b, "RHS")
        total = self.full((left[0].shape[0], right[0].shape[1]), 0.0) if add_to is None else add_to
        for i, x in enumerate(left):
            for y in right[: self.parts - i]:
                total = self._mma(total, x, y)
        return total

    def _mma(self, total, a, b):
        if self.interpret:
            return total + jnp.dot(a, b, preferred_element_type=self.dtype)
        return plgpu.mma(total, a, b)

    def _read(self, page, transpose, side):
        """The parts of a page as operands."""
        if self.interpret:
            return [part[...].T if transpose else part[...] for part in self._parts(page)]
        layout = getattr(plgpu.Layout, f"MMA_{side}")(self.operand_dtype)
        parts = [plgpu.transpose_ref(part, (1, 0)) if transpose else part for part in self._parts(page)]
        return [plgpu.load(part, layout=layout, optimized=False) for part in parts]

    def _left(self, x):
        """An accumulator as an operand: a thread holds the same entries of both, in the same order."""
        if self.interpret:
            return x
        layout = plgpu.Layout.MMA_LHS(self.operand_dtype)

        @plgpu.inline_mgpu(
            arg_types=(plgpu.Layout.WGMMA,),
            return_type=plgpu.ShapeDtypeStruct(x.shape, self.operand_dtype, layout=layout),
        )
        def renamed(_, x):
            held = x.registers.reshape(layout.to_mgpu().registers_shape(x.shape))
            return mgpu.FragmentedArray(_registers=held, _layout=layout.to_mgpu(), _is_signed=None)

        return renamed(x)
