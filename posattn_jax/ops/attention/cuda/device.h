// The instructions of a GPU that are not plain C++, each with two bodies: PTX, and one for the lanes of `lanes.h`.
//
// Fragments are those of PTX. Lane 4 g + t holds, of an 8 x 8 matrix, the elements (g, 2 t) and (g, 2 t + 1).
#pragma once

#ifdef LANES
#include "lanes.h"
#define DEVICE inline
// A kernel of blocks of 128 threads, at least `blocks` of which share a multiprocessor.
#define KERNEL(name, blocks) inline void name([[maybe_unused]] const Params& p)
#else
#define DEVICE __device__ __forceinline__
#define KERNEL(name, blocks) \
  extern "C" __global__ void __launch_bounds__(128, blocks) name(const __grid_constant__ Params p)
#ifndef __CUDACC_RTC__
#include <stdint.h>
#endif
#endif

namespace posattn {

#ifdef __CUDACC_RTC__  // which has no headers
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef int int32_t;
typedef unsigned long long uint64_t;
typedef long long int64_t;
#endif

#ifndef LANES

DEVICE int thread() { return threadIdx.x; }
DEVICE int lane() { return threadIdx.x % 32; }
// From lane 0, so that the compiler sees one value for the whole warp.
DEVICE int warp() { return __shfl_sync(~0u, threadIdx.x / 32, 0); }
DEVICE int block_x() { return blockIdx.x; }
DEVICE int block_y() { return blockIdx.y; }
DEVICE uint8_t* shared_memory() {
  extern __shared__ __align__(1024) uint8_t posattn_shared_memory[];
  return posattn_shared_memory;
}
DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

DEVICE void sync_block() { __syncthreads(); }
DEVICE void sync_warp() { __syncwarp(); }
DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
DEVICE uint32_t shuffle_xor(uint32_t x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
DEVICE uint32_t ballot(bool x) { return __ballot_sync(~0u, x); }
DEVICE bool any(bool x) { return __any_sync(~0u, x); }
// A number that is computed once: the compiler cannot tell what it is made of, and so keeps it.
DEVICE int once(int x) { return __shfl_sync(~0u, x, lane()); }

// c += a b, of shapes [16 8], [16 16] and [16 8]; a and b are bfloat16.
DEVICE void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices of 16-bit elements. `row`: where a row of 16 bytes lies, of lane i row i % 8 of matrix i / 8. A
// barrier lies between a write to them and this, so that the compiler need not be told that memory is read.
DEVICE void load_matrix(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}
DEVICE void load_matrix_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}
DEVICE uint32_t transpose(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Copies 16 bytes, or zeros if not `on`. They are there once copy_wait<N> returns, which waits for all groups of the
// thread but the last N; a group is what was copied between two calls of copy_commit.
DEVICE void copy_async(void* shared, const void* global, bool on) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(on ? 16 : 0)
               : "memory");
}
// The same of a float.
DEVICE void copy_number_async(float* shared, const float* global, bool on) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(on ? 4 : 0)
               : "memory");
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Approximate; -1e30 gives 0.
DEVICE float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE float fast_log2(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DEVICE float float_of_bits(uint32_t x) { return __uint_as_float(x); }
// Rounded to the nearest bfloat16, or to the even one of two.
DEVICE uint16_t bf16_bits(float x) {
  uint16_t y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
DEVICE uint32_t pack(float low, float high) {
  uint32_t y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

DEVICE void add(float* global, float x) {
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(__cvta_generic_to_global(global)), "f"(x) : "memory");
}
// To two neighbours, the first of which is aligned to 8 bytes.
DEVICE void add2(float* global, float x, float y) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v2.f32 [%0], {%1,%2};" ::"l"(__cvta_generic_to_global(global)), "f"(x), "f"(y)
               : "memory");
#else
  add(global, x);
  add(global + 1, y);
#endif
}

#else  // LANES

using std::max;
using std::min;

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

DEVICE int thread() { return lanes::running->thread; }
DEVICE int lane() { return thread() % 32; }
// A meeting as on a GPU, where lanes that have left a loop would be waited for.
DEVICE int warp(lanes::Site site = {}) {
  lanes::running->meet({"warp", site}, [](auto&) {});
  return thread() / 32;
}
DEVICE int block_x() { return lanes::running->block_x; }
DEVICE int block_y() { return lanes::running->block_y; }
DEVICE uint8_t* shared_memory() { return lanes::running->shared; }

