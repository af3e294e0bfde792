// Sixteen lanes in one AVX-512 register; needs F, BW, DQ, VL and VNNI.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace headrace {

struct Avx512 {
  static constexpr const char* kName = "avx512";
  static constexpr int kRows = 8;
  static constexpr bool kSignedBytes = false;
  static constexpr bool kDotsBfloat = false;

  using F = __m512;
  using I = __m512i;
  using B = __m512i;

  static __mmask16 first(int n) { return __mmask16((1u << n) - 1); }

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static F load_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
  static F load_bfloat(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
  }
  static void store(float* p, F a) { _mm512_storeu_ps(p, a); }
  static void store_n(float* p, F a, int n) { _mm512_mask_storeu_ps(p, first(n), a); }
  static void stream(float* p, F a) { _mm512_stream_ps(p, a); }
  static void fence() { _mm_sfence(); }
  static void store_bfloat(uint16_t* p, F a) {
    __m512i bits = _mm512_castps_si512(a), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(64 << 16));
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
  }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F sqrt(F a) { return _mm512_sqrt_ps(a); }

  static I izero() { return _mm512_setzero_si512(); }
  static I iset1(int32_t x) { return _mm512_set1_epi32(x); }
  static I iload(const int32_t* p) { return _mm512_loadu_si512(p); }
  static void istore(int32_t* p, I a) { _mm512_storeu_si512(p, a); }
  static void store_s8(int8_t* p, I a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a)); }
  static I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
  static I isub(I a, I b) { return _mm512_sub_epi32(a, b); }
  static I iand(I a, I b) { return _mm512_and_si512(a, b); }
  static I imax(I a, I b) { return _mm512_max_epi32(a, b); }
  template <int S> static I shl(I a) { return _mm512_slli_epi32(a, S); }
  static I shift_left(I a, I by) { return _mm512_sllv_epi32(a, by); }
  static I load_u8(const uint8_t* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)); }
  static I load_s8(const int8_t* p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)); }

  static int32_t sum(I a) { return _mm512_reduce_add_epi32(a); }
  static int32_t largest(I a) { return _mm512_reduce_max_epi32(a); }
  // Of each of four vectors, as largest() and sum(): shuffles shared by all.
  static void largest_of(const I (&a)[4], int32_t* out) {
    I ab = imax(_mm512_unpacklo_epi32(a[0], a[1]), _mm512_unpackhi_epi32(a[0], a[1]));
    I cd = imax(_mm512_unpacklo_epi32(a[2], a[3]), _mm512_unpackhi_epi32(a[2], a[3]));
    I four = imax(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    __m256i two = _mm256_max_epi32(_mm512_castsi512_si256(four), _mm512_extracti64x4_epi64(four, 1));
    _mm_storeu_si128((__m128i*)out, _mm_max_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1)));
  }
  static void sum_of(const I (&a)[4], int32_t* out) {
    I ab = iadd(_mm512_unpacklo_epi32(a[0], a[1]), _mm512_unpackhi_epi32(a[0], a[1]));
    I cd = iadd(_mm512_unpacklo_epi32(a[2], a[3]), _mm512_unpackhi_epi32(a[2], a[3]));
    I four = iadd(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    __m256i two = _mm256_add_epi32(_mm512_castsi512_si256(four), _mm512_extracti64x4_epi64(four, 1));
    _mm_storeu_si128((__m128i*)out, _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1)));
  }

  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static I round(F a) { return _mm512_cvtps_epi32(a); }
  static I bits(F a) { return _mm512_castps_si512(a); }
  static F from_bits(I a) { return _mm512_castsi512_ps(a); }

  static B bload(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static B bxor(B a, uint8_t x) { return _mm512_xor_si512(a, _mm512_set1_epi8(char(x))); }
  static F load_even_bfloat(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
  }
  static F load_odd_bfloat(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(int(0xffff0000))));
  }
  static B low_nibbles(B a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
  static B high_nibbles(B a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
  template <int Value> static B add_where(B a, const uint8_t* p) {
    uint64_t mask;
    std::memcpy(&mask, p, 8);
    return _mm512_mask_add_epi8(a, mask, a, _mm512_set1_epi8(Value));
  }
  static I dot(I acc, B a, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
    return _mm512_dpbusd_epi32(acc, a, _mm512_set1_epi32(four));
  }
};

}  // namespace headrace
