"""The operations of the fused kernels on a warpgroup of a GPU, and the same on a CPU where kernels are interpreted.

The interpreter of Pallas supports copies, barriers, loops and loads. It supports neither operands of products in
registers, nor transposed operands, nor Mosaic code. So a few operations are written twice, here and in `skew`;
everything else is written once.

A page is 64 rows of features. A float32 number is split into bfloat16 parts, x = high + low, in the pages of an array
[pages, parts * 64, d]. The product of two such operands is the sum of high high, high low and low high; its error is
about 2^-16. bfloat16, and float64, which only the interpreter supports, have a single part.
"""

import dataclasses
import functools
import inspect
import math
import operator
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from posattn_jax.axes import Array
from posattn_jax.ops.attention.fused.blocks import BLOCK, Blocks
from posattn_jax.ops.attention.fused.gpu.skew import PADDING, Skew
from posattn_jax.ops.precision import float32_or_better


def num_parts(dtype: Any) -> int:
    """The number of parts that features of a dtype are split into."""
    return 2 if dtype == jnp.float32 else 1


def split(pages: Array, width: int) -> Array:
    """[pages 64 d] -> [pages, parts * 64, width]; the additional features are 0."""
    pages = jnp.pad(pages, [(0, 0), (0, 0), (0, width - pages.shape[-1])])
    if num_parts(pages.dtype) == 1:
        return pages
    # Not a cast to bfloat16 and back, which compilers may remove.
    high = lax.reduce_precision(pages, exponent_bits=8, mantissa_bits=7)
    return jnp.concatenate([high, pages - high], 1).astype(jnp.bfloat16)


@dataclasses.dataclass(frozen=True)
class Warpgroup:
    """The operations of a kernel.

    Attributes:
      blocks: how the grid is cut.
      features: the dtype of the inputs.
      interpret: whether the kernel is interpreted.
    """

    blocks: Blocks
    features: Any
    interpret: bool

    @property
    def dtype(self) -> Any:
        """The dtype of logits and accumulators."""
        return float32_or_better(self.features)

    @property
    def operand_dtype(self) -> Any:
        """The dtype of the operands of products."""
        return jnp.dtype(jnp.bfloat16 if self.features == jnp.float32 else self.features)

    @property
    def parts(self) -> int:
        return num_parts(self.features)

    def page(self, width: int, swizzle: int) -> Any:
        """Shared memory for a page of an operand."""
        elements = swizzle * 8 // jnp.finfo(jnp.bfloat16).bits
        transforms = (plgpu.TilingTransform((8, elements)), plgpu.SwizzleTransform(swizzle))
        return plgpu.SMEM(
            (self.parts * BLOCK, width), self.operand_dtype, transforms=() if self.interpret else transforms
        )

    @functools.cached_property
    def skew(self) -> Skew:
        return Skew(self.blocks, self.dtype, self.interpret)

    def full(self, shape: tuple[int, ...], value: float) -> Array:
        """An array of constants, [64] with one per query, or rows [64 d]."""
        x = jnp.full(shape, value, self.dtype)
        if self.interpret:
            return x
        return plgpu.layout_cast(x, plgpu.Layout.WGMMA if len(shape) > 1 else plgpu.Layout.WGMMA.reduce(1))

    def load(self, ref: Any, index: Any, axis: int) -> Array:
        """The numbers [64] of a block's queries (axis 0) or keys (axis 1), to be broadcast along the other axis."""
        if self.interpret:
            return ref[index]
        return _load(ref.at[index], plgpu.Layout.WGMMA.reduce(1 - axis))

    @staticmethod
    def spread(x: Array, shape: tuple[int, ...], axis: int = 0) -> Array:
        """Broadcasts [64], which lies along `axis`, to `shape`."""
        return lax.broadcast_in_dim(x, shape, [axis])

    def split(self, x: Array) -> list[Array]:
        """The parts of an operand [64 n] of a product."""
        if self.parts == 1:
            return [x.astype(self.operand_dtype)]
        high = x.astype(jnp.bfloat16)
        return [high, (x - high.astype(x.dtype)).astype(jnp.bfloat16)]

    def store(self, ref: Any, x: Array) -> None:
        """Stores an operand [64 n] in shared memory."""
        for part, value in enumerate(self.split(x)):
            if self.interpret:
                ref[pl.ds(part * BLOCK, BLOCK)] = value
            else:
                self.store_part(ref.at[pl.ds(part * BLOCK, BLOCK)], value)

    def store_part(self, page: Any, x: Array) -> None:
        """Stores a part of an operand, which products can use afterwards."""
        store(page, x)
        plgpu.commit_smem()

    def barriers(self, copies: int) -> dict[str, Any]:
        """The barriers that signal the arrival of copies, by the name of their scratch memory."""
        return {"barriers": plgpu.Barrier(num_barriers=copies)}

    def copy(self, source: Any, page: Any, barriers: Any, which: int) -> None:
        """Starts a copy to shared memory, once all threads have read the old contents."""
        plgpu.copy_gmem_to_smem(source, page, barriers.at[which])

    def wait(self, barriers: Any, which: int, later: int) -> None:
        """Waits for a copy; `later` is the number of copies started after it, which need not have arrived."""
        plgpu.barrier_wait(barriers.at[which])

    def sums(self, rows: int, width: int) -> Any:
        """Shared memory for sums [rows, 64, width], padded so that rows begin in different memory banks."""
        return plgpu.SMEM((rows, BLOCK, width + PADDING), self.dtype)

    def put(self, sums: Any, row: Any, x: Array) -> None:
        """Stores x [64 d] in `sums`."""
        sums[row, :, pl.ds(0, x.shape[-1])] = x

    def take(self, sums: Any, row: Any, width: int) -> Array:
        """The inverse of `put`."""
        index = (row, slice(None), pl.ds(0, width))
        return sums[index] if self.interpret else _load(sums.at[index], plgpu.Layout.WGMMA)

    def product(
        self, a: Any, b: Any, *, transpose_a: bool = False, transpose_b: bool = False, add_to: Array | None = None
    ) -> Array:
        """a b, or `add_to` + a b, where a is an array [64 k] or a page, and b is a page."""
        a = self.split(a) if isinstance(a, jax.Array) else self._parts(a)
        pairs = [(x, y) for i, x in enumerate(a) for j, y in enumerate(self._parts(b)) if i + j < self.parts]
        if self.interpret:

            def read(x, transpose):
                x = x if isinstance(x, jax.Array) else x[...]
                return x.T if transpose else x

            terms = [
                jnp.dot(read(x, transpose_a), read(y, transpose_b), preferred_element_type=self.dtype) for x, y in pairs
            ]
            return functools.reduce(operator.add, terms if add_to is None else [add_to, *terms])

        def transposed(x, transpose):
            return plgpu.transpose_ref(x, (1, 0)) if transpose else x

        def accumulate(total):
            for x, y in pairs:
                plgpu.wgmma(total, transposed(x, transpose_a), transposed(y, transpose_b))

        if add_to is not None:
            return cast(Array, pl.run_state(accumulate)(plgpu.ACC.init(add_to)))
        rows, columns = a[0].shape[int(transpose_a)], b.shape[1]
        columns = BLOCK if transpose_b else columns

        def compute(total):
            accumulate(total)
            return total[...]

        return pl.run_scoped(compute, plgpu.ACC((rows, columns), self.dtype))

    def _parts(self, page: Any) -> list[Any]:
        return [page.at[pl.ds(part * BLOCK, BLOCK)] for part in range(self.parts)]


