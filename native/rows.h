// Rows of activations on their way into a product: normed, quantised, and put in the order in which the kernel reads them.
//
// An input is quant * 2^-shift * scale: a row has a scale, what its largest magnitude / 127 is, and each half of a group a
// shift, so that its quants use their 8 bits. So a half's product is scaled by shifting an integer, which on Zen 4 runs
// beside the dot products where a multiplication would take their place (a sixth more speed); shifts are at most 12, so
// that no sum leaves 32 bits: 2 halves * 16 inputs * 127 * 128 * 2^12 < 2^31. What is smaller loses bits, next to inputs
// 4,096 times as large. With one scale for 32 inputs perplexity rises by more than half a percent.
//
// Rows are handled in blocks of at most V::kRows. A block holds, for the first 32 inputs, a RowGroup of each of its rows,
// then those for the next 32, …, and after them R floats, the rows' scales * 2^-12. For dense weights it holds floats: for
// each input those of row 0, 1, …
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "formats.h"
#include "simd/math.h"

namespace headrace {

constexpr int kHalf = kGroup / 2;            // inputs that share a shift
constexpr int kMaxShift = 12;
constexpr int kTileHeight = 16;              // rows of a block that is multiplied by tiles

// A group of a row.
struct RowGroup {
  int8_t quants[kGroup];
  int32_t left[2];   // by how much to shift the products of its halves: 12 - shift
  int32_t minus[2];  // minus the sum of the quants of each half, for weights whose zero is not 0
  float sum;         // of all quants, shifted like that, for weights that have a minimum
};

struct Rows {
  const float* x;     // [count, columns]
  int64_t count;
  int64_t columns;    // of quantised products a multiple of 32
  const float* norm;  // [columns] weight of an RMS norm, or null
  float eps;
  bool dense;         // floats instead of quants
  uint8_t* packed;    // row_bytes() each

  int64_t row_bytes() const { return dense ? columns * 4 : columns / kGroup * int64_t(sizeof(RowGroup)) + 4; }
};

// How many rows the block that begins at `row` has.
template <class V> inline int block_rows(int64_t row, int64_t count) {
  int64_t left = count - row;
  for (int size : {kTileHeight, 8, 4, 2})
    if (size <= V::kRows && size <= left) return size;
  return 1;
}

// x [n] * 1 / rms(x) * weight (Zhang and Sennrich, arXiv:1910.07467). Four sums at once, since one fma waits for the last.
template <class V> inline void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* y) {
  using F = typename V::F;
  F totals[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  const int64_t whole = n / 16 * 16;
  const int m = int(n - whole);
  int64_t i = 0;
  for (; i + 64 <= whole; i += 64) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) totals[j] = V::fma(V::load(x + i + 16 * j), V::load(x + i + 16 * j), totals[j]);
  }
  for (; i < whole; i += 16) totals[0] = V::fma(V::load(x + i), V::load(x + i), totals[0]);
  const F rest = V::load_n(x + whole, m);
  totals[1] = V::fma(rest, rest, totals[1]);
  const float total = sum_lanes<V>(V::add(V::add(totals[0], totals[1]), V::add(totals[2], totals[3])));
  const F scale = V::set1(1.0f / std::sqrt(total / float(n) + eps));
#pragma GCC unroll 4
  for (i = 0; i < whole; i += 16) V::store(y + i, V::mul(V::mul(V::load(x + i), scale), V::load(weight + i)));
  if (m != 0) V::store_n(y + whole, V::mul(V::mul(rest, scale), V::load_n(weight + whole, m)), m);
}

// y [n] = residual + rms_norm(y); `buffer` has room for n.
template <class V>
void add_norm(const float* residual, const float* weight, float eps, int64_t n, float* y, float* buffer) {
  rms_norm<V>(y, weight, eps, n, buffer);
  for (int64_t i = 0; i < n; i++) y[i] = residual[i] + buffer[i];
}

// Four halves of x, those from `count` on 0.
template <class V> inline void load_halves(const float* x, int64_t count, typename V::F (&v)[4]) {
  for (int h = 0; h < 4; h++) v[h] = h < count ? V::load(x + kHalf * h) : V::zero();
}

// The largest magnitude of each half of a row, and of all, as the bits of floats: those of NaN and infinity are the largest.
template <class V> inline int32_t magnitudes(const float* x, int64_t halves, int32_t* largest) {
  typename V::I most = V::izero();
  for (int64_t at = 0; at < halves; at += 4) {
    typename V::F v[4];
    typename V::I bits[4];
    load_halves<V>(x + at * kHalf, halves - at, v);
    for (int h = 0; h < 4; h++) bits[h] = V::iand(V::bits(v[h]), V::iset1(0x7fffffff));
    V::largest_of(bits, largest + at);
    most = V::imax(most, V::imax(V::imax(bits[0], bits[1]), V::imax(bits[2], bits[3])));
  }
  return V::largest(most);
}

