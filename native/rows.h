// Rows of activations on their way into a product: normed, quantised, and put in the order in which the kernel reads them.
//
// Rows are handled in blocks of at most V::kRows. The rows of a block lie interleaved, group of 32 inputs after group:
//   32 * R bytes   quants: for each four inputs, the four of row 0, of row 1, …
//   R floats       d: what a quant is worth
//   R floats       d * sum of the quants, for weights that have a minimum
//   R int32        sum of the quants, for weights whose zero is not 0
//   R int32        sum of the first 16 of them, for weights with two scales in a group
// A row has a scale for each group: its largest magnitude / 127. Dense weights take floats: for each input those of row 0, 1, …
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "formats.h"
#include "simd/math.h"

namespace headrace {

constexpr int kRowGroupBytes = kGroup + 16;  // of a row and group, wherever it lies

struct Rows {
  const float* x;     // [count, columns]
  int64_t count;
  int64_t columns;    // of quantised products a multiple of 32
  const float* norm;  // [columns] weight of an RMS norm, or null
  float eps;
  bool dense;         // floats instead of quants
  uint8_t* packed;    // row_bytes() each

  int64_t row_bytes() const { return dense ? columns * 4 : columns / kGroup * kRowGroupBytes; }
};

// How many rows the block that begins at `row` has.
template <class V> inline int block_rows(int64_t row, int64_t count) {
  int64_t left = count - row;
  for (int size : {12, 8, 6, 4, 3, 2})
    if (size <= V::kRows && size <= left) return size;
  return 1;
}

// x [n] * 1 / rms(x) * weight (Zhang and Sennrich, arXiv:1910.07467).
template <class V> inline void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* y) {
  typename V::F total = V::zero();
  for (int64_t i = 0; i < n; i += 16) {
    typename V::F v = n - i >= 16 ? V::load(x + i) : V::load_n(x + i, int(n - i));
    total = V::fma(v, v, total);
  }
  float scale = 1.0f / std::sqrt(sum_lanes<V>(total) / float(n) + eps);
  for (int64_t i = 0; i < n; i += 16) {
    int m = n - i >= 16 ? 16 : int(n - i);
    typename V::F v = V::mul(V::mul(V::load_n(x + i, m), V::set1(scale)), V::load_n(weight + i, m));
    V::store_n(y + i, v, m);
  }
}

// One group of one row into its places of a block. Infinities and NaN make the group's scale NaN, and so the row's results.
template <class V> inline void quantize_group(const float* x, int r, int R, uint8_t* group) {
  using I = typename V::I;
  typename V::F a = V::load(x), b = V::load(x + 16);
  I magnitude = V::iset1(0x7fffffff);
  int32_t most_bits = V::largest(V::imax(V::iand(V::bits(a), magnitude), V::iand(V::bits(b), magnitude)));
  float most, d, per_unit;
  std::memcpy(&most, &most_bits, 4);
  if (most_bits >= 0x7f800000) {
    d = __builtin_nanf(""), per_unit = 0;
  } else if (most < 1e-30f) {  // 127 / most must be finite; whatever is that small counts as 0
    d = 0, per_unit = 0;
  } else {
    d = most / 127.0f, per_unit = 127.0f / most;
  }
  I qa = V::izero(), qb = V::izero();
  if (per_unit != 0) qa = V::round(V::mul(a, V::set1(per_unit))), qb = V::round(V::mul(b, V::set1(per_unit)));
  int8_t quants[kGroup];
  V::store_s8(quants, qa);
  V::store_s8(quants + 16, qb);
  for (int j = 0; j < kGroup / 4; j++) std::memcpy(group + (j * R + r) * 4, quants + 4 * j, 4);
  int32_t first = V::sum(qa), sum = first + V::sum(qb);
  float scaled_sum = d * float(sum);
  std::memcpy(group + kGroup * R + 4 * r, &d, 4);
  std::memcpy(group + (kGroup + 4) * R + 4 * r, &scaled_sum, 4);
  std::memcpy(group + (kGroup + 8) * R + 4 * r, &sum, 4);
  std::memcpy(group + (kGroup + 12) * R + 4 * r, &first, 4);
}

// Packs the block of rows [row, row + R). `buffer` has room for a row.
template <class V> inline void pack_rows(const Rows& rows, int64_t row, int R, float* buffer) {
  uint8_t* block = rows.packed + row * rows.row_bytes();
  for (int r = 0; r < R; r++) {
    const float* x = rows.x + (row + r) * rows.columns;
    if (rows.norm != nullptr) {
      rms_norm<V>(x, rows.norm, rows.eps, rows.columns, buffer);
      x = buffer;
    }
    if (rows.dense) {
      float* y = reinterpret_cast<float*>(block);
      for (int64_t k = 0; k < rows.columns; k++) y[k * R + r] = x[k];
    } else {
      for (int64_t k = 0; k < rows.columns; k += kGroup)
        quantize_group<V>(x + k, r, R, block + k / kGroup * kRowGroupBytes * R);
    }
  }
}

}  // namespace headrace
