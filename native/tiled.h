// Products of 16 rows with a panel by tiles, to the same bits as by vectors: the tiles give the integer products of half
// groups, and what follows is as in quantized_panel.
//
// A tile of rows is 16 rows' quants of half a group as they lie in a block; a tile of weights is four vectors of a panel's
// quants, less their zero, so that signed bytes are multiplied by signed bytes and no sums of quants are needed.
//
// Half groups have shifts of their own, so a tile product sums only 16 inputs of the 64 that it could.
#pragma once

#include "kernels.h"
#include "matmul.h"
#include "simd/amx.h"

namespace headrace {

// Products in tiles 0 and 1, rows in 2 and 3, weights in 4 and 5: one for each half of a group.
constexpr TileConfig kTiles = {1, 0, {}, {64, 64, kHalf, kHalf, 64, 64}, {kTileHeight, kTileHeight, kTileHeight, kTileHeight, 4, 4}};
constexpr int kTileNumbers = kTileHeight * kPanel;  // of a tile of products

// products [2, 16, 16] = rows [16, 32 of `stride` bytes] x weights [8, 16, 4].
template <class T> inline void tile_products(const int8_t* rows, int64_t stride, const uint8_t* weights, int32_t* products) {
  T::template zero<0>();
  T::template zero<1>();
  T::template load<2>(rows, stride);
  T::template load<4>(weights, 64);
  T::template dot<0, 2, 4>();
  T::template load<3>(rows + kHalf, stride);
  T::template load<5>(weights + 256, 64);
  T::template dot<1, 3, 5>();
  T::template store<0>(products, 64);
  T::template store<1>(products + kTileNumbers, 64);
}

template <class V, int Id>
void tiled_panel(const uint8_t* p, const uint8_t* block, int64_t groups, float* out) {
  using F = typename V::F;
  using I = typename V::I;
  static constexpr Format f = kFormats[Id];
  constexpr int R = kTileHeight;
  alignas(64) uint8_t quants[512];
  alignas(64) int32_t products[2][2 * kTileNumbers];
  const RowGroup* x = reinterpret_cast<const RowGroup*>(block);
  auto multiply_group = [&](int64_t g) {
    Quants<V, f.bits>{p + f.group_at(g) + f.scale_bytes()}.each(
        [&](int j, typename V::B w) { V::bstore(quants + 64 * j, f.zero != 0 ? V::bsub(w, f.zero) : w); });
    tile_products<typename V::Tiles>(x[g * R].quants, sizeof(RowGroup), quants, products[g % 2]);
  };
  GroupScales<V, Id> scales;
  F acc[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) acc[r] = V::zero();
  if (groups > 0) multiply_group(0);
  for (int64_t g = 0; g < groups; g++) {
    if (g + 1 < groups) multiply_group(g + 1);  // the tiles are at work on it while this group's products are added
    scales.load(p + f.group_at(g), g);
    const RowGroup* row = x + g * R;
    const int32_t* product = products[g % 2];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      I half[2];
      for (int h = 0; h < 2; h++)
        half[h] = V::shift_left(V::iload(product + h * kTileNumbers + 16 * r), V::iset1(row[r].left[h]));
      if constexpr (f.scales == Scales::kK6) {
        for (int h = 0; h < 2; h++) acc[r] = V::fma(scales.scale[h], V::to_float(half[h]), acc[r]);
      } else {
        acc[r] = V::fma(scales.scale[0], V::to_float(V::iadd(half[0], half[1])), acc[r]);
      }
      if constexpr (f.scales == Scales::kK) acc[r] = V::fnma(scales.least, V::set1(row[r].sum), acc[r]);
      if constexpr (f.scales == Scales::kF16M) acc[r] = V::fma(scales.least, V::set1(row[r].sum), acc[r]);
    }
  }
  const float* factors = reinterpret_cast<const float*>(x + groups * R);
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) V::store(out + 16 * r, V::mul(acc[r], V::set1(factors[r])));
}

// The threads are XLA's: tiles are configured no longer than a call lasts.
template <class V> void multiply_with_tiles(const Product& p, int64_t begin, int64_t end) {
  const bool tiles = !p.rows.dense && p.rows.count >= kTileHeight;
  if (tiles) V::Tiles::configure(kTiles);
  multiply<V>(p, begin, end);
  if (tiles) V::Tiles::release();
}

// Whether tiles multiply all bytes as plain code does.
template <class T> bool tiles_work() {
  alignas(64) int8_t rows[kTileHeight * kGroup];
  alignas(64) uint8_t weights[512];
  alignas(64) int32_t products[2 * kTileNumbers];
  for (int i = 0; i < 512; i++) rows[i] = int8_t(37 * i + i / 256), weights[i] = uint8_t(91 * i + 5 + i / 256);
  T::configure(kTiles);
  tile_products<T>(rows, kGroup, weights, products);
  T::release();
  for (int i = 0; i < 2 * kTileNumbers; i++) {
    const int half = i / kTileNumbers, row = i / kPanel % kTileHeight, output = i % kPanel;
    int32_t sum = 0;
    for (int k = 0; k < kHalf; k++)
      sum += rows[row * kGroup + half * kHalf + k] * int8_t(weights[half * 256 + k / 4 * 64 + output * 4 + k % 4]);
    if (sum != products[i]) return false;
  }
  return true;
}

template <class V> uint64_t checksum_with_tiles() { return checksum<typename V::Vectors>() ^ uint64_t(!tiles_work<typename V::Tiles>()); }

// The table of vectors that have tiles: products by them, all else by the vectors alone.
template <class V> constexpr Kernels kernels_with_tiles() {
  Kernels k = kernels_of<typename V::Vectors>();
  k.name = V::kName, k.checksum = checksum_with_tiles<V>;
  k.most_rows = V::kRows, k.pack_rows = pack_rows<V>, k.multiply = multiply_with_tiles<V>;
  return k;
}

}  // namespace headrace
