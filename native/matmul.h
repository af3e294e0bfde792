// Products of some rows of activations with a packed matrix, panel by panel.
//
// The product of a group's 32 inputs is an exact integer: that of each half, shifted as its activations are. As a float it
// is added to the row's sum by one fma (and one more for the format's minimum), group after group from the first; at the
// end the sum is multiplied by the row's scale. Nothing else touches a row's sum, so its bits depend neither on the number
// of rows nor on the instruction set.
#pragma once

#include <cstdint>
#include <cstring>

#include "formats.h"
#include "rows.h"

namespace headrace {

// Panels may lie anywhere and be of different formats; the table says where each begins, in units of 32 bytes, and its
// FormatId. Dense panels do not mix with quantised ones.
struct Matrix {
  const uint8_t* data;
  const int32_t* table;  // [panels, 2]
  int64_t outputs, columns;

  int64_t panels() const { return (outputs + kPanel - 1) / kPanel; }
  const uint8_t* panel(int64_t i) const { return data + int64_t(table[2 * i]) * 32; }
  int format(int64_t i) const { return table[2 * i + 1]; }
};

enum class Activation { kNone, kSilu, kGelu };

struct Product {
  Matrix matrix;
  Rows rows;              // packed
  Activation activation;  // not kNone: panels are gate, up, gate, up, …, and the result is activation(gate) * up
  const float* bias;      // [outputs] or null
  const float* residual;  // like y, added to it, or null
  float* y;               // [rows, outputs], or half as many outputs with an activation
  bool past_caches;       // y is written to memory at once, see packing.h; then it and its rows are multiples of 64 bytes

