// How the rows of a product reach the threads that multiply by them.
//
// A line of memory that another core has read belongs to both, and to write it again takes a message to that core. Between
// cores without a cache in common that is 160 ns, and few are under way at once: 33 ns a line, where reading what the other
// wrote takes 8. So few rows are packed by each thread for itself; of more, a block is packed in the thread's own memory, and
// written for the others past the caches (3 ns a line), which needs no answer from anybody.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "kernels.h"
#include "scratch.h"
#include "team.h"

namespace headrace {

inline void copy_past_caches(uint8_t* to, const uint8_t* from, size_t bytes) {
#if defined(__x86_64__)
  size_t done = std::min(bytes, size_t(-reinterpret_cast<uintptr_t>(to) & 15));
  std::memcpy(to, from, done);
  for (; done + 16 <= bytes; done += 16)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + done), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done)));
  std::memcpy(to + done, from + done, bytes - done);
  _mm_sfence();
#else
  std::memcpy(to, from, bytes);
#endif
}

class Packing {
 public:
  // All rows are packed when this returns, or each thread does so when it first asks for them.
  Packing(const Pool& pool, const Kernels& kernels, const Rows& rows) : kernels_(kernels), rows_(rows), call_(next_call()) {
    const int64_t unit = kernels.most_rows;
    if (pool.num_threads == 1 || rows.count <= unit || rows.count * rows.columns <= kOwnElements) return;
    struct Shared {};
    struct Unit {};
    rows_.packed = scratch<Shared>(size_of(rows.count));
    for_all(pool, (rows.count + unit - 1) / unit, [&](int64_t i) {
      const int64_t begin = i * unit, count = std::min(unit, rows.count - begin);
      copy_past_caches(rows_.packed + begin * rows.row_bytes(), packed_here<Unit>(begin, count), size_t(count * rows.row_bytes()));
    });
  }

  // Whether results are better written past the caches as well: those of few rows, which every thread then reads, and
  // logits, which are many. Others would be waited for as they are read (2 to 10 % slower with 32 rows).
  static bool past_caches(const Pool& pool, int64_t count, int64_t width, const float* y) {
    return pool.num_threads > 1 && (count <= kFewRows || width >= kVocabulary) && width % kPanel == 0 &&
           reinterpret_cast<uintptr_t>(y) % 64 == 0;
  }

  // The rows, packed, for the calling thread.
  Rows rows() const {
    if (rows_.packed != nullptr) return rows_;
    struct Own {};
    struct Mine {
      uint64_t call;
      uint8_t* packed;
    };
    thread_local Mine mine = {0, nullptr};
    if (mine.call != call_) {
      mine.call = 0;  // until it is done: there may be no memory
      mine = {call_, packed_here<Own>(0, rows_.count)};
    }
    Rows rows = rows_;
    rows.packed = mine.packed;
    return rows;
  }

 private:
  static constexpr int64_t kFewRows = 8, kVocabulary = 30000;  // only a head has so many outputs
  static constexpr int64_t kOwnElements = 16384;  // a few microseconds; a loop of its own would take about as long

  static uint64_t next_call() {
    static std::atomic<uint64_t> calls{0};
    return ++calls;
  }

  size_t size_of(int64_t count) const { return size_t(rows_.row_bytes() * count) + 64; }

  // Some rows from a border of blocks on, in memory of the calling thread.
  template <class Tag> uint8_t* packed_here(int64_t begin, int64_t count) const {
    struct Buffer {};
    Rows some = rows_;
    some.x += begin * some.columns, some.count -= begin;
    some.packed = scratch<Tag>(size_of(count));
    kernels_.pack_rows(some, 0, count, reinterpret_cast<float*>(scratch<Buffer>(size_t(pack_buffer(some.columns)) * 4)));
    return some.packed;
  }

  const Kernels& kernels_;
  Rows rows_;
  const uint64_t call_;
};

}  // namespace headrace
