// A number that tells whether an instruction set computes what plain code does: a guard against a compiler, an emulator or a
// processor that does not. Some microseconds, at load; the tests look at each operation alone and at many more numbers.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd/math.h"

namespace headrace {

template <class V> uint64_t checksum() {
  uint64_t state = 0x9e3779b97f4a7c15u, sum = 0;
  auto next = [&state] {  // xorshift
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return uint32_t(state >> 32);
  };
  auto add = [&sum](const void* p, int bytes) {
    for (int i = 0; i < bytes; i++) sum = (sum ^ static_cast<const uint8_t*>(p)[i]) * 0x100000001b3u;
  };
  for (int round = 0; round < 8; round++) {
    float a[16], b[16], c[16], out[16];
    uint16_t halves[16], bfloats[16];
    uint8_t bytes[64];
    int8_t x[64];
    int32_t ints[16];
    for (int i = 0; i < 16; i++) {
      a[i] = float(int32_t(next())) * 3e-8f;
      b[i] = float(int32_t(next())) * 1e-9f + 3.0f;
      c[i] = float(int32_t(next())) * 1e-6f;
      halves[i] = uint16_t(next() & 0xfbff);  // any but infinity and NaN
    }
    for (int i = 0; i < 64; i++) bytes[i] = uint8_t(next() & 127), x[i] = int8_t(next() | 1);
    using F = typename V::F;
    F va = V::load(a), vb = V::load(b), vc = V::load_n(c, 5 + round);
    F f = V::fnma(V::fma(va, vb, vc), V::div(va, vb), V::max(V::min(va, vc), V::sub(vb, V::load_half(halves))));
    f = V::add(f, V::mul(exp<V>(va), V::sqrt(vb)));
    V::store(out, f);
    add(out, 64);
    // Pairs of normal numbers: of others which NaN comes out, or whether they count as 0, is the processor's choice.
    auto pairs = [&next] {
      int32_t words[16];
      for (int32_t& word : words) word = int32_t((next() & 0x807f807f) | 0x3f803f80);
      return V::iload(words);
    };
    const auto first = pairs(), second = pairs();
    f = dot_bfloat<V>(f, first, second);
    V::store_bfloat(bfloats, f);
    add(bfloats, 32);
    V::store(out, V::load_bfloat(bfloats));
    add(out, 64);
    auto packed = V::bload(bytes);
    auto acc = V::iadd(V::round(V::mul(vc, V::set1(0.01f))), V::isub(V::load_u8(bytes), V::load_s8(x)));
    acc = V::dot(acc, V::low_nibbles(packed), x);
    acc = V::dot(acc, V::template add_where<16>(V::high_nibbles(packed), bytes), x + 4);
    acc = V::dot(V::shift_left(acc, V::iand(V::load_u8(bytes), V::iset1(15))), packed, x + 8);
    V::istore(ints, V::imax(acc, V::iand(V::bits(va), V::template shl<3>(V::iset1(round)))));
    add(ints, 64);
    const float total = sum_lanes<V>(f);
    add(&total, 4);
  }
  return sum;
}

}  // namespace headrace
