// Tasks on XLA's own threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "xla/ffi/api/ffi.h"

namespace posattn {

// Runs every task below `tasks`, in the caller and in as many threads of the pool as are free, each by a function of
// its own: make()(task).
//
// The caller takes tasks itself and waits for those alone that a thread has begun, so that it ends however many
// threads there are. Nothing spins.
template <typename Make>
void parallel(xla::ffi::ThreadPool& pool, int64_t tasks, Make make) {
  struct Shared {
    Make make;
    int64_t tasks;
    std::atomic<int64_t> next{0};
    int64_t done = 0;
    std::mutex mutex;
    std::condition_variable all_done;

    Shared(Make make, int64_t tasks) : make(make), tasks(tasks) {}

    void work() {
      int64_t task = next++;
      if (task >= tasks) return;  // what `make` refers to may be gone
      int64_t finished = 0;
      {
        auto run = make();
        for (; task < tasks; task = next++, finished++) run(task);
      }
      std::lock_guard<std::mutex> lock(mutex);
      done += finished;
      if (done == tasks) all_done.notify_all();
    }
  };
  auto shared = std::make_shared<Shared>(make, tasks);
  const int64_t helpers = std::min(pool.num_threads(), tasks) - 1;
  for (int64_t i = 0; i < helpers; i++) pool.Schedule([shared] { shared->work(); });
  shared->work();
  std::unique_lock<std::mutex> lock(shared->mutex);
  shared->all_done.wait(lock, [&] { return shared->done == shared->tasks; });
}

}  // namespace posattn