// One row of a block of R into groups[0], groups[R], … Gives its scale * 2^-12, which is NaN if there is a NaN or an
// infinity in the row, and makes all its results NaN. `largest` has room for a number for each half, and three.
template <class V> inline float quantize_row(const float* x, int64_t columns, int R, RowGroup* groups, int32_t* largest) {
  const int64_t halves = columns / kHalf;
  const int32_t bits = magnitudes<V>(x, halves, largest);
  float most;
  std::memcpy(&most, &bits, 4);
  if (bits >= 0x7f800000 || most < 1e-30f) {  // 127 / most must be finite; whatever is that small counts as 0
    for (int64_t g = 0; g < columns / kGroup; g++) groups[g * R] = RowGroup{};
    return bits >= 0x7f800000 ? __builtin_nanf("") : 0.0f;
  }
  const float factor = 127.0f / most;
  int32_t factor_bits;
  std::memcpy(&factor_bits, &factor, 4);
  for (int64_t at = 0; at < halves; at += 4, groups += 2 * R) {
    typename V::F v[4];
    typename V::I q[4];
    int32_t sums[4];
    load_halves<V>(x + at * kHalf, halves - at, v);
    const int count = halves - at < 4 ? 2 : 4;
    for (int h = 0; h < count; h++) {
      // The largest shift with which the half's magnitudes stay below the row's; above bit 23 is a float's exponent.
      const int32_t distance = (bits - largest[at + h]) >> 23, shift = distance < kMaxShift ? distance : kMaxShift;
      groups[h / 2 * R].left[h % 2] = kMaxShift - shift;
      q[h] = V::round(V::mul(v[h], V::from_bits(V::iset1(factor_bits + (shift << 23)))));
      V::store_s8(groups[h / 2 * R].quants + h % 2 * kHalf, q[h]);
    }
    for (int h = count; h < 4; h++) q[h] = V::izero();
    V::sum_of(q, sums);
    for (int h = 0; h < count; h += 2) {
      RowGroup& group = groups[h / 2 * R];
      group.minus[0] = -sums[h], group.minus[1] = -sums[h + 1];
      group.sum = float(sums[h] * (1 << group.left[0]) + sums[h + 1] * (1 << group.left[1]));
    }
  }
  return most / (127.0f * (1 << kMaxShift));
}

// How many floats pack_rows needs as its buffer.
inline int64_t pack_buffer(int64_t columns) { return columns + columns / kHalf + 3; }

// Row r of the block of R rows that begins at `row`.
template <class V> inline void pack_row(const Rows& rows, int64_t row, int R, int r, float* buffer) {
  uint8_t* block = rows.packed + row * rows.row_bytes();
  const float* x = rows.x + (row + r) * rows.columns;
  if (rows.norm != nullptr) {
    rms_norm<V>(x, rows.norm, rows.eps, rows.columns, buffer);
    x = buffer;
  }
  if (rows.dense) {
    float* y = reinterpret_cast<float*>(block);
    for (int64_t k = 0; k < rows.columns; k++) y[k * R + r] = x[k];
  } else {
    RowGroup* groups = reinterpret_cast<RowGroup*>(block);
    const float scale = quantize_row<V>(x, rows.columns, R, groups + r, reinterpret_cast<int32_t*>(buffer + rows.columns));
    std::memcpy(reinterpret_cast<float*>(groups + rows.columns / kGroup * R) + r, &scale, 4);
  }
}

// Packs the rows [begin, end).
template <class V> inline void pack_rows(const Rows& rows, int64_t begin, int64_t end, float* buffer) {
  // Half of a row was written by another core: fetched one after the other, lines take several times as long.
  auto fetch = [&rows](int64_t row) {
    for (int64_t k = 0; k < rows.columns; k += 16) __builtin_prefetch(rows.x + row * rows.columns + k);
  };
  int64_t block = begin / V::kRows * V::kRows;  // whole blocks come first
  int R = block_rows<V>(block, rows.count);
  if (begin < end) fetch(begin);
  for (int64_t row = begin; row < end; row++) {
    while (row >= block + R) block += R, R = block_rows<V>(block, rows.count);
    if (row + 1 < end) fetch(row + 1);
    pack_row<V>(rows, block, R, int(row - block), buffer);
  }
}

}  // namespace headrace
