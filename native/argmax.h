// The largest of many numbers and where it first is.
#pragma once

#include <cstdint>

#include "simd/math.h"

namespace headrace {

struct Largest {
  float value;     // meaningless beside NaN
  int32_t column;  // the first that has it; -1 if any number is NaN
};

constexpr int64_t kScanned = 512;  // columns whose largest is known before any of them is looked at by itself

// The largest of x[0..n), n > 0. That 0 and -0 are equal is as comparisons have it.
template <class V> Largest argmax(const float* x, int64_t n) {
  using F = typename V::F;
  float best = 0;
  int64_t at = -1;
  auto magnitudes = V::izero();
  for (int64_t begin = 0; begin < n; begin += kScanned) {
    const int64_t end = begin + kScanned < n ? begin + kScanned : n;
    F most = V::set1(x[begin]);
    int64_t i = begin;
    for (; i + 16 <= end; i += 16) {
      F v = V::load(x + i);
      most = V::max(most, v);
      magnitudes = V::imax(magnitudes, V::iand(V::bits(v), V::iset1(0x7fffffff)));
    }
    for (; i < end; i++) {
      F v = V::set1(x[i]);
      most = V::max(most, v);
      magnitudes = V::imax(magnitudes, V::iand(V::bits(v), V::iset1(0x7fffffff)));
    }
    float largest = max_lanes<V>(most);
    if (at < 0 || largest > best) best = largest, at = begin;
  }
  if (V::largest(magnitudes) > 0x7f800000) return {best, -1};
  while (!(x[at] == best)) at++;
  return {x[at], int32_t(at)};
}

}  // namespace headrace
