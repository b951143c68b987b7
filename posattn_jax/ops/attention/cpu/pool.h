// Runs tasks on XLA's own threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "xla/ffi/api/ffi.h"

namespace posattn {

// Runs the tasks 0, 1, ... tasks - 1 in the calling thread and in all free threads of the pool. Each thread calls
// make() once, and then the function that this returns, for each of its tasks.
//
// The caller works too, and waits only for tasks that another thread has begun. So it ends even if no thread of the
// pool is ever free. Waiting does not spin.
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
      if (task >= tasks) return;  // the caller may have returned, with what `make` refers to
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
