// Tiles beside the vectors of AVX-512 and BF16: AMX-TILE and AMX-INT8, and the operating system's permission, are needed as well.
#pragma once

#include <cstdint>

#include "avx512_bf16.h"

namespace headrace {

// What ldtilecfg reads: of each tile its rows and their bytes.
struct alignas(64) TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);

// The instructions, tiles by their numbers. GCC's functions for them do not tell it that a load reads memory, so that it may
// leave out what was stored there.
struct HardwareTiles {
  static constexpr const char* kName = "amx";

  static void configure(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }
  static void release() { asm volatile("tilerelease"); }
  template <int T> static void zero() { asm volatile("tilezero %%tmm%c0" ::"i"(T)); }
  template <int T> static void load(const void* p, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(T) : "memory");
  }
  template <int T> static void store(void* p, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(T) : "memory");
  }
  // c += a * b: c [m, n] int32, a [m, k] and b [k / 4, n, 4] signed bytes.
  template <int C, int A, int B> static void dot() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
};

// With `T` for tiles, which tests emulate.
template <class T> struct WithTiles : Avx512_bf16 {
  static constexpr const char* kName = T::kName;
  static constexpr int kRows = 16;

  using Tiles = T;
  using Vectors = Avx512_bf16;

  static void bstore(uint8_t* p, B a) { _mm512_storeu_si512(p, a); }
  static B bsub(B a, uint8_t x) { return _mm512_sub_epi8(a, _mm512_set1_epi8(char(x))); }
};

using Amx = WithTiles<HardwareTiles>;

}  // namespace headrace
