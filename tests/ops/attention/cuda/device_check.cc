// Checks the second bodies of `device.h`, those for a CPU. Arguments: a check, and the order of the threads.
#include "device.h"

#include <string>
#include <thread>

namespace posattn {

struct Params {
  float* results;
  const uint4* source;
  const float* reals;
};

constexpr int kShared = 4096;

// Ends the program if a thread finds the condition false.
#define EXPECT(condition) \
  if (!(condition)) std::fprintf(stderr, "line %d, thread %d: %s\n", __LINE__, thread(), #condition), std::_Exit(1)

// A matrix of small integers, which all products and sums keep exact.
float element(int matrix, int i, int j) { return (i * 7 + j * 3 + matrix * 5) % 11 - 5; }
uint32_t pair(int matrix, int i, int j) { return pack(element(matrix, i, j), element(matrix, i, j + 1)); }
uint32_t column_pair(int matrix, int i, int j) { return pack(element(matrix, i, j), element(matrix, i + 1, j)); }

KERNEL(product, 1) {
  const int g = lane() / 4, t = lane() % 4, own = warp();
  const uint32_t a[4] = {pair(own, g, 2 * t), pair(own, g + 8, 2 * t), pair(own, g, 2 * t + 8),
                         pair(own, g + 8, 2 * t + 8)};
  const int rows[4] = {g, g, g + 8, g + 8}, columns[4] = {2 * t, 2 * t + 1, 2 * t, 2 * t + 1};
  float c[4];
  for (int i = 0; i < 4; i++) c[i] = rows[i] + 16 * columns[i];
  for (int round = 1; round < 4; round++) {
    mma(c, a, column_pair(9, 2 * t, g), column_pair(9, 2 * t + 8, g));
    for (int i = 0; i < 4; i++) {
      float sum = 0;
      for (int k = 0; k < 16; k++) sum += element(own, rows[i], k) * element(9, k, columns[i]);
      EXPECT(c[i] == rows[i] + 16 * columns[i] + round * sum);
    }
  }
}

KERNEL(matrices, 1) {
  const int g = lane() / 4, t = lane() % 4, own = warp();
  uint4* rows = reinterpret_cast<uint4*>(shared_memory()) + own * 32;
  rows[lane()] = {pair(own, lane(), 0), pair(own, lane(), 2), pair(own, lane(), 4), pair(own, lane(), 6)};
  sync_warp();
  uint32_t r[4];
  load_matrix(r, rows + lane());
  for (int i = 0; i < 4; i++) EXPECT(r[i] == pair(own, 8 * i + g, 2 * t));
  for (int i = 0; i < 4; i++) EXPECT(transpose(r[i]) == column_pair(own, 8 * i + 2 * t, g));
  load_matrix_transposed(r, rows + lane());
  for (int i = 0; i < 4; i++) EXPECT(r[i] == column_pair(own, 8 * i + 2 * t, g));
  load_matrix(r, rows + (lane() ^ 8));  // rows in any order
  for (int i = 0; i < 4; i++) EXPECT(r[i] == pair(own, 8 * (i ^ 1) + g, 2 * t));
}

KERNEL(messages, 1) {
  for (int mask = 0; mask < 32; mask++) {
    EXPECT(shuffle_xor(uint32_t(thread()), mask) == uint32_t(thread() ^ mask));
    EXPECT(shuffle_xor(-.5f * thread(), mask) == -.5f * (thread() ^ mask));
    EXPECT(ballot(lane() >= mask) == ~0u << mask);
    EXPECT(any(lane() == mask));
  }
  EXPECT(!any(warp() > 3 || lane() < 0));
}

KERNEL(barriers, 1) {
  int* sums = reinterpret_cast<int*>(shared_memory());
  EXPECT(reinterpret_cast<uintptr_t>(sums) % 1024 == 0);
  EXPECT(sums[thread()] == -1);  // NaN
  for (int round = 0; round < 3; round++) {
    sync_block();
    sums[thread()] = thread() + round;
    sync_block();
    for (int i = 0; i < 128; i++) EXPECT(sums[i] == i + round);
  }
  add(p.results + block_x() * 2 + block_y() * 6, 1);
  add2(p.results + block_x() * 2 + block_y() * 6, 1, .5f);
}

KERNEL(copies, 1) {
  float* to = reinterpret_cast<float*>(shared_memory()) + 4 * thread();
  const auto copy = [&](int stage, int from, bool on) {
    copy_async(to + stage * 512, p.reals + 4 * (thread() + from), on);
  };
  const auto is = [&](int stage, float value) {
    for (int i = 0; i < 4; i++)
      if (to[stage * 512 + i] != value + 4 * thread() + i) return false;
    return true;
  };
  for (int i = 0; i < 4; i++) to[i] = 4 * thread() + i - 8;
  EXPECT(is(0, -8));
  copy(0, 1, true);
  EXPECT(to[0] != to[0]);  // neither what was there nor what will be
  copy_commit();
  copy(1, 2, true);
  copy_commit();
  copy_commit();
  copy_wait<2>();
  EXPECT(is(0, 4) && to[512] != to[512]);
  copy(0, 3, true);  // in no group yet
  copy_wait<0>();
  EXPECT(is(1, 8) && to[0] != to[0]);
  copy_commit();
  copy_wait<0>();
  EXPECT(is(0, 12));
  copy(1, 0, false);
  copy_commit();
  copy_wait<0>();
  for (int i = 0; i < 4; i++) EXPECT(to[512 + i] == 0);
  copy_number_async(to + 1, p.reals + 5, true);
  copy_number_async(to + 2, p.reals + 6, false);
  EXPECT(to[0] == 12 + 4 * thread() && to[1] != to[1] && to[3] == 15 + 4 * thread());
  copy_commit();
  copy_wait<0>();
  EXPECT(to[1] == 5 && to[2] == 0);
}

KERNEL(numbers, 1) {
  EXPECT(fast_exp2(3) == 8 && fast_exp2(-1e30f) == 0 && fast_exp2(-140) == 0 && fast_log2(8) == 3);
  EXPECT(bf16_bits(1) == 0x3f80 && of_bf16(0x3f80) == 1 && of_bf16(bf16_bits(-1e30f)) < -.99e30f);
  const float unit = 1.f / 128;  // of the last bit of 1
  EXPECT(of_bf16(bf16_bits(1 + .5f * unit)) == 1 && of_bf16(bf16_bits(1 + 1.5f * unit)) == 1 + 2 * unit);
  EXPECT(of_bf16(bf16_bits(1 + .51f * unit)) == 1 + unit && of_bf16(bf16_bits(NAN)) != of_bf16(bf16_bits(NAN)));
  EXPECT(low(pack(3, -5)) == 3 && high(pack(3, -5)) == -5 && pack(1, 0) == 0x3f80);
}

// Sums that need a barrier, of the block or of the warp, which is not there: different by order.
KERNEL(no_barrier, 1) {
  float* x = reinterpret_cast<float*>(shared_memory());
  x[thread()] = 1;
  p.results[thread()] = x[127 - thread()];
}
KERNEL(no_warp_barrier, 1) {
  uint4* rows = reinterpret_cast<uint4*>(shared_memory()) + 32 * warp();
  rows[lane()] = {1, 1, 1, 1};
  uint32_t r[4];
  load_matrix(r, rows + 31 - lane());
  p.results[thread()] = r[0];
}

// What aborts.
KERNEL(lines, 1) {
  if (lane() < 9)
    sync_warp();
  else
    sync_warp();
}
KERNEL(names, 1) { lane() == 9 ? any(true) : shuffle_xor(1.f, 1) > 0; }
KERNEL(lane_ends, 1) {
  if (thread() == 73) return;
  sync_warp();
}
KERNEL(warp_in_a_loop, 1) {  // that lanes 8 to 31 leave first
  float sum = 0;
  for (int n = lane(); n < 40; n += 32) sum += warp();
  p.results[thread()] = sum;
}
KERNEL(warp_ends, 1) {
  if (warp() == 2) return;
  sync_block();
}
KERNEL(block_or_warp, 1) { warp() == 2 && lane() == 3 ? sync_warp() : sync_block(); }
KERNEL(beyond, 1) { shared_memory()[kShared + thread()] = 1; }
KERNEL(number_beyond, 1) {
  copy_number_async(reinterpret_cast<float*>(shared_memory() + kShared) - 127 + thread(), p.reals, true);
}
KERNEL(copy_beyond, 1) { copy_async(shared_memory() + kShared - 128 * 15 + 16 * thread(), p.source, true); }
KERNEL(skewed, 1) { add2(p.results + 1, 1, 1); }

using Kernel = void (*)(const Params&);
const struct {
  const char* name;
  Kernel kernel;
} kChecks[] = {
    {"product", product},
    {"matrices", matrices},
    {"messages", messages},
    {"barriers", barriers},
    {"copies", copies},
    {"numbers", numbers},
    {"no barrier", no_barrier},
    {"no warp barrier", no_warp_barrier},
    {"lines", lines},
    {"names", names},
    {"lane ends", lane_ends},
    {"warp in a loop", warp_in_a_loop},
    {"warp ends", warp_ends},
    {"block or warp", block_or_warp},
    {"beyond", beyond},
    {"copy beyond", copy_beyond},
    {"number beyond", number_beyond},
    {"skewed", skewed},
};

}  // namespace posattn

int main(int, char** arguments) {
  using namespace posattn;
  const std::string name = arguments[1];
  const bool backwards = arguments[2] == std::string("backwards");
  alignas(16) float results[2][128] = {}, reals[1024];
  for (int i = 0; i < 1024; i++) reals[i] = i;
  const Params p = {results[0], reinterpret_cast<const uint4*>(reals), reals};
  const Params other = {results[1], p.source, reals};
  for (const auto& check : kChecks)
    if (name == check.name) {
      std::thread beside([&] { launch(check.kernel, 3, 2, kShared, other, backwards); });
      launch(check.kernel, 3, 2, kShared, p, backwards);
      beside.join();
    }
  for (float result : results[0]) std::printf("%g ", result);
  return std::memcmp(results[0], results[1], sizeof(results[0])) != 0;
}
