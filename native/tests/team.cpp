// parallel_for under several callers at once, as XLA's executor may run two calls side by side.
#include "team.h"

#include <atomic>
#include <thread>
#include <vector>

#include "check.h"
#include "pool.h"
#include "tests.h"

namespace headrace::test {

int check_team(long loops) {
  failures = 0;
  Threads threads(3);
  const Pool pool = threads.pool();
  std::atomic<int> wrong{0};
  auto call = [&](uint64_t seed) {
    Random random(seed);
    for (long loop = 0; loop < loops; loop++) {
      int64_t count = random.one_in(8) ? random.between(0, 2) : random.between(1, 200);
      std::vector<int> times(size_t(count), 0);  // not atomic: an item belongs to one thread, and is done at the end
      int64_t total = 0;
      parallel_for(pool, count, [&](int64_t i) { times[size_t(i)] += int(i) + 1; });
      for (int64_t i = 0; i < count; i++) total += times[size_t(i)] == int(i) + 1;
      if (total != count) wrong++;
    }
  };
  std::vector<std::thread> callers;
  for (uint64_t seed = 1; seed <= 3; seed++) callers.emplace_back(call, seed);
  for (std::thread& caller : callers) caller.join();
  if (wrong != 0) fail("any", "an item of a loop was not done just once", wrong);
  return failures;
}

}  // namespace headrace::test