  int64_t units() const { return activation == Activation::kNone ? matrix.panels() : matrix.panels() / 2; }
  int64_t width() const { return activation == Activation::kNone ? matrix.outputs : matrix.outputs / 2; }
};

// The vectors of a group's quants, four inputs each.
template <class V, int Bits> struct Quants {
  const uint8_t* p;

  template <class Use> void each(Use use) const {
    if constexpr (Bits == 8) {
#pragma GCC unroll 8
      for (int j = 0; j < 8; j++) {
        typename V::B w = V::bload(p + 64 * j);
        use(j, V::kSignedBytes ? V::bxor(w, 128) : w);
      }
    } else {
#pragma GCC unroll 4
      for (int j = 0; j < 4; j++) {
        typename V::B both = V::bload(p + 64 * j);
        use(2 * j, with_high(V::low_nibbles(both), 2 * j));
        use(2 * j + 1, with_high(V::high_nibbles(both), 2 * j + 1));
      }
    }
  }

  typename V::B with_high(typename V::B low, int j) const {
    if constexpr (Bits >= 5) low = V::template add_where<16>(low, p + 256 + 8 * j);
    if constexpr (Bits >= 6) low = V::template add_where<32>(low, p + 320 + 8 * j);
    return low;
  }
};

// The scales of a group's halves, which are one but in K6 formats, and what its minimum is worth.
template <class V, int Id> struct GroupScales {
  typename V::F scale[2], least{}, d{}, dmin{};

  // Of group g, group after group from the first; `p` is where its scales begin.
  void load(const uint8_t* p, int64_t g) {
    constexpr Format f = kFormats[Id];
    if constexpr (f.groups == 8) {
      if (g % 8 == 0) {
        d = V::load_half(reinterpret_cast<const uint16_t*>(p - f.super_bytes()));
        if constexpr (f.has_min()) dmin = V::load_half(reinterpret_cast<const uint16_t*>(p - f.super_bytes() + 32));
      }
    }
    if constexpr (f.scales == Scales::kF16 || f.scales == Scales::kF16M) {
      scale[0] = V::load_half(reinterpret_cast<const uint16_t*>(p));
      if constexpr (f.has_min()) least = V::load_half(reinterpret_cast<const uint16_t*>(p + 32));
    } else if constexpr (f.scales == Scales::kF32) {
      scale[0] = V::load(reinterpret_cast<const float*>(p));
    } else if constexpr (f.scales == Scales::kK) {
      scale[0] = V::mul(d, V::to_float(V::load_u8(p)));
      least = V::mul(dmin, V::to_float(V::load_u8(p + 16)));
    } else {
      for (int h = 0; h < 2; h++) scale[h] = V::mul(d, V::to_float(V::load_s8((const int8_t*)p + 16 * h)));
    }
  }
};

constexpr int kPrefetch = 2048;  // bytes ahead; 1,024 to 8,192 were tried

constexpr int log2_of(int power) { return power <= 1 ? 0 : 1 + log2_of(power / 2); }

// out [R, 16] = the block of R rows times one panel.
template <class V, int Id, int R>
void quantized_panel(const uint8_t* p, const uint8_t* block, int64_t groups, float* out) {
  using F = typename V::F;
  using I = typename V::I;
  constexpr Format f = kFormats[Id];
  // Signed bytes of eight bits have their zero at 0.
  constexpr int zero = f.bits == 8 && V::kSignedBytes ? 0 : f.zero;
  constexpr bool two = f.scales == Scales::kK6;  // each half of a group has a scale of its own
  GroupScales<V, Id> scales;
  F acc[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) acc[r] = V::zero();
  const RowGroup* x = reinterpret_cast<const RowGroup*>(block);
  for (int64_t g = 0; g < groups; g++, x += R) {
    if (f.groups == 8 && g % 8 == 0) p += f.super_bytes();
    // The processor itself does not look far enough ahead while many rows keep it busy (10 %). Fewer wait for memory anyway.
    if constexpr (R == 8) {
      for (int i = 0; i < f.group_bytes(); i += 64) __builtin_prefetch(p + kPrefetch + i);
    }
    scales.load(p, g);
    I total[R], first[R];
    // A half's product begins at minus what the zero adds to it.
    auto begin = [&](int h) {
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        if constexpr (!f.has_min() && zero != 0) {
          total[r] = V::template shl<log2_of(zero)>(V::iset1(x[r].minus[h]));
        } else {
          total[r] = V::izero();
        }
      }
    };
    auto end = [&](int h) {
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        I half = V::shift_left(total[r], V::iset1(x[r].left[h]));
        if constexpr (two) {
          acc[r] = V::fma(scales.scale[h], V::to_float(half), acc[r]);
        } else if (h == 0) {
          first[r] = half;
        } else {
          acc[r] = V::fma(scales.scale[0], V::to_float(V::iadd(first[r], half)), acc[r]);
        }
      }
    };
    begin(0);
    Quants<V, f.bits>{p + f.scale_bytes()}.each([&](int j, typename V::B w) {
      if (j == 4) end(0), begin(1);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) total[r] = V::dot(total[r], w, x[r].quants + 4 * j);
    });
    end(1);
    if constexpr (f.has_min()) {
      // A K format's minimum is subtracted, an F16M one's added.
#pragma GCC unroll 16
      for (int r = 0; r < R; r++)
        acc[r] = f.scales == Scales::kK ? V::fnma(scales.least, V::set1(x[r].sum), acc[r])
                                        : V::fma(scales.least, V::set1(x[r].sum), acc[r]);
    }
    p += f.group_bytes();
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) V::store(out + 16 * r, V::mul(acc[r], V::set1(reinterpret_cast<const float*>(x)[r])));
}

