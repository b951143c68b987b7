"""The products of a block's queries with a band of encodings, in shared memory: written by encoding, read by key.

The transpose is here too. Query i has a row of places, see `Blocks.place`. A thread reads what other threads wrote. So
there is a barrier of the whole warpgroup between writing and reading, and one before the buffer is written again.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, scf, vector

from posattn_jax.axes import Array
from posattn_jax.ops.attention.fused.blocks import BLOCK, Blocks
from posattn_jax.ops.attention.fused.gpu import entries
from posattn_jax.ops.attention.fused.gpu.entries import PAIR, Number

# Unused places at the end of a row: rows that are a multiple of 32 words apart would use the same memory banks.
PADDING = 8
# The bytes of two neighbouring places, which are written and read at once.
TWO_PLACES = 8


@dataclasses.dataclass(frozen=True)
class Skew:
    """Turns products with encodings into products by key, and back.

    Attributes:
      blocks: how the grid is cut.
      dtype: the dtype of the products.
      interpret: whether the kernel is interpreted.
    """

    blocks: Blocks
    dtype: Any
    interpret: bool

    @property
    def buffer(self) -> Any:
        """The shared memory that the skew needs."""
        return plgpu.SMEM((BLOCK, math.prod(self.blocks.row) + PADDING), self.dtype)

    @property
    def _entries(self) -> Any:
        return plgpu.ShapeDtypeStruct(PAIR, self.dtype, layout=plgpu.Layout.WGMMA)

    def skewed(self, buffer: Any, chunks: Iterable[Array]) -> Array:
        """Turns products of queries with a band, 64 encodings at a time, into products by key: [64 64]."""
        if self.interpret:
            return self._interpreted_skewed(buffer, chunks)

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),), return_type=self._entries)
        def read(_, buffer):
            def entry(row, column):
                return llvm.load(f32(), entries.pointer(buffer, row, self.blocks.place(row, column)))

            return entries.build(entry, f32())

        barrier()
        for chunk, x in enumerate(chunks):
            self._put(buffer, chunk, x)
        barrier()
        return read(buffer)

    def unskewed(self, buffer: Any, x: Array, chunks: Iterable[int]) -> Iterator[Array]:
        """The transpose of `skewed`, for some chunks of 64 encodings each; 0 where there is no key."""
        if self.interpret:
            yield from self._interpreted_unskewed(buffer, x, chunks)
            return

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.Layout.WGMMA))
        def write(_, buffer, x):
            for at, row, column in entries.registers():
                for k in range(2):
                    value = vector.extract(x.registers[at], dynamic_position=[], static_position=[k])
                    llvm.store(value, entries.pointer(buffer, row, self.blocks.place(row, column + k)))

        barrier()
        self._clear(buffer)
        barrier()
        write(buffer, x)
        barrier()
        for chunk in chunks:
            yield self._take(buffer, chunk)

    def _put(self, buffer, chunk, x):
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.Layout.WGMMA))
        def write(_, buffer, x):
            for at, place, has_place in self._places(buffer, chunk):
                with mgpu.when(has_place):
                    llvm.store(x.registers[at], place, alignment=TWO_PLACES)

        write(buffer, x)

    def _take(self, buffer, chunk):
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),), return_type=self._entries)
        def read(_, buffer):
            held = np.empty(entries.LAYOUT.registers_shape(PAIR), object)
            for at, place, has_place in self._places(buffer, chunk):
                either = scf.IfOp(has_place, [two()], has_else=True)
                with ir.InsertionPoint(either.then_block):
                    scf.yield_([llvm.load(two(), place, alignment=TWO_PLACES)])
                with ir.InsertionPoint(either.else_block):
                    scf.yield_([zero()])
                held[at] = either.results[0]
            return mgpu.FragmentedArray(_registers=held, _layout=entries.LAYOUT, _is_signed=None)

        return read(buffer)

    def _clear(self, buffer):
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),))
        def write(_, buffer):
            for _, row, column in entries.registers(math.prod(self.blocks.row)):
                llvm.store(zero(), entries.pointer(buffer, row, column), alignment=TWO_PLACES)

        write(buffer)

    def _places(self, buffer, chunk):
        """For each register of a thread: its index, the pointer to its entries of a chunk, and whether they exist."""
        for at, row, column in entries.registers():
            place, met = self.blocks.place_of(row, chunk * BLOCK + column.common)
            inside = [arith.cmpi(arith.CmpIPredicate.ult, s.value, entries.constant(t)) for s, t in met]
            has_place = reduce(arith.andi, inside, arith.constant(ir.IntegerType.get_signless(1), 1))
            yield at, entries.pointer(buffer, row, place + Number(column.own, 0)), has_place

    def offsets(self) -> tuple[list[Array], list[Array]]:
        """For each dimension, j_k - i_k of key j and query i, and the coordinate of the key: [64 64] each."""
        dims = range(len(self.blocks.tile))
        if self.interpret:
            queries, keys = (self.blocks.coordinates(lax.broadcasted_iota(jnp.int32, PAIR, axis)) for axis in (0, 1))
            return [j - i for i, j in zip(queries, keys, strict=True)], keys

        def build(number):
            made = plgpu.ShapeDtypeStruct(PAIR, jnp.int32, layout=plgpu.Layout.WGMMA)
            i32 = ir.IntegerType.get_signless
            return plgpu.inline_mgpu(return_type=made)(
                lambda _: entries.build(lambda i, j: number(i, j).value, i32(32))
            )()

        at = self.blocks.coordinates
        offsets = [build(lambda i, j, k=k: at(j)[k] - at(i)[k]) for k in dims]
        return offsets, [build(lambda _, j, k=k: at(j)[k]) for k in dims]

    def _interpreted_skewed(self, buffer, chunks):
        rows, columns = (lax.broadcasted_iota(jnp.int32, PAIR, axis) for axis in (0, 1))
        for chunk, x in enumerate(chunks):
            place, inside = self._interpreted_places(rows, columns + chunk * BLOCK)
            place = jnp.where(inside, place, buffer.shape[1])
            buffer[...] = buffer[...].at[rows, place].set(x, mode="drop")
        return jnp.take_along_axis(buffer[...], self.blocks.place(rows, columns), 1)

    def _interpreted_unskewed(self, buffer, x, chunks):
        rows, columns = (lax.broadcasted_iota(jnp.int32, PAIR, axis) for axis in (0, 1))
        buffer[...] = jnp.zeros(buffer.shape, self.dtype).at[rows, self.blocks.place(rows, columns)].set(x)
        for chunk in chunks:
            place, inside = self._interpreted_places(rows, columns + chunk * BLOCK)
            taken = jnp.take_along_axis(buffer[...], jnp.where(inside, place, 0), 1)
            yield jnp.where(inside, taken, 0)

    def _interpreted_places(self, rows, numbers):
        place, met = self.blocks.place_of(rows, numbers)
        return place, reduce(jnp.logical_and, [(s >= 0) & (s < t) for s, t in met], jnp.bool_(True))


def barrier() -> None:
    """Waits for all threads of the warpgroup. Each then sees what the others have written to shared memory."""
    plgpu.inline_mgpu()(lambda _: mgpu.warpgroup_barrier())()


def f32() -> ir.Type:
    return ir.F32Type.get()


def two() -> ir.Type:
    return ir.VectorType.get((2,), f32())


def zero() -> ir.Value:
    return vector.broadcast(two(), mgpu.c(0, f32()))
