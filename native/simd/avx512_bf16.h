// AVX-512 with dot products of bfloat16; needs BF16 too.
#pragma once

#include "avx512.h"

namespace headrace {

struct Avx512_bf16 : Avx512 {
  static constexpr const char* kName = "avx512_bf16";
  static constexpr bool kDotsBfloat = true;

  // Subnormal numbers count as 0, other than in math.h: weights and products that small are lost in what they are added to.
  static F dot_bfloat(F acc, I a, I b) { return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b); }
};

}  // namespace headrace