// The same for a dense matrix: sums in float32, input after input.
template <class V, bool Wide, int R>
void dense_panel(const uint8_t* p, const uint8_t* rows, int64_t columns, float* out) {
  using F = typename V::F;
  const float* x = reinterpret_cast<const float*>(rows);
  F acc[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) acc[r] = V::zero();
  for (int64_t k = 0; k < columns; k += Wide ? 1 : 2) {
    F w = Wide ? V::load(reinterpret_cast<const float*>(p) + 16 * k)
               : V::load_even_bfloat(reinterpret_cast<const uint16_t*>(p) + 16 * k);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) acc[r] = V::fma(w, V::set1(x[k * R + r]), acc[r]);
    if (!Wide && k + 1 < columns) {
      F odd = V::load_odd_bfloat(reinterpret_cast<const uint16_t*>(p) + 16 * k);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) acc[r] = V::fma(odd, V::set1(x[(k + 1) * R + r]), acc[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) V::store(out + 16 * r, acc[r]);
}

// The same as quantized_panel for 16 rows, by tiles; in tiled.h, for instruction sets that have them.
template <class V, int Id> void tiled_panel(const uint8_t* p, const uint8_t* block, int64_t groups, float* out);

using PanelKernel = void (*)(const uint8_t* panel, const uint8_t* rows, int64_t count, float* out);

template <class V, int Id, int R> constexpr PanelKernel quantized() {
  if constexpr (R == kTileHeight) {
    return tiled_panel<V, Id>;
  } else {
    return quantized_panel<V, Id, R>;
  }
}

// Kernels by the number of rows.
template <class V, int R> PanelKernel panel_kernel(int id) {
  if constexpr (R <= V::kRows) {
    switch (id) {
      case kQ4_0: return quantized<V, kQ4_0, R>();
      case kQ4_1: return quantized<V, kQ4_1, R>();
      case kQ5_0: return quantized<V, kQ5_0, R>();
      case kQ5_1: return quantized<V, kQ5_1, R>();
      case kQ8_0: return quantized<V, kQ8_0, R>();
      case kQ4_K: return quantized<V, kQ4_K, R>();
      case kQ5_K: return quantized<V, kQ5_K, R>();
      case kQ6_K: return quantized<V, kQ6_K, R>();
      case kInt8: return quantized<V, kInt8, R>();
      case kBfloat16: return dense_panel<V, false, R>;
      case kFloat32: return dense_panel<V, true, R>;
    }
  }
  return nullptr;
}

template <class V> PanelKernel panel_kernel(int id, int rows) {
  switch (rows) {
    case 1: return panel_kernel<V, 1>(id);
    case 2: return panel_kernel<V, 2>(id);
    case 4: return panel_kernel<V, 4>(id);
    case 8: return panel_kernel<V, 8>(id);
    default: return panel_kernel<V, kTileHeight>(id);
  }
}

// x * sigmoid(x), and x * Phi(x) in the tanh form: x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 x^3)).
template <class V> inline typename V::F activate(Activation kind, typename V::F x) {
  typename V::F inner = x;
  if (kind == Activation::kGelu) {
    typename V::F cube = V::mul(V::mul(x, x), x);
    inner = V::mul(V::set1(1.5957691216057308f), V::fma(V::set1(0.044715f), cube, x));
  }
  typename V::F one = V::set1(1.0f);
  return V::div(x, V::add(one, exp<V>(V::sub(V::zero(), inner))));
}

template <class V> inline void finish(const Product& p, int64_t unit, int64_t row, int R, const float* a, const float* up) {
  int64_t column = unit * kPanel, width = p.width();
  int n = int(width - column < kPanel ? width - column : kPanel);
  typename V::F result[V::kRows];
  for (int r = 0; r < R; r++) {
    typename V::F v = V::load(a + 16 * r);
    if (p.activation != Activation::kNone) v = V::mul(activate<V>(p.activation, v), V::load(up + 16 * r));
    if (p.bias != nullptr) v = V::add(v, V::load_n(p.bias + column, n));
    if (p.residual != nullptr) v = V::add(V::load_n(p.residual + (row + r) * width + column, n), v);
    result[r] = v;
  }
  // After all loads: rows often lie a multiple of 4 KB apart, and a load that looks like a store before it has to wait.
  for (int r = 0; r < R; r++) {
    float* y = p.y + (row + r) * width + column;
    if (p.past_caches) {
      V::stream(y, result[r]);
    } else {
      n == kPanel ? V::store(y, result[r]) : V::store_n(y, result[r], n);
    }
  }
}

// The units (panels, or pairs of a gate and an up panel) [begin, end) of a product, for all rows.
template <class V> void multiply(const Product& p, int64_t begin, int64_t end) {
  const Matrix& m = p.matrix;
  alignas(64) float out[2][16 * V::kRows];
  int parts = p.activation == Activation::kNone ? 1 : 2;
  int64_t row_bytes = p.rows.row_bytes(), length = p.rows.dense ? m.columns : m.columns / kGroup;
  for (int64_t unit = begin; unit < end; unit++) {
    for (int64_t row = 0; row < p.rows.count;) {
      int R = block_rows<V>(row, p.rows.count);
      for (int part = 0; part < parts; part++) {
        int64_t panel = unit * parts + part;
        const uint8_t* data = m.panel(panel);
        panel_kernel<V>(m.format(panel), R)(data, p.rows.packed + row * row_bytes, length, out[part]);
      }
      finish<V>(p, unit, row, R, out[0], out[1]);
      row += R;
    }
  }
  if (p.past_caches) V::fence();
}

}  // namespace headrace
