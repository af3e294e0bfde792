// Parallel loops over XLA's own thread pool, for calls that are a few microseconds long and follow one another closely.
//
// The calling thread takes part in its loop from the first moment. Helpers are tasks on the pool that stay for a while
// after a loop, looking for the next one, so that the many small loops of a step need not wake any thread. Nobody waits
// for a helper that has not begun: the caller alone can do all of a loop.
#pragma once

#include <cstdint>
#include <functional>

namespace headrace {

// What a loop needs of a thread pool: how many threads it has, and a way to run a task on one of them.
struct Pool {
  int num_threads = 1;
  std::function<void(std::function<void()>)> schedule;  // empty where there is only the caller
};

// Calls body(i) once for each i in [0, count), on as many threads as there are, and returns when all calls are done.
// Bodies may not throw and may not begin loops of their own. A loop that begins while another one runs is the caller's alone.
void parallel_for(const Pool& pool, int64_t count, const std::function<void(int64_t)>& body);

}  // namespace headrace
