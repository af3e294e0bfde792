#include "pack.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "simd/scalar.h"

namespace headrace {
namespace {

// A block of the file, taken apart. `quants` are as in a panel: unsigned, in the order of the inputs.
struct Block {
  uint16_t d, m;         // halves: scale and minimum, or those of a super block
  uint8_t scale[16];     // of each group, or of each half of a group
  uint8_t least[8];
  uint8_t quants[256];
};

int64_t block_bytes(int id) {
  constexpr int bytes[] = {18, 20, 22, 24, 34, 144, 176, 210};
  return bytes[id];
}

uint16_t half_at(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return h;
}

void nibbles(const uint8_t* p, int n, uint8_t* low, uint8_t* high) {
  for (int i = 0; i < n; i++) low[i] = p[i] & 15, high[i] = p[i] >> 4;
}

// The 6-bit scales and minimums of eight groups in 12 bytes, as ggml packs them.
void six_bit_scales(const uint8_t* p, Block& b) {
  for (int g = 0; g < 4; g++) {
    b.scale[g] = p[g] & 63;
    b.least[g] = p[g + 4] & 63;
    b.scale[g + 4] = (p[g + 8] & 15) | (p[g] >> 6) << 4;
    b.least[g + 4] = p[g + 8] >> 4 | (p[g + 4] >> 6) << 4;
  }
}

void read_block(int id, const uint8_t* p, Block& b) {
  switch (id) {
    case kQ4_0:
    case kQ5_0:
    case kQ8_0: b.d = half_at(p), p += 2; break;
    case kQ4_1:
    case kQ5_1:
    case kQ4_K:
    case kQ5_K: b.d = half_at(p), b.m = half_at(p + 2), p += 4; break;
    default: break;
  }
  if (id == kQ5_0 || id == kQ5_1) {
    uint32_t fifth;
    std::memcpy(&fifth, p, 4);
    nibbles(p + 4, 16, b.quants, b.quants + 16);
    for (int i = 0; i < 32; i++) b.quants[i] |= (fifth >> i & 1) << 4;
  } else if (id == kQ4_0 || id == kQ4_1) {
    nibbles(p, 16, b.quants, b.quants + 16);
  } else if (id == kQ8_0) {
    for (int i = 0; i < 32; i++) b.quants[i] = p[i] ^ 128;  // a signed byte plus 128
  } else if (id == kQ4_K || id == kQ5_K) {
    six_bit_scales(p, b);
    const uint8_t* high = p + 12;
    const uint8_t* low = id == kQ5_K ? high + 32 : high;
    for (int c = 0; c < 4; c++) nibbles(low + 32 * c, 32, b.quants + 64 * c, b.quants + 64 * c + 32);
    if (id == kQ5_K)
      for (int i = 0; i < 256; i++) b.quants[i] |= (high[i % 32] >> i / 32 & 1) << 4;
  } else if (id == kQ6_K) {
    const uint8_t *low = p, *high = p + 128;
    for (int h = 0; h < 2; h++, low += 64, high += 32) {
      nibbles(low, 64, b.quants + 128 * h, b.quants + 128 * h + 64);
      for (int i = 0; i < 128; i++) b.quants[128 * h + i] |= (high[i % 32] >> i / 32 * 2 & 3) << 4;
    }
    std::memcpy(b.scale, p + 192, 16);
    b.d = half_at(p + 208);
  }
}

// Quants [16 outputs][32 inputs] to vectors.
void put_quants(int bits, const uint8_t quants[kPanel][kGroup], uint8_t* out) {
  for (int n = 0; n < kPanel; n++) {
    const uint8_t* q = quants[n];
    if (bits == 8) {
      for (int k = 0; k < kGroup; k++) out[k / 4 * 64 + 4 * n + k % 4] = q[k];
      continue;
    }
    for (int j = 0; j < 4; j++)
      for (int i = 0; i < 4; i++) out[64 * j + 4 * n + i] = (q[8 * j + i] & 15) | (q[8 * j + 4 + i] & 15) << 4;
    for (int bit = 4; bit < bits; bit++)
      for (int k = 0; k < kGroup; k++) {
        int at = 4 * n + k % 4;
        out[256 + 64 * (bit - 4) + k / 4 * 8 + at / 8] |= (q[k] >> bit & 1) << at % 8;
      }
  }
}

void put_half(uint8_t* at, int n, uint16_t h) { std::memcpy(at + 2 * n, &h, 2); }

// Sixteen blocks, one of each output, to the groups of a panel.
uint8_t* put_blocks(int id, const Block* blocks, uint8_t* out) {
  const Format& f = kFormats[id];
  if (f.groups == 8) {
    for (int n = 0; n < kPanel; n++) {
      put_half(out, n, blocks[n].d);
      if (f.has_min()) put_half(out + 32, n, blocks[n].m);
    }
    out += f.super_bytes();
  }
  for (int g = 0; g < f.groups; g++, out += f.group_bytes()) {
    uint8_t quants[kPanel][kGroup];
    for (int n = 0; n < kPanel; n++) {
      const Block& b = blocks[n];
      std::memcpy(quants[n], b.quants + kGroup * g, kGroup);
      if (f.scales == Scales::kK) {
        out[n] = b.scale[g], out[16 + n] = b.least[g];
      } else if (f.scales == Scales::kK6) {
        out[n] = b.scale[2 * g], out[16 + n] = b.scale[2 * g + 1];
      } else {
        put_half(out, n, b.d);
        if (f.has_min()) put_half(out + 32, n, b.m);
      }
    }
    put_quants(f.bits, quants, out + f.scale_bytes());
  }
  return out;
}

void pack_dense(int id, const uint8_t* rows, int64_t outputs, int64_t columns, uint8_t* panels) {
  for (int64_t n = 0; n < outputs; n++) {
    uint8_t* panel = panels + n / kPanel * panel_bytes(id, columns);
    if (id == kFloat32) {
      for (int64_t k = 0; k < columns; k++) std::memcpy(panel + 4 * (16 * k + n % 16), rows + 4 * (n * columns + k), 4);
    } else {
      for (int64_t k = 0; k < columns; k++)
        std::memcpy(panel + 2 * (k / 2 * 32 + n % 16 * 2 + k % 2), rows + 2 * (n * columns + k), 2);
    }
  }
}

}  // namespace

int64_t panel_bytes(int id, int64_t columns) {
  if (id == kFloat32) return columns * 64;
  if (id == kBfloat16) return (columns + 1) / 2 * 64;
  if (id == kInt8) columns = (columns + kGroup - 1) / kGroup * kGroup;
  const Format& f = kFormats[id];
  return columns % (kGroup * f.groups) ? 0 : f.panel_bytes(columns);
}

void pack_rows_of_file(int id, const uint8_t* rows, int64_t outputs, int64_t columns, uint8_t* panels) {
  int64_t all = (outputs + kPanel - 1) / kPanel;
  std::memset(panels, 0, size_t(all * panel_bytes(id, columns)));
  if (is_dense(id)) return pack_dense(id, rows, outputs, columns, panels);
  int64_t blocks = columns / (kGroup * kFormats[id].groups), bytes = block_bytes(id);
  std::vector<Block> column(kPanel);
  for (int64_t p = 0; p < all; p++) {
    for (int64_t i = 0; i < blocks; i++) {
      for (int n = 0; n < kPanel; n++) {
        int64_t row = p * kPanel + n;
        if (row < outputs) {
          read_block(id, rows + (row * blocks + i) * bytes, column[size_t(n)]);
        } else {
          column[size_t(n)] = Block{};
        }
      }
      panels = put_blocks(id, column.data(), panels);
    }
  }
}

void pack_int8(const int8_t* values, const float* scales, int64_t outputs, int64_t columns, uint8_t* panels) {
  const Format& f = kFormats[kInt8];
  for (int64_t first = 0; first < outputs; first += kPanel)
    for (int64_t k = 0; k < columns; k += kGroup, panels += f.group_bytes()) {
      uint8_t quants[kPanel][kGroup];
      std::memset(quants, 128, sizeof quants);
      float d[kPanel] = {};
      for (int n = 0; n < kPanel && first + n < outputs; n++) {
        d[n] = scales[first + n];
        for (int64_t i = 0; i < kGroup && k + i < columns; i++)
          quants[n][i] = uint8_t(values[(first + n) * columns + k + i] + 128);
      }
      std::memcpy(panels, d, sizeof d);
      put_quants(8, quants, panels + f.scale_bytes());
    }
}

namespace {

int quant_at(int bits, const uint8_t* p, int row, int k) {
  if (bits == 8) return p[k / 4 * 64 + 4 * row + k % 4];
  int q = p[k / 8 * 64 + 4 * row + k % 4] >> (k / 4 % 2 * 4) & 15, at = 4 * row + k % 4;
  for (int bit = 4; bit < bits; bit++) q |= (p[256 + 64 * (bit - 4) + k / 4 * 8 + at / 8] >> at % 8 & 1) << bit;
  return q;
}

}  // namespace

void unpack_row(int id, const uint8_t* p, int row, int64_t columns, float* y) {
  if (is_dense(id)) {
    for (int64_t k = 0; k < columns; k++) {
      if (id == kFloat32) {
        std::memcpy(y + k, p + 4 * (16 * k + row), 4);
      } else {
        y[k] = bfloat_to_float(half_at(p + 2 * (k / 2 * 32 + row * 2 + k % 2)));
      }
    }
    return;
  }
  const Format& f = kFormats[id];
  float d = 0, dmin = 0;
  for (int64_t k = 0; k < columns; k += kGroup, p += f.group_bytes()) {
    if (f.groups == 8 && k % 256 == 0) {
      d = half_to_float(half_at(p + 2 * row));
      if (f.has_min()) dmin = half_to_float(half_at(p + 32 + 2 * row));
      p += f.super_bytes();
    }
    float scale[2], least = 0;  // of each half of the group
    if (f.scales == Scales::kK) {
      scale[0] = scale[1] = d * float(p[row]), least = -(dmin * float(p[16 + row]));
    } else if (f.scales == Scales::kK6) {
      for (int h = 0; h < 2; h++) scale[h] = d * float(int8_t(p[16 * h + row]));
    } else if (f.scales == Scales::kF32) {
      std::memcpy(scale, p + 4 * row, 4);
      scale[1] = scale[0];
    } else {
      scale[0] = scale[1] = half_to_float(half_at(p + 2 * row));
      if (f.has_min()) least = half_to_float(half_at(p + 32 + 2 * row));
    }
    const uint8_t* quants = p + f.scale_bytes();
    for (int i = 0; i < kGroup && k + i < columns; i++) {
      int q = quant_at(f.bits, quants, row, i);
      y[k + i] = f.has_min() ? scale[0] * float(q) + least : scale[i / 16] * float(q - f.zero);
    }
  }
}

}  // namespace headrace
