// Functions of 16 lanes that every instruction set computes with the same operations, and so to the same bits.
#pragma once

#include <cstdint>

namespace headrace {

// The sum of the lanes, in a fixed order: halves onto halves.
template <class V> inline float sum_lanes(typename V::F a) {
  float x[16];
  V::store(x, a);
  for (int n = 8; n > 0; n /= 2)
    for (int i = 0; i < n; i++) x[i] += x[i + n];
  return x[0];
}

template <class V> inline float max_lanes(typename V::F a) {
  float x[16];
  V::store(x, a);
  for (int n = 8; n > 0; n /= 2)
    for (int i = 0; i < n; i++) x[i] = x[i] > x[i + n] ? x[i] : x[i + n];
  return x[0];
}

// acc + a * b for each half of 32-bit lanes that hold two bfloat16: the high halves' product first, each sum rounded once.
template <class V> inline typename V::F dot_bfloat(typename V::F acc, typename V::I a, typename V::I b) {
  if constexpr (V::kDotsBfloat) {
    return V::dot_bfloat(acc, a, b);
  } else {
    const typename V::I high = V::iset1(int32_t(0xffff0000u));
    acc = V::fma(V::from_bits(V::iand(a, high)), V::from_bits(V::iand(b, high)), acc);
    return V::fma(V::from_bits(V::template shl<16>(a)), V::from_bits(V::template shl<16>(b)), acc);
  }
}

// e^x within 2 units in the last place; 0 below -87.7 (no subnormal numbers), x taken as at most 88.3, NaN for NaN.
// Cody and Waite's reduction to |r| <= ln(2) / 2 and the Taylor polynomial of degree 7 by Horner's rule.
template <class V> inline typename V::F exp(typename V::F x) {
  using F = typename V::F;
  F in = V::max(V::set1(-88.0f), V::min(V::set1(88.3f), x));  // min and max give their second operand for NaN
  F n = V::to_float(V::round(V::mul(in, V::set1(1.44269504088896341f))));
  F r = V::fnma(n, V::set1(0.693359375f), in);
  r = V::fnma(n, V::set1(-2.12194440e-4f), r);
  F p = V::set1(1.0f / 5040);
  p = V::fma(p, r, V::set1(1.0f / 720));
  p = V::fma(p, r, V::set1(1.0f / 120));
  p = V::fma(p, r, V::set1(1.0f / 24));
  p = V::fma(p, r, V::set1(1.0f / 6));
  p = V::fma(p, r, V::set1(0.5f));
  p = V::fma(p, r, V::set1(1.0f));
  p = V::fma(p, r, V::set1(1.0f));
  typename V::I power = V::template shl<23>(V::iadd(V::round(n), V::iset1(127)));
  return V::mul(p, V::from_bits(power));
}

}  // namespace headrace
