// A GPU's threads on a CPU, to test kernels without a GPU.
//
// Each of the 128 threads of a block is a fiber: it has a stack of its own, and runs on the calling thread. The lanes
// of a warp run one after the other, each up to its next instruction that the whole warp executes together; then the
// first lane goes on. The warps run one after the other too, each up to its next barrier of the block. So results are
// the same bits each time, and those of a kernel that lacks a barrier differ between launches forwards and backwards.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#if !defined(LANES_UCONTEXT) && !defined(__x86_64__) && !defined(__aarch64__)
#define LANES_UCONTEXT
#endif
#ifdef LANES_UCONTEXT
#include <ucontext.h>
#endif

#ifndef LANES_UCONTEXT
// Saves on the stack what a function must preserve, and in *from the stack's top; then does the reverse with `to`.
extern "C" __attribute__((visibility("hidden"))) void posattn_switch(void** from, void* to) asm("posattn_switch");
#ifdef __x86_64__
asm(R"(
.text
.p2align 4
posattn_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#else
asm(R"(
.text
.p2align 4
posattn_switch:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#endif
#endif

namespace posattn::lanes {

constexpr int kThreads = 128, kLanes = 32, kWarps = kThreads / kLanes;
constexpr int64_t kStack = 256 << 10;
constexpr int64_t kGuard = 1024;  // bytes before and behind the shared memory, and at the end of each stack
constexpr uint8_t kGuardByte = 0xa5, kNaN = 0xff;

// Where an instruction is called; as a default argument.
struct Site {
  const char* file;
  int line;
  Site(const char* file = __builtin_FILE(), int line = __builtin_LINE()) : file(file), line(line) {}
};

struct Instruction {
  const char* name;
  Site site;
  bool operator==(const Instruction& other) const {
    return site.line == other.site.line && (name == other.name || !std::strcmp(name, other.name));
  }
};

inline void check_aligned(const char* name, const void* p, int bytes, Site site) {
  if (reinterpret_cast<uintptr_t>(p) % bytes == 0) return;
  std::fprintf(stderr, "%s:%d: %s of %p, which is not aligned to %d bytes\n", site.file, site.line, name, p, bytes);
  std::abort();
}

// What the lanes of a warp tell each other at one instruction.
struct Exchange {
  const Instruction* instruction;
  uint32_t words[kLanes], bits;
  uint16_t rows[kLanes][8];
  alignas(32) float a[16][16], b[16][8], c[16][8];

  void multiply() {
    typedef float Half __attribute__((vector_size(16), may_alias));  // of a row of b or c
    for (int i = 0; i < 16; i += 4) {
      Half* rows = reinterpret_cast<Half*>(c[i]);
      Half c00 = rows[0], c01 = rows[1], c10 = rows[2], c11 = rows[3];
      Half c20 = rows[4], c21 = rows[5], c30 = rows[6], c31 = rows[7];
      for (int k = 0; k < 16; k++) {
        const Half b0 = reinterpret_cast<const Half*>(b[k])[0], b1 = reinterpret_cast<const Half*>(b[k])[1];
        c00 += a[i][k] * b0, c01 += a[i][k] * b1;
        c10 += a[i + 1][k] * b0, c11 += a[i + 1][k] * b1;
        c20 += a[i + 2][k] * b0, c21 += a[i + 2][k] * b1;
        c30 += a[i + 3][k] * b0, c31 += a[i + 3][k] * b1;
      }
      rows[0] = c00, rows[1] = c01, rows[2] = c10, rows[3] = c11;
      rows[4] = c20, rows[5] = c21, rows[6] = c30, rows[7] = c31;
    }
  }
};

// Lanes that go on from an instruction may be at the next before others have read the results: two, by turns.
struct Warp {
  Exchange exchanges[2];
  int turn = 0;
};

// The copies that a thread has begun. They are done as late as they may be.
struct Copies {
  struct Copy {
    void* to;
    const void* from;
    int bytes;
    bool on;
    int group;
  };
  std::vector<Copy> begun;
  size_t done = 0;
  int group = 0;

  void commit() { group++; }
  void wait(int groups) {
    for (; done < begun.size() && begun[done].group < group - groups; done++) {
      const Copy& copy = begun[done];
      if (copy.on)
        std::memcpy(copy.to, copy.from, copy.bytes);
      else
        std::memset(copy.to, 0, copy.bytes);
    }
    if (done == begun.size()) clear();
  }
  void clear() {
    begun.clear();
    done = 0;
  }
};

#ifdef LANES_UCONTEXT
using Fiber = ucontext_t;
inline void switch_fiber(Fiber& from, Fiber& to) { swapcontext(&from, &to); }
inline void start_fiber(Fiber& fiber, uint8_t* stack, int64_t size, void (*run)()) {
  getcontext(&fiber);
  fiber.uc_stack.ss_sp = stack;
  fiber.uc_stack.ss_size = size;
  fiber.uc_link = nullptr;
  makecontext(&fiber, run, 0);
}
#else
using Fiber = void*;
inline void switch_fiber(Fiber& from, Fiber& to) { posattn_switch(&from, to); }
inline void start_fiber(Fiber& fiber, uint8_t* stack, int64_t size, void (*run)()) {
#ifdef __x86_64__
  constexpr int kSaved = 8, kReturn = 6;
#else
  constexpr int kSaved = 20, kReturn = 11;
#endif
  void** top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(stack + size) & ~uintptr_t{15}) - kSaved;
  std::fill(top, top + kSaved, nullptr);
  top[kReturn] = reinterpret_cast<void*>(run);
  fiber = top;
}
#endif

struct Block;
inline thread_local Block* running = nullptr;

struct Block {
  int thread;  // that runs
  int block_x, block_y;
  uint8_t* shared;
  int64_t shared_bytes;
  int step, first, last, first_warp, last_warp;  // the order in which lanes and warps run
  Warp warps[kWarps];
  const Instruction* at_barrier;
  Copies all_copies[kThreads];
  Fiber fibers[kThreads], caller;
  void (*call)(const Block&);
  void (*kernel)();
  const void* params;

  int lane() const { return thread & (kLanes - 1); }
  int warp() const { return thread / kLanes; }
  Copies& copies() { return all_copies[thread]; }

  void go(int next) {
    const int from = thread;
    thread = next;
    switch_fiber(fibers[from], fibers[next]);
  }

  // The running lane arrives at an instruction of its warp, and returns when all 32 lanes have. Each calls
  // give(exchange), the last one then finish(exchange).
  template <typename Give, typename Finish>
  const Exchange& meet(const Instruction& instruction, Give give, Finish finish) {
    Warp& own = warps[warp()];
    Exchange& exchange = own.exchanges[own.turn];
    arrive(exchange, instruction);
    give(exchange);
    if (lane() == last) {
      finish(exchange);
      own.turn ^= 1;
      go(thread - last + first);
    } else {
      go(thread + step);
    }
    return exchange;
  }
  template <typename Give>
  const Exchange& meet(const Instruction& instruction, Give give) {
    return meet(instruction, give, [](Exchange&) {});
  }

  // Returns after all threads of the block have arrived; goes back to the caller instead if this is their end.
  void barrier(const Instruction& instruction, bool ends = false) {
    Warp& own = warps[warp()];
    arrive(own.exchanges[own.turn], instruction);
    if (lane() != last) return go(thread + step);
    own.turn ^= 1;
    if (warp() == first_warp) at_barrier = &instruction;
    // Warps may meet at different lines, but not where one of them has returned.
    if (std::strcmp(at_barrier->name, instruction.name)) differ(first_warp * kLanes + last, *at_barrier, instruction);
    if (warp() != last_warp) return go((warp() + step) * kLanes + first);
    if (ends) return switch_fiber(fibers[thread], caller);
    go(first_warp * kLanes + first);
  }

  void arrive(Exchange& exchange, const Instruction& instruction) {
    if (lane() == first) exchange.instruction = &instruction;
    if (!(*exchange.instruction == instruction)) differ(thread - lane() + first, *exchange.instruction, instruction);
  }
  [[noreturn]] void differ(int other, const Instruction& other_at, const Instruction& at) {
    std::fprintf(stderr,
                 "block %d, %d: lane %d of warp %d is at %s, %s:%d; lane %d of warp %d is at %s, %s:%d; they should be "
                 "at the same\n",
                 block_x, block_y, other % kLanes, other / kLanes, other_at.name, other_at.site.file,
                 other_at.site.line, thread % kLanes, thread / kLanes, at.name, at.site.file, at.site.line);
    std::abort();
  }

  void check_shared(const char* name, const void* p, Site site, int bytes = 16) {
    check_aligned(name, p, bytes, site);
    const uint8_t* at = static_cast<const uint8_t*>(p);
    if (at >= shared && at + bytes <= shared + shared_bytes) return;
    std::fprintf(stderr, "%s:%d: %s outside of the shared memory: byte %td of %lld\n", site.file, site.line, name,
                 at - shared, static_cast<long long>(shared_bytes));
    std::abort();
  }

  // Until the copy is done there are NaNs, for whoever still reads what was there before, or reads too early.
  void copy(const char* name, void* to, const void* from, int bytes, bool on, Site site) {
    check_shared(name, to, site, bytes);
    check_aligned(name, from, bytes, site);
    std::memset(to, kNaN, bytes);
    copies().begun.push_back({to, from, bytes, on, copies().group});
  }

  static void run() {
    running->call(*running);
    running->barrier({"its end", {"kernel", 0}}, true);
  }
};

inline void check_guard(const uint8_t* p, const char* where) {
  if (p[0] == kGuardByte && !std::memcmp(p, p + 1, kGuard - 1)) return;
  std::fprintf(stderr, "something was written %s\n", where);
  std::abort();
}

// The stacks of the calling thread, which are kept: their first use is slow. Their tops are in many sets of the cache.
constexpr int64_t kPitch = kStack + 17 * 64;
inline uint8_t* stack(int thread) {
  static thread_local const std::unique_ptr<uint8_t[]> stacks(new uint8_t[kThreads * kPitch]);
  return stacks.get() + thread * kPitch;
}

}  // namespace posattn::lanes

namespace posattn {

// Runs the kernel in the calling thread, one block after the other.
template <typename Params>
void launch(void (*kernel)(const Params&), int blocks_x, int blocks_y, int shared_bytes, const Params& p,
            bool backwards = false) {
  using namespace lanes;
  const std::unique_ptr<uint8_t[]> shared(new uint8_t[shared_bytes + 3 * kGuard]);
  const auto block = std::make_unique<Block>();
  Block& b = *block;
  b.shared = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(shared.get()) + 2 * kGuard - 1) / kGuard * kGuard);
  b.shared_bytes = shared_bytes;
  b.first = backwards ? kLanes - 1 : 0;
  b.last = kLanes - 1 - b.first;
  b.step = backwards ? -1 : 1;
  b.first_warp = backwards ? kWarps - 1 : 0;
  b.last_warp = kWarps - 1 - b.first_warp;
  b.kernel = reinterpret_cast<void (*)()>(kernel);
  b.params = &p;
  b.call = [](const Block& b) {
    reinterpret_cast<void (*)(const Params&)>(b.kernel)(*static_cast<const Params*>(b.params));
  };
  running = &b;
  for (b.block_y = 0; b.block_y < blocks_y; b.block_y++)
    for (b.block_x = 0; b.block_x < blocks_x; b.block_x++) {
      std::memset(b.shared - kGuard, kGuardByte, kGuard);
      std::memset(b.shared, kNaN, shared_bytes);
      std::memset(b.shared + shared_bytes, kGuardByte, kGuard);
      for (int i = 0; i < kThreads; i++) {
        std::memset(stack(i), kGuardByte, kGuard);
        start_fiber(b.fibers[i], stack(i) + kGuard, kStack - kGuard, Block::run);
        b.all_copies[i].clear();
      }
      b.thread = b.first_warp * kLanes + b.first;
      switch_fiber(b.caller, b.fibers[b.thread]);
      check_guard(b.shared - kGuard, "before the shared memory");
      check_guard(b.shared + shared_bytes, "behind the shared memory");
      for (int i = 0; i < kThreads; i++) check_guard(stack(i), "behind the end of a thread's stack");
    }
  running = nullptr;
}

}  // namespace posattn
