// What a machine can do at most, for `headrace bench roofline`: read memory, and execute the instructions that products and
// attention are made of. Nothing else calls it.
#pragma once

#include <cstdint>

#include "simd/math.h"

namespace headrace {

// What one instruction set offers. Each does so much of `count` as are whole rounds of its loop, and returns how much.
struct ProbeKernels {
  int64_t (*read)(const void* data, int64_t count);  // bytes, read once from the first on
  int64_t (*dot)(int64_t count);                     // multiply-adds of 8-bit integers, in registers
  int64_t (*fma)(int64_t count);                     // multiply-adds of float32
  int64_t (*dot_bfloat)(int64_t count);              // multiply-adds of bfloat16, two to a sum
};

template <class V> struct Probe {
  // Sums that do not wait for one another: more than an instruction's latency times how many begin in a cycle.
  static constexpr int kSums = V::kRows * 3 / 2;

  static constexpr ProbeKernels table() { return {read, dot, fma, dot_bfloat}; }

  // The compiler has to take x for used, and for changed. Not for what is to stay in registers.
  template <class T> static void use(const T& x) { asm volatile("" : : "r"(&x) : "memory"); }

  template <int N> static void use_sums(const typename V::I (&sums)[N]) {
    int32_t out[16];
#pragma GCC unroll 16
    for (int j = 0; j < N; j++) V::istore(out, sums[j]), use(out);
  }

  static int64_t read(const void* data, int64_t count) {
    constexpr int kVectors = 8;
    const int32_t* p = static_cast<const int32_t*>(data);
    typename V::I sums[kVectors];
#pragma GCC unroll 8
    for (auto& sum : sums) sum = V::izero();
    const int64_t rounds = count / (64 * kVectors);
    for (int64_t i = 0; i < rounds; i++, p += 16 * kVectors) {
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; j++) sums[j] = V::iadd(sums[j], V::iload(p + 16 * j));
    }
    use_sums(sums);
    return rounds * 64 * kVectors;
  }

  static int64_t dot(int64_t count) {
    uint8_t w[64] = {};
    int8_t x[4 * kSums] = {};
    use(w);
    const typename V::B a = V::bload(w);
    typename V::I sums[kSums];
#pragma GCC unroll 16
    for (auto& sum : sums) sum = V::izero();
    const int64_t rounds = count / (64 * kSums);
    for (int64_t i = 0; i < rounds; i++) {
      use(x);
#pragma GCC unroll 16
      for (int j = 0; j < kSums; j++) sums[j] = V::dot(sums[j], a, x + 4 * j);
    }
    use_sums(sums);
    return rounds * 64 * kSums;
  }

  static int64_t fma(int64_t count) {
    float w[16] = {}, x[kSums] = {};
    use(w);
    const typename V::F a = V::load(w);
    typename V::F sums[kSums];
#pragma GCC unroll 16
    for (auto& sum : sums) sum = V::zero();
    const int64_t rounds = count / (16 * kSums);
    for (int64_t i = 0; i < rounds; i++) {
      use(x);
#pragma GCC unroll 16
      for (int j = 0; j < kSums; j++) sums[j] = V::fma(a, V::set1(x[j]), sums[j]);
    }
#pragma GCC unroll 16
    for (auto& sum : sums) V::store(w, sum), use(w);
    return rounds * 16 * kSums;
  }

  static int64_t dot_bfloat(int64_t count) {
    int32_t w[16] = {}, x[kSums] = {};
    use(w);
    const typename V::I a = V::iload(w);
    float out[16];
    typename V::F sums[kSums];
#pragma GCC unroll 16
    for (auto& sum : sums) sum = V::zero();
    const int64_t rounds = count / (32 * kSums);
    for (int64_t i = 0; i < rounds; i++) {
      use(x);
#pragma GCC unroll 16
      for (int j = 0; j < kSums; j++) sums[j] = headrace::dot_bfloat<V>(sums[j], a, V::iset1(x[j]));
    }
#pragma GCC unroll 16
    for (auto& sum : sums) V::store(out, sum), use(out);
    return rounds * 32 * kSums;
  }
};

}  // namespace headrace
