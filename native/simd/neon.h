// Sixteen lanes in four NEON registers; needs the dot product of Armv8.2.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace headrace {

struct Neon {
  static constexpr const char* kName = "neon";
  static constexpr int kRows = 4;
  static constexpr bool kSignedBytes = true;
  static constexpr bool kDotsBfloat = false;

  struct F { float32x4_t v[4]; };
  struct I { int32x4_t v[4]; };
  struct B { uint8x16_t v[4]; };

#define HEADRACE_QUARTERS(T, expr) \
  T r;                             \
  for (int i = 0; i < 4; i++) r.v[i] = (expr); \
  return r;

  static F zero() { return set1(0.0f); }
  static F set1(float x) { HEADRACE_QUARTERS(F, vdupq_n_f32(x)) }
  static F load(const float* p) { HEADRACE_QUARTERS(F, vld1q_f32(p + 4 * i)) }
  static F load_n(const float* p, int n) {
    float x[16] = {};
    std::memcpy(x, p, 4 * size_t(n));
    return load(x);
  }
  static F load_half(const uint16_t* p) {
    HEADRACE_QUARTERS(F, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))))
  }
  static F load_bfloat(const uint16_t* p) { HEADRACE_QUARTERS(F, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16))) }
  static F load_even_bfloat(const uint16_t* p) {
    HEADRACE_QUARTERS(F, vreinterpretq_f32_u32(vshlq_n_u32(pairs(p + 8 * i), 16)))
  }
  static F load_odd_bfloat(const uint16_t* p) {
    HEADRACE_QUARTERS(F, vreinterpretq_f32_u32(vandq_u32(pairs(p + 8 * i), vdupq_n_u32(0xffff0000u))))
  }
  static void store(float* p, F a) {
    for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, a.v[i]);
  }
  static void store_n(float* p, F a, int n) {
    float x[16];
    store(x, a);
    std::memcpy(p, x, 4 * size_t(n));
  }
  static void stream(float* p, F a) { store(p, a); }
  static void fence() {}
  static void store_bfloat(uint16_t* p, F a) {
    for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, to_bfloat(a.v[i]));
  }
  static F add(F a, F b) { HEADRACE_QUARTERS(F, vaddq_f32(a.v[i], b.v[i])) }
  static F sub(F a, F b) { HEADRACE_QUARTERS(F, vsubq_f32(a.v[i], b.v[i])) }
  static F mul(F a, F b) { HEADRACE_QUARTERS(F, vmulq_f32(a.v[i], b.v[i])) }
  static F div(F a, F b) { HEADRACE_QUARTERS(F, vdivq_f32(a.v[i], b.v[i])) }
  static F fma(F a, F b, F c) { HEADRACE_QUARTERS(F, vfmaq_f32(c.v[i], a.v[i], b.v[i])) }
  static F fnma(F a, F b, F c) { HEADRACE_QUARTERS(F, vfmsq_f32(c.v[i], a.v[i], b.v[i])) }
  // By comparison: Arm's own maximum is NaN for NaN and tells the zeros apart.
  static F max(F a, F b) { HEADRACE_QUARTERS(F, vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i])) }
  static F min(F a, F b) { HEADRACE_QUARTERS(F, vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i])) }
  static F sqrt(F a) { HEADRACE_QUARTERS(F, vsqrtq_f32(a.v[i])) }

  static I izero() { return iset1(0); }
  static I iset1(int32_t x) { HEADRACE_QUARTERS(I, vdupq_n_s32(x)) }
  static I iload(const int32_t* p) { HEADRACE_QUARTERS(I, vld1q_s32(p + 4 * i)) }
  static void istore(int32_t* p, I a) {
    for (int i = 0; i < 4; i++) vst1q_s32(p + 4 * i, a.v[i]);
  }
  static void store_s8(int8_t* p, I a) {
    int16x8_t low = vcombine_s16(vmovn_s32(a.v[0]), vmovn_s32(a.v[1]));
    int16x8_t high = vcombine_s16(vmovn_s32(a.v[2]), vmovn_s32(a.v[3]));
    vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
  }
  static I iadd(I a, I b) { HEADRACE_QUARTERS(I, vaddq_s32(a.v[i], b.v[i])) }
  static I isub(I a, I b) { HEADRACE_QUARTERS(I, vsubq_s32(a.v[i], b.v[i])) }
  static I iand(I a, I b) { HEADRACE_QUARTERS(I, vandq_s32(a.v[i], b.v[i])) }
  static I imax(I a, I b) { HEADRACE_QUARTERS(I, vmaxq_s32(a.v[i], b.v[i])) }
  template <int S> static I shl(I a) { HEADRACE_QUARTERS(I, vshlq_n_s32(a.v[i], S)) }
  static I shift_left(I a, I by) { HEADRACE_QUARTERS(I, vshlq_s32(a.v[i], by.v[i])) }
  static I load_u8(const uint8_t* p) {
    uint8x16_t bytes = vld1q_u8(p);
    uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_u8(vget_high_u8(bytes));
    return {{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(low))),
             vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(high)))}};
  }
  static I load_s8(const int8_t* p) {
    int8x16_t bytes = vld1q_s8(p);
    int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
    return {{vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)), vmovl_s16(vget_low_s16(high)),
             vmovl_s16(vget_high_s16(high))}};
  }
  static int32_t sum(I a) { return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3]))); }
  static int32_t largest(I a) { return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.v[0], a.v[1]), vmaxq_s32(a.v[2], a.v[3]))); }
  static void largest_of(const I (&a)[4], int32_t* out) {
    for (int i = 0; i < 4; i++) out[i] = largest(a[i]);
  }
  static void sum_of(const I (&a)[4], int32_t* out) {
    for (int i = 0; i < 4; i++) out[i] = sum(a[i]);
  }

  static F to_float(I a) { HEADRACE_QUARTERS(F, vcvtq_f32_s32(a.v[i])) }
  static I round(F a) { HEADRACE_QUARTERS(I, vcvtnq_s32_f32(a.v[i])) }
  static I bits(F a) { HEADRACE_QUARTERS(I, vreinterpretq_s32_f32(a.v[i])) }
  static F from_bits(I a) { HEADRACE_QUARTERS(F, vreinterpretq_f32_s32(a.v[i])) }

  static B bload(const uint8_t* p) { HEADRACE_QUARTERS(B, vld1q_u8(p + 16 * i)) }
  static B bxor(B a, uint8_t x) { HEADRACE_QUARTERS(B, veorq_u8(a.v[i], vdupq_n_u8(x))) }
  static B low_nibbles(B a) { HEADRACE_QUARTERS(B, vandq_u8(a.v[i], vdupq_n_u8(15))) }
  static B high_nibbles(B a) { HEADRACE_QUARTERS(B, vshrq_n_u8(a.v[i], 4)) }
  template <int Value> static B add_where(B a, const uint8_t* p) {
    static const uint8_t kBits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    HEADRACE_QUARTERS(B, vaddq_u8(a.v[i], vandq_u8(vtstq_u8(vcombine_u8(vdup_n_u8(p[2 * i]), vdup_n_u8(p[2 * i + 1])),
                                                            vld1q_u8(kBits)),
                                                   vdupq_n_u8(Value))))
  }
  // Both operands are signed.
  static I dot(I acc, B a, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
    int8x16_t xs = vreinterpretq_s8_s32(vdupq_n_s32(four));
    HEADRACE_QUARTERS(I, vdotq_s32(acc.v[i], vreinterpretq_s8_u8(a.v[i]), xs))
  }

 private:
  static uint32x4_t pairs(const uint16_t* p) { return vreinterpretq_u32_u16(vld1q_u16(p)); }

  static uint16x4_t to_bfloat(float32x4_t a) {
    uint32x4_t bits = vreinterpretq_u32_f32(a), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(64 << 16));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(a, a), rounded, quiet), 16);
  }
#undef HEADRACE_QUARTERS
};

}  // namespace headrace
