// Parallel loops over XLA's own thread pool, for calls that are a few microseconds long and follow one another closely.
//
// The calling thread takes part in its loop from the first moment. Helpers are tasks on the pool that stay for a while
// after a loop, looking for the next one, so that the many small loops of a step need not wake any thread. Nobody waits
// for a helper that has not begun: the caller alone can do all of a loop.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <new>

namespace headrace {

// What a loop needs of a thread pool: how many threads it has, and a way to run a task on one of them.
struct Pool {
  int num_threads = 1;
  std::function<void(std::function<void()>)> schedule;  // empty where there is only the caller
};

// Calls body(i) once for each i in [0, count), on as many threads as there are, and returns when all calls are done.
// Bodies may not throw and may not begin loops of their own. A loop that begins while another one runs is the caller's alone.
void parallel_for(const Pool& pool, int64_t count, const std::function<void(int64_t)>& body);

// The same for a body that may want for memory: that ends the call, once all threads are done, and not the process.
inline void for_all(const Pool& pool, int64_t count, const std::function<void(int64_t)>& body) {
  std::atomic<bool> failed{false};
  parallel_for(pool, count, [&](int64_t i) {
    try {
      body(i);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
  });
  if (failed) throw std::bad_alloc();
}

}  // namespace headrace
