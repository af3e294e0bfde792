// Sixteen lanes in plain C++: the reference that every other instruction set must equal bit for bit.
//
// An instruction set is a struct of static functions over a logical vector of 16 lanes, whatever its registers are:
//   F   16 floats            I   16 int32            B   64 bytes, four for each lane
// Integer dot products are exact, and every float operation is one IEEE operation per lane (fma where it says fma), so
// code written over such a struct gives the same bits on all of them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace headrace {

inline float half_to_float(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023, bits;
  if (exponent == 31) {
    bits = sign | 0x7f800000u | mantissa << 13;
  } else if (exponent != 0) {
    bits = sign | (exponent + 112) << 23 | mantissa << 13;
  } else {  // zero and subnormal numbers: mantissa * 2^-24, exactly
    float value = std::ldexp(float(mantissa), -24);
    std::memcpy(&bits, &value, 4);
    bits |= sign;
  }
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

inline float bfloat_to_float(uint16_t b) {
  uint32_t bits = uint32_t(b) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

// To the nearest, ties to even; NaN stays NaN.
inline uint16_t float_to_bfloat(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 64);
  return uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

struct Scalar {
  static constexpr const char* kName = "scalar";
  static constexpr int kRows = 4;              // rows that a block of a product has at most: what fits the registers
  static constexpr bool kSignedBytes = false;  // dot() takes its first operand as signed bytes; see matmul.h
  static constexpr bool kDotsBfloat = false;  // whether there is dot_bfloat(), an instruction for what math.h makes of others

  struct F { float v[16]; };
  struct I { int32_t v[16]; };
  struct B { uint8_t v[64]; };

#define HEADRACE_LANES(T, expr) \
  T r;                          \
  for (int i = 0; i < 16; i++) r.v[i] = (expr); \
  return r;

#define HEADRACE_BYTES(expr) \
  B r;                       \
  for (int i = 0; i < 64; i++) r.v[i] = (expr); \
  return r;

  // Floats.
  static F zero() { HEADRACE_LANES(F, 0.0f) }
  static F set1(float x) { HEADRACE_LANES(F, x) }
  static F load(const float* p) { HEADRACE_LANES(F, p[i]) }
  static F load_n(const float* p, int n) { HEADRACE_LANES(F, i < n ? p[i] : 0.0f) }  // lanes from n on are 0
  static F load_half(const uint16_t* p) { HEADRACE_LANES(F, half_to_float(p[i])) }
  static F load_bfloat(const uint16_t* p) { HEADRACE_LANES(F, bfloat_to_float(p[i])) }
  static void store(float* p, F a) { std::memcpy(p, a.v, 64); }
  static void store_n(float* p, F a, int n) { std::memcpy(p, a.v, 4 * size_t(n)); }
  // Past the caches, where that can be asked for; p is a multiple of 64 bytes. fence() before other threads are told of it.
  static void stream(float* p, F a) { store(p, a); }
  static void fence() {}
  static void store_bfloat(uint16_t* p, F a) {
    for (int i = 0; i < 16; i++) p[i] = float_to_bfloat(a.v[i]);
  }
  static F add(F a, F b) { HEADRACE_LANES(F, a.v[i] + b.v[i]) }
  static F sub(F a, F b) { HEADRACE_LANES(F, a.v[i] - b.v[i]) }
  static F mul(F a, F b) { HEADRACE_LANES(F, a.v[i] * b.v[i]) }
  static F div(F a, F b) { HEADRACE_LANES(F, a.v[i] / b.v[i]) }
  static F fma(F a, F b, F c) { HEADRACE_LANES(F, std::fma(a.v[i], b.v[i], c.v[i])) }    // a * b + c
  static F fnma(F a, F b, F c) { HEADRACE_LANES(F, std::fma(-a.v[i], b.v[i], c.v[i])) }  // c - a * b
  static F max(F a, F b) { HEADRACE_LANES(F, a.v[i] > b.v[i] ? a.v[i] : b.v[i]) }  // b where either is NaN
  static F min(F a, F b) { HEADRACE_LANES(F, a.v[i] < b.v[i] ? a.v[i] : b.v[i]) }  // b where either is NaN
  static F sqrt(F a) { HEADRACE_LANES(F, std::sqrt(a.v[i])) }

  // Integers.
  static I izero() { HEADRACE_LANES(I, 0) }
  static I iset1(int32_t x) { HEADRACE_LANES(I, x) }
  static I iload(const int32_t* p) { HEADRACE_LANES(I, p[i]) }
  static void istore(int32_t* p, I a) { std::memcpy(p, a.v, 64); }
  static void store_s8(int8_t* p, I a) {  // lanes in [-128, 127], 16 bytes
    for (int i = 0; i < 16; i++) p[i] = int8_t(a.v[i]);
  }
  static I iadd(I a, I b) { HEADRACE_LANES(I, int32_t(uint32_t(a.v[i]) + uint32_t(b.v[i]))) }
  static I isub(I a, I b) { HEADRACE_LANES(I, int32_t(uint32_t(a.v[i]) - uint32_t(b.v[i]))) }
  static I iand(I a, I b) { HEADRACE_LANES(I, a.v[i] & b.v[i]) }
  static I imax(I a, I b) { HEADRACE_LANES(I, a.v[i] > b.v[i] ? a.v[i] : b.v[i]) }
  template <int S> static I shl(I a) { HEADRACE_LANES(I, int32_t(uint32_t(a.v[i]) << S)) }
  static I shift_left(I a, I by) { HEADRACE_LANES(I, int32_t(uint32_t(a.v[i]) << by.v[i])) }  // by 0 … 31
  static I load_u8(const uint8_t* p) { HEADRACE_LANES(I, p[i]) }  // 16 bytes, each to its lane
  static I load_s8(const int8_t* p) { HEADRACE_LANES(I, p[i]) }

  static int32_t sum(I a) {
    uint32_t total = 0;
    for (int i = 0; i < 16; i++) total += uint32_t(a.v[i]);
    return int32_t(total);
  }
  static int32_t largest(I a) {
    int32_t most = a.v[0];
    for (int i = 1; i < 16; i++) most = most > a.v[i] ? most : a.v[i];
    return most;
  }
  static void largest_of(const I (&a)[4], int32_t* out) {
    for (int i = 0; i < 4; i++) out[i] = largest(a[i]);
  }
  static void sum_of(const I (&a)[4], int32_t* out) {
    for (int i = 0; i < 4; i++) out[i] = sum(a[i]);
  }

  // Between them.
  static F to_float(I a) { HEADRACE_LANES(F, float(a.v[i])) }
  // Ties to even. What does not fit, and NaN, gives a number that depends on the instruction set.
  static I round(F a) { HEADRACE_LANES(I, std::fabs(a.v[i]) < 2147483520.0f ? int32_t(std::nearbyint(a.v[i])) : INT32_MIN) }
  static I bits(F a) { I r; std::memcpy(&r, &a, 64); return r; }
  static F from_bits(I a) { F r; std::memcpy(&r, &a, 64); return r; }

  // Bytes.
  static B bload(const uint8_t* p) { B r; std::memcpy(r.v, p, 64); return r; }
  static B bxor(B a, uint8_t x) { HEADRACE_BYTES(uint8_t(a.v[i] ^ x)) }
  // 16-bit floats 2n and 2n + 1 of the 32 at p, as lane n.
  static F load_even_bfloat(const uint16_t* p) { HEADRACE_LANES(F, bfloat_to_float(p[2 * i])) }
  static F load_odd_bfloat(const uint16_t* p) { HEADRACE_LANES(F, bfloat_to_float(p[2 * i + 1])) }
  static B low_nibbles(B a) { HEADRACE_BYTES(a.v[i] & 15) }
  static B high_nibbles(B a) { HEADRACE_BYTES(a.v[i] >> 4) }
  // Adds `Value` to the bytes whose bit is set in the 64 bits at p.
  template <int Value> static B add_where(B a, const uint8_t* p) {
    HEADRACE_BYTES(uint8_t(a.v[i] + ((p[i / 8] >> i % 8 & 1) ? Value : 0)))
  }
  // For each lane the sum of its four products: bytes of a (unsigned) and the four signed bytes at x, the same for all
  // lanes; added to acc. Exact as long as the sum fits.
  static I dot(I acc, B a, const int8_t* x) {
    for (int i = 0; i < 16; i++)
      for (int j = 0; j < 4; j++) acc.v[i] += int32_t(a.v[4 * i + j]) * x[j];
    return acc;
  }
#undef HEADRACE_LANES
#undef HEADRACE_BYTES
};

}  // namespace headrace
