// What the tests share: random numbers that are the same everywhere, and failures that are counted.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace headrace::test {

// Internal to each file: files are compiled for different instruction sets, and the linker would keep one copy for all.
namespace {

struct Random {
  uint64_t state;

  explicit Random(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15u + 0x1234567u) {}

  uint32_t next() {  // splitmix64
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return uint32_t((z ^ (z >> 31)) >> 32);
  }
  int below(int n) { return int(next() % uint32_t(n)); }
  int between(int low, int high) { return low + below(high - low + 1); }
  bool one_in(int n) { return below(n) == 0; }
  float real() { return float(int32_t(next())) * 0x1p-31f; }  // in [-1, 1]
};

[[maybe_unused]] int failures = 0;

[[maybe_unused]] void fail(const char* isa, const char* what, long shape) {
  if (++failures <= 20) std::fprintf(stderr, "FAILED  %s: %s (case %ld)\n", isa, what, shape);
}

// The same bits, or NaN both: which NaN comes out is the processor's choice.
[[maybe_unused]] bool same(const float* a, const float* b, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (std::memcmp(a + i, b + i, 4) != 0 && (a[i] == a[i] || b[i] == b[i])) return false;
  return true;
}

}  // namespace
}  // namespace headrace::test
