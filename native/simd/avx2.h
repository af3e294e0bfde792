// Sixteen lanes in two AVX2 registers; needs FMA and F16C too.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace headrace {

struct Avx2 {
  static constexpr const char* kName = "avx2";
  static constexpr int kRows = 4;
  static constexpr bool kSignedBytes = true;
  static constexpr bool kDotsBfloat = false;

  struct F { __m256 lo, hi; };
  struct I { __m256i lo, hi; };
  struct B { __m256i lo, hi; };

  // The mask of the first n of eight lanes, any n.
  static __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static __m128i half_register(const void* p) { return _mm_loadu_si128((const __m128i*)p); }
  static __m256i whole_register(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }

  static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static F load_n(const float* p, int n) {
    return {_mm256_maskload_ps(p, first(n)), n > 8 ? _mm256_maskload_ps(p + 8, first(n - 8)) : _mm256_setzero_ps()};
  }
  static F load_half(const uint16_t* p) {
    return {_mm256_cvtph_ps(half_register(p)), _mm256_cvtph_ps(half_register(p + 8))};
  }
  static F load_bfloat(const uint16_t* p) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half_register(p)), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half_register(p + 8)), 16))};
  }
  static void store(float* p, F a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
  }
  static void store_n(float* p, F a, int n) {
    _mm256_maskstore_ps(p, first(n), a.lo);
    if (n > 8) _mm256_maskstore_ps(p + 8, first(n - 8), a.hi);
  }
  static void stream(float* p, F a) {
    _mm256_stream_ps(p, a.lo);
    _mm256_stream_ps(p + 8, a.hi);
  }
  static void fence() { _mm_sfence(); }
  static void store_bfloat(uint16_t* p, F a) {
    __m256i packed = _mm256_packus_epi32(to_bfloat(a.lo), to_bfloat(a.hi));  // within 128 bits each: halves interleaved
    _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(packed, 0xd8));
  }
  static F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  static F sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
  static F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  static F div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
  static F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
  static F fnma(F a, F b, F c) { return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)}; }
  static F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  static F min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
  static F sqrt(F a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }

  static I izero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static I iset1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  static I iload(const int32_t* p) { return {whole_register(p), whole_register(p + 8)}; }
  static void istore(int32_t* p, I a) {
    _mm256_storeu_si256((__m256i*)p, a.lo);
    _mm256_storeu_si256((__m256i*)(p + 8), a.hi);
  }
  static void store_s8(int8_t* p, I a) {
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(packed), _mm256_extracti128_si256(packed, 1));
    _mm_storeu_si128((__m128i*)p, bytes);
  }
  static I iadd(I a, I b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
  static I isub(I a, I b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
  static I iand(I a, I b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
  static I imax(I a, I b) { return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)}; }
  template <int S> static I shl(I a) { return {_mm256_slli_epi32(a.lo, S), _mm256_slli_epi32(a.hi, S)}; }
  static I shift_left(I a, I by) { return {_mm256_sllv_epi32(a.lo, by.lo), _mm256_sllv_epi32(a.hi, by.hi)}; }
  static I load_u8(const uint8_t* p) {
    __m128i bytes = half_register(p);
    return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
  }
  static I load_s8(const int8_t* p) {
    __m128i bytes = half_register(p);
    return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
  }

  static int32_t sum(I a) {
    __m256i both = _mm256_add_epi32(a.lo, a.hi);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
  }
  static int32_t largest(I a) {
    __m256i both = _mm256_max_epi32(a.lo, a.hi);
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
  }
  static void largest_of(const I (&a)[4], int32_t* out) {
    for (int i = 0; i < 4; i++) out[i] = largest(a[i]);
  }
  static void sum_of(const I (&a)[4], int32_t* out) {
    for (int i = 0; i < 4; i++) out[i] = sum(a[i]);
  }

  static F to_float(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
  static I round(F a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
  static I bits(F a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
  static F from_bits(I a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }

  static B bload(const uint8_t* p) { return {whole_register(p), whole_register(p + 32)}; }
  static B bxor(B a, uint8_t x) {
    __m256i bytes = _mm256_set1_epi8(char(x));
    return {_mm256_xor_si256(a.lo, bytes), _mm256_xor_si256(a.hi, bytes)};
  }
  static F load_even_bfloat(const uint16_t* p) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(whole_register(p), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(whole_register(p + 16), 16))};
  }
  static F load_odd_bfloat(const uint16_t* p) {
    __m256i mask = _mm256_set1_epi32(int(0xffff0000));
    return {_mm256_castsi256_ps(_mm256_and_si256(whole_register(p), mask)),
            _mm256_castsi256_ps(_mm256_and_si256(whole_register(p + 16), mask))};
  }
  static B low_nibbles(B a) {
    __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
  }
  static B high_nibbles(B a) { return low_nibbles({_mm256_srli_epi16(a.lo, 4), _mm256_srli_epi16(a.hi, 4)}); }
  template <int Value> static B add_where(B a, const uint8_t* p) {
    __m256i value = _mm256_set1_epi8(Value);
    return {_mm256_add_epi8(a.lo, _mm256_and_si256(bytes_of_bits(p), value)),
            _mm256_add_epi8(a.hi, _mm256_and_si256(bytes_of_bits(p + 4), value))};
  }
  // The first operand is signed. The instruction takes unsigned bytes times signed ones, so the signs of the one go to the
  // other, and it adds two products in 16 bits: at most 2 * 128 * 127, which fits as long as x is no -128.
  static I dot(I acc, B a, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
    __m256i xs = _mm256_set1_epi32(four);
    return {dot(acc.lo, a.lo, xs), dot(acc.hi, a.hi, xs)};
  }

 private:
  static __m256i dot(__m256i acc, __m256i a, __m256i x) {
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(x, a));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }

  // 0xff in each byte whose bit of the 32 at p is set.
  static __m256i bytes_of_bits(const uint8_t* p) {
    int32_t bits;
    std::memcpy(&bits, p, 4);
    __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                                                                     0x0303030303030303));
    __m256i bit = _mm256_set1_epi64x(int64_t(0x8040201008040201));
    return _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
  }

  // In the low 16 bits of each 32: what float_to_bfloat gives.
  static __m256i to_bfloat(__m256 a) {
    __m256i bits = _mm256_castps_si256(a), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(64 << 16));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  }
};

}  // namespace headrace