def _load(ref: Any, layout: Any) -> Array:
    """Loads an array. jax 0.10 also requires an index, which `ref` has already; 0.12 refuses it."""
    required = [x for x in inspect.signature(plgpu.load).parameters.values() if x.default is x.empty]
    return plgpu.load(ref, *[None] * (len(required) - 1), layout=layout, optimized=False)


def store(ref: Any, x: Array) -> None:
    """Stores an array. An assignment would also load the old contents, from jax 0.12 on."""
    if hasattr(plgpu, "store"):
        plgpu.store(ref, x, optimized=False)
    else:
        ref[...] = x


def swizzle_of(*widths: int) -> int:
    """The bytes of the widest swizzle that fits features of these widths."""
    return 2 * math.gcd(BLOCK, *widths)


def padded_width(features: int) -> int:
    """The least width of a page that has room for the features and that products accept."""
    return -(-features // 16) * 16


def launch(body: Callable, outputs: Any, programs: int, scratch: dict[str, Any], copies: int, warpgroup: Warpgroup):
    """The kernel of `body(*inputs, *outputs, **scratch)`, with one warpgroup for each of `programs` programs."""
    interpret = None
    if warpgroup.interpret:
        from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

        interpret = InterpretGPUParams()
    return plgpu.kernel(
        body,
        out_type=outputs,
        grid=(programs,),
        grid_names=("program",),
        scratch_types=scratch | warpgroup.barriers(copies),
        compiler_params=plgpu.CompilerParams(
            approx_math=warpgroup.features == jnp.bfloat16,
            lowering_semantics=plgpu.LoweringSemantics.Lane,  # not the default in every version of jax
        ),
        interpret=interpret,
    )
