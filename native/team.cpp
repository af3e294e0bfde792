#include "team.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headrace {
namespace {

constexpr int64_t kMostItems = 1 << 19;
constexpr auto kStay = std::chrono::microseconds(100);

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The loop that is open. A ticket is (number of the loop, its count, its next item), so that one atomic addition both takes
// an item and tells to which loop it belongs: whoever holds an item of a loop keeps that loop, and what it is made of,
// from ending. Twenty bits for items leave room for every thread to ask once too often.
struct Team {
  std::mutex busy;
  std::atomic<uint64_t> ticket{0};
  std::atomic<int64_t> done{0};
  std::atomic<int> helpers{0};
  const std::function<void(int64_t)>* body = nullptr;

  // Does one item of the open loop; false if there is none left. A body that throws ends the process: others may be at work
  // for the same caller, who must not leave.
  bool do_one() noexcept {
    uint64_t seen = ticket.load(std::memory_order_acquire);
    if (item_of(seen) >= count_of(seen)) return false;
    uint64_t own = ticket.fetch_add(1, std::memory_order_acq_rel);
    if (item_of(own) >= count_of(own)) return false;
    (*body)(int64_t(item_of(own)));
    done.fetch_add(1, std::memory_order_release);
    return true;
  }

  void help() {
    auto last = std::chrono::steady_clock::now();
    for (;;) {
      if (do_one()) {
        while (do_one()) {
        }
        last = std::chrono::steady_clock::now();
      } else if (std::chrono::steady_clock::now() - last > kStay) {
        break;
      }
      pause_briefly();
    }
    helpers.fetch_sub(1, std::memory_order_acq_rel);
  }

  static uint64_t item_of(uint64_t t) { return t & 0xfffff; }
  static uint64_t count_of(uint64_t t) { return t >> 20 & 0xfffff; }
};

Team& team() {
  static Team* one = new Team;  // never destroyed: a helper may still stay when the process ends
  return *one;
}

}  // namespace

void parallel_for(const Pool& pool, int64_t count, const std::function<void(int64_t)>& body) {
  Team& t = team();
  std::unique_lock<std::mutex> lock(t.busy, std::defer_lock);
  if (count <= 1 || count > kMostItems || pool.num_threads <= 1 || !lock.try_lock()) {
    for (int64_t i = 0; i < count; i++) body(i);
    return;
  }
  t.body = &body;
  t.done.store(0, std::memory_order_relaxed);
  uint64_t number = (t.ticket.load(std::memory_order_relaxed) >> 40) + 1;
  t.ticket.store(number << 40 | uint64_t(count) << 20, std::memory_order_release);
  int wanted = int(count < pool.num_threads ? count : pool.num_threads) - 1;
  for (int have = t.helpers.load(std::memory_order_relaxed); have < wanted;) {
    if (t.helpers.compare_exchange_weak(have, have + 1, std::memory_order_acq_rel)) {
      pool.schedule([] { team().help(); });
      have++;
    }
  }
  while (t.do_one()) {
  }
  for (int spins = 0; t.done.load(std::memory_order_acquire) < count; spins++) {
    if (spins < 2000) {
      pause_briefly();
    } else {
      std::this_thread::yield();  // whoever has the last item may be waiting for this very processor
    }
  }
}

}  // namespace headrace
