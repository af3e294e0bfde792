// Block formats of quantised weights, and how a matrix in one of them is laid out for the products.
//
// The values are those of the GGUF file, number for number; only their order differs. A matrix [out, in] is cut into
// panels of 16 outputs, a panel into groups of 32 inputs. The bytes of a panel, group after group:
//
//   super block (formats of 256, before every eighth group): 16 halves d [, 16 halves dmin]
//   group: scales, then quants
//     scales   F16: 16 halves d        F16M: 16 halves d, 16 halves m
//              K:   16 bytes scale, 16 bytes min       K6: 2 x 16 signed bytes, one for each 16 inputs
//              F32: 16 floats d
//     quants   4 bits: four vectors of 64 bytes; the byte 4 * n + i of vector j holds output n, in its low half input
//                8j + i and in its high half input 8j + 4 + i
//              5, 6 bits: the same for the low 4 bits, then for each further bit eight vectors of 64 bits: bit 4 * n + i
//                of vector j belongs to input 4j + i of output n
//              8 bits: eight vectors of 64 bytes; byte 4 * n + i of vector j is input 4j + i of output n
//
// So four neighbouring inputs of 16 outputs are one vector, which is what a dot product instruction multiplies by four
// activations (and, stored one under the other, what an AMX tile holds). Quants are unsigned; a value is
// scale * (quant - zero), or scale * quant + min.
#pragma once

#include <cstdint>

namespace headrace {

constexpr int kPanel = 16;  // outputs of a panel
constexpr int kGroup = 32;  // inputs of a group

enum class Scales { kF16, kF16M, kK, kK6, kF32 };

struct Format {
  int bits;       // of a quant
  int zero;       // what a quant is above its value, where there is no min
  Scales scales;
  int groups;     // of a block of the file: 1, or 8 where it has scales of two levels

  constexpr bool has_min() const { return scales == Scales::kF16M || scales == Scales::kK; }
  constexpr int scale_bytes() const { return scales == Scales::kF16M || scales == Scales::kF32 ? 64 : 32; }
  constexpr int quant_bytes() const { return bits == 8 ? 512 : 256 + 64 * (bits - 4); }
  constexpr int group_bytes() const { return scale_bytes() + quant_bytes(); }
  // Of the halves before every eighth group.
  constexpr int super_bytes() const { return scales == Scales::kK ? 64 : scales == Scales::kK6 ? 32 : 0; }
  // Where in a panel the scales of group g begin.
  constexpr int64_t group_at(int64_t g) const { return g * group_bytes() + (g / 8 + 1) * super_bytes(); }
  constexpr int64_t panel_bytes(int64_t columns) const {
    int64_t n = columns / kGroup;
    return n * group_bytes() + (groups == 8 ? n / 8 * super_bytes() : 0);
  }
};

// The numbers are those that Python knows the formats by, and that stand in a packed matrix's table of panels.
enum FormatId : int { kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K, kInt8, kBfloat16, kFloat32 };

constexpr Format kFormats[] = {
    {4, 8, Scales::kF16, 1},  {4, 0, Scales::kF16M, 1}, {5, 16, Scales::kF16, 1}, {5, 0, Scales::kF16M, 1},
    {8, 128, Scales::kF16, 1}, {4, 0, Scales::kK, 8},    {5, 0, Scales::kK, 8},    {6, 32, Scales::kK6, 8},
    {8, 128, Scales::kF32, 1},
};

// Dense panels: bfloat16 as [columns / 2, 16, 2] (an odd column more is 0), float32 as [columns, 16].
constexpr bool is_dense(int id) { return id == kBfloat16 || id == kFloat32; }

}  // namespace headrace