DEVICE float float_of_bits(uint32_t x) {
  float y;
  std::memcpy(&y, &x, 4);
  return y;
}
DEVICE uint32_t bits_of_float(float x) {
  uint32_t y;
  std::memcpy(&y, &x, 4);
  return y;
}
DEVICE uint16_t bf16_bits(float x) {
  const uint32_t bits = bits_of_float(x);
  return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
DEVICE uint32_t pack(float low, float high) {
  return bf16_bits(low) | static_cast<uint32_t>(bf16_bits(high)) << 16;
}

DEVICE void sync_block(lanes::Site site = {}) { lanes::running->barrier({"sync_block", site}); }
DEVICE void sync_warp(lanes::Site site = {}) {
  lanes::running->meet({"sync_warp", site}, [](auto&) {});
}
DEVICE uint32_t shuffle_xor(uint32_t x, int mask, lanes::Site site = {}) {
  lanes::Block& block = *lanes::running;
  const int own = block.lane();
  return block.meet({"shuffle_xor", site}, [&](auto& e) { e.words[own] = x; }).words[own ^ mask];
}
DEVICE float shuffle_xor(float x, int mask, lanes::Site site = {}) {
  return float_of_bits(shuffle_xor(bits_of_float(x), mask, site));
}
DEVICE uint32_t ballot(bool x, lanes::Site site = {}) {
  lanes::Block& block = *lanes::running;
  const int own = block.lane();
  const auto finish = [](auto& e) {
    e.bits = 0;
    for (int i = 0; i < 32; i++) e.bits |= e.words[i] << i;
  };
  return block.meet({"ballot", site}, [&](auto& e) { e.words[own] = x; }, finish).bits;
}
DEVICE bool any(bool x, lanes::Site site = {}) { return ballot(x, site) != 0; }
DEVICE int once(int x) { return x; }

DEVICE void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, lanes::Site site = {}) {
  lanes::Block& block = *lanes::running;
  const int g = block.lane() / 4, t = block.lane() % 4;
  const auto give = [&](auto& e) {
    const auto unpack = [](uint32_t x, float& low, float& high) {
      low = float_of_bits(x << 16);
      high = float_of_bits(x & 0xffff0000u);
    };
    unpack(a[0], e.a[g][2 * t], e.a[g][2 * t + 1]);
    unpack(a[1], e.a[g + 8][2 * t], e.a[g + 8][2 * t + 1]);
    unpack(a[2], e.a[g][2 * t + 8], e.a[g][2 * t + 9]);
    unpack(a[3], e.a[g + 8][2 * t + 8], e.a[g + 8][2 * t + 9]);
    unpack(b0, e.b[2 * t][g], e.b[2 * t + 1][g]);
    unpack(b1, e.b[2 * t + 8][g], e.b[2 * t + 9][g]);
    std::memcpy(&e.c[g][2 * t], c, 8);
    std::memcpy(&e.c[g + 8][2 * t], c + 2, 8);
  };
  const auto& met = block.meet({"mma", site}, give, [](auto& e) { e.multiply(); });
  std::memcpy(c, &met.c[g][2 * t], 8);
  std::memcpy(c + 2, &met.c[g + 8][2 * t], 8);
}

// Each lane reads its row when it arrives, so that a missing sync_warp is found.
DEVICE void load_matrix(uint32_t (&r)[4], const void* row, lanes::Site site = {}) {
  lanes::Block& block = *lanes::running;
  const int own = block.lane(), g = own / 4, t = own % 4;
  block.check_shared("load_matrix", row, site);
  const auto& met = block.meet({"load_matrix", site}, [&](auto& e) { std::memcpy(e.rows[own], row, 16); });
  for (int i = 0; i < 4; i++) std::memcpy(&r[i], &met.rows[8 * i + g][2 * t], 4);
}
DEVICE void load_matrix_transposed(uint32_t (&r)[4], const void* row, lanes::Site site = {}) {
  lanes::Block& block = *lanes::running;
  const int own = block.lane(), g = own / 4, t = own % 4;
  block.check_shared("load_matrix_transposed", row, site);
  const auto& met = block.meet({"load_matrix_transposed", site}, [&](auto& e) { std::memcpy(e.rows[own], row, 16); });
  for (int i = 0; i < 4; i++) r[i] = met.rows[8 * i + 2 * t][g] | uint32_t{met.rows[8 * i + 2 * t + 1][g]} << 16;
}
DEVICE uint32_t transpose(uint32_t x, lanes::Site site = {}) {
  lanes::Block& block = *lanes::running;
  const int own = block.lane(), g = own / 4, t = own % 4;
  const auto& met = block.meet({"transpose", site}, [&](auto& e) { e.words[own] = x; });
  const auto element = [&](int row) { return met.words[4 * row + g / 2] >> g % 2 * 16 & 0xffff; };  // in column g
  return element(2 * t) | element(2 * t + 1) << 16;
}

DEVICE void copy_async(void* shared, const void* global, bool on, lanes::Site site = {}) {
  lanes::running->copy("copy_async", shared, global, 16, on, site);
}
DEVICE void copy_number_async(float* shared, const float* global, bool on, lanes::Site site = {}) {
  lanes::running->copy("copy_number_async", shared, global, 4, on, site);
}
DEVICE void copy_commit() { lanes::running->copies().commit(); }
template <int N>
DEVICE void copy_wait() {
  lanes::running->copies().wait(N);
}

DEVICE float fast_exp2(float x) { return x < -126 ? 0 : std::exp2(x); }  // no subnormal numbers
DEVICE float fast_log2(float x) { return std::log2(x); }

DEVICE void add(float* global, float x) { *global += x; }
DEVICE void add2(float* global, float x, float y, lanes::Site site = {}) {
  lanes::check_aligned("add2", global, 8, site);
  add(global, x);
  add(global + 1, y);
}

#endif  // LANES

DEVICE float low(uint32_t x) { return float_of_bits(x << 16); }
DEVICE float high(uint32_t x) { return float_of_bits(x & 0xffff0000u); }
DEVICE float of_bf16(uint16_t x) { return float_of_bits(static_cast<uint32_t>(x) << 16); }

}  // namespace posattn
