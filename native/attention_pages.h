// What is done to the heads of a step's tokens before attention: norms and rotation, and keys and values into the pages.
#pragma once

#include <cstring>

#include "attention.h"
#include "simd/math.h"

namespace headrace {

constexpr int least(int a, int b) { return a < b ? a : b; }

template <class V> inline void copy(float* to, const float* from, int n) {
  for (int i = 0; i < n; i += kLanes) {
    int count = least(n - i, kLanes);
    V::store_n(to + i, V::load_n(from + i, count), count);
  }
}

// What the pages of one dtype hold, and how queries and weights are multiplied by it; see attention.h. With instructions
// for bfloat16 a pair of queries' dimensions, or of weights, is 32 bits; else floats.
template <class V> struct BfloatPage {
  using F = typename V::F;
  using I = typename V::I;
  static constexpr bool kDots = V::kDotsBfloat;
  static constexpr int kPair = 64;  // bytes of a pair of dimensions of 16 keys
  static constexpr int kKeys = 2;   // of a row of values
  static constexpr int kQueryPair = kDots ? 1 : 2;  // numbers of 32 bits

  static F first(const char* p) { return low(V::iload((const int32_t*)p)); }
  static F second(const char* p) { return high(V::iload((const int32_t*)p)); }
  static void fetch(const char* p) { __builtin_prefetch(p, 0, 2); }

  // n dimensions of one of R queries.
  static void put_query(float* q, int R, F x, int n) {
    uint16_t bits[kLanes];
    V::store_bfloat(bits, x);
    for (int i = 0; i < n; i += 2) {
      const uint32_t even = bits[i], odd = uint32_t(bits[i + 1]) << 16;
      if constexpr (kDots) {
        put(q + i / 2 * R, even | odd);
      } else {
        put(q + i * R, even << 16), put(q + (i + 1) * R, odd);
      }
    }
  }

  // Block b of one query's weights, which are returned as they count.
  static F put_weights(float* s, int b, F p) {
    uint16_t bits[kLanes];
    V::store_bfloat(bits, p);
    const F rounded = V::load_bfloat(bits);
    if constexpr (kDots) {
      std::memcpy(reinterpret_cast<uint16_t*>(s) + b * kLanes, bits, sizeof bits);
    } else {
      V::store(s + b * kLanes, rounded);
    }
    return rounded;
  }

  // Row j of values: keys 2j in the low halves and 2j + 1 in the high ones.
  template <int R, int N, int Stride> static void weigh(F (&a)[R][N], const I (&x)[N], const float* p, int j) {
    if constexpr (kDots) {
#pragma GCC unroll 16
      for (int r = 0; r < R; r++)
        for (int c = 0; c < N; c++) a[r][c] = dot_bfloat<V>(a[r][c], x[c], V::iset1(reinterpret_cast<const int32_t*>(p + r * Stride)[j]));
    } else {
      F half[N];
      for (int c = 0; c < N; c++) half[c] = high(x[c]);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++)
        for (int c = 0; c < N; c++) a[r][c] = V::fma(V::set1(p[r * Stride + 2 * j + 1]), half[c], a[r][c]);
      for (int c = 0; c < N; c++) half[c] = low(x[c]);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++)
        for (int c = 0; c < N; c++) a[r][c] = V::fma(V::set1(p[r * Stride + 2 * j]), half[c], a[r][c]);
    }
  }

 private:
  static F low(I x) { return V::from_bits(V::template shl<16>(x)); }
  static F high(I x) { return V::from_bits(V::iand(x, V::iset1(int32_t(0xffff0000u)))); }
  static void put(float* to, uint32_t bits) { std::memcpy(to, &bits, 4); }
};

template <class V> struct FloatPage {
  using F = typename V::F;
  using I = typename V::I;
  static constexpr bool kDots = false;
  static constexpr int kPair = 128, kKeys = 1, kQueryPair = 2;

  static F first(const char* p) { return V::load((const float*)p); }
  static F second(const char* p) { return V::load((const float*)p + kLanes); }
  static void fetch(const char* p) { __builtin_prefetch(p, 0, 2), __builtin_prefetch(p + 64, 0, 2); }
  static void put_query(float* q, int R, F x, int n) {
    float values[kLanes];
    V::store(values, x);
    for (int i = 0; i < n; i++) q[i * R] = values[i];
  }
  static F put_weights(float* s, int b, F p) {
    V::store(s + b * kLanes, p);
    return p;
  }
  template <int R, int N, int Stride> static void weigh(F (&a)[R][N], const I (&x)[N], const float* p, int j) {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
      for (int c = 0; c < N; c++) a[r][c] = V::fma(V::set1(p[r * Stride + j]), V::from_bits(x[c]), a[r][c]);
  }
};

template <class V> struct TokenHeads {
  using F = typename V::F;

  // A head [dim] with norm and rotation, times `factor`. Of a rotated pair one is dimension i and the other i + dim / 2.
  static void prepare_head(const AttentionWork& w, int64_t token, const float* in, const float* norm, float factor, float* x) {
    const F scale = norm == nullptr ? V::zero() : inverse_rms(in, w.dim, w.eps), by = V::set1(factor);
    auto load = [&](int i, int n) {
      const F v = V::load_n(in + i, n);
      return norm == nullptr ? v : V::mul(V::mul(v, scale), V::load_n(norm + i, n));
    };
    // Not by parts where it is whole: what reads it would have to wait for the memory.
    auto store = [&](int i, F v, int n) { n == kLanes ? V::store(x + i, V::mul(v, by)) : V::store_n(x + i, V::mul(v, by), n); };
    if (w.cosines == nullptr) {
      for (int i = 0; i < w.dim; i += kLanes) store(i, load(i, least(w.dim - i, kLanes)), least(w.dim - i, kLanes));
      return;
    }
    const int half = w.dim / 2;
    for (int i = 0; i < half; i += kLanes) {
      const int n = least(half - i, kLanes);
      const F a = load(i, n), b = load(half + i, n);
      const F c = V::load_n(w.cosines + token * half + i, n), s = V::load_n(w.sines + token * half + i, n);
      store(i, V::fnma(b, s, V::mul(a, c)), n);
      store(half + i, V::fma(a, s, V::mul(b, c)), n);
    }
  }

  static F inverse_rms(const float* x, int dim, float eps) {
    F squares = V::zero();
    for (int i = 0; i < dim; i += kLanes) {
      const F part = V::load_n(x + i, least(dim - i, kLanes));
      squares = V::fma(part, part, squares);
    }
    const F mean = V::set1(sum_lanes<V>(squares) / float(dim));
    return V::div(V::set1(1.0f), V::sqrt(V::add(mean, V::set1(eps))));
  }

  // Query head g of those that share a key/value head -> x [dim].
  static void load_query(const AttentionWork& w, int64_t token, int kv_head, int g, float* x) {
    prepare_head(w, token, w.qkv + ((token * w.kv_heads + kv_head) * (w.group() + 2) + g) * w.dim, w.q_norm, w.scale, x);
  }

  static void write(const AttentionWork& w, int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; token++) {
      if (uint32_t(w.token_rows[token]) >= uint64_t(w.rows)) {
        float* out = w.out + token * w.heads * w.dim;
        for (int i = 0; i < w.heads * w.dim; i++) out[i] = 0.0f;
        continue;
      }
      const int64_t place = w.write_index[token];
      if (place < 0 || place >= w.num_pages * w.page_size) continue;
      for (int head = 0; head < w.kv_heads; head++) {
        write_head(w, token, head, place, w.qkv + ((token * w.kv_heads + head) * (w.group() + 2) + w.group()) * w.dim);
      }
    }
  }

  static void write_head(const AttentionWork& w, int64_t token, int head, int64_t place, const float* in) {
    char* keys = w.pages + (place / w.page_size * w.kv_heads + head) * 2 * w.part_bytes();
    const int64_t offset = place % w.page_size, lane = offset % kLanes, row = int64_t(w.width) * 4;
    const int pair = w.bfloat ? BfloatPage<V>::kPair : FloatPage<V>::kPair;
    keys += offset / kLanes * (w.width / 2) * pair;
    char* values = w.pages + ((place / w.page_size * w.kv_heads + head) * 2 + 1) * w.part_bytes();
    values += w.bfloat ? offset / 2 * row + offset % 2 * 2 : offset * row;

    float key[kMostDim];
    prepare_head(w, token, in, w.k_norm, 1.0f, key);
    for (int i = 0; i < w.dim; i += 2 * kLanes) {
      // Dimensions of a key go to 16 rows of pairs, a lane of each; a tail's further ones are never read.
      float even[kLanes] = {}, odd[kLanes] = {};
      int pairs = least((w.dim - i) / 2, kLanes);
      for (int j = 0; j < pairs; j++) even[j] = key[i + 2 * j], odd[j] = key[i + 2 * j + 1];
      char* at = keys + i / 2 * pair + 4 * lane;
      float value[2 * kLanes] = {};
      copy<V>(value, in + w.dim + i, least(w.dim - i, 2 * kLanes));
      if (w.bfloat) {
        uint16_t bits[4 * kLanes];
        V::store_bfloat(bits, V::load(even)), V::store_bfloat(bits + kLanes, V::load(odd));
        V::store_bfloat(bits + 2 * kLanes, V::load(value)), V::store_bfloat(bits + 3 * kLanes, V::load(value + kLanes));
        for (int j = 0; j < pairs; j++) *(int32_t*)(at + j * pair) = int32_t(uint32_t(bits[kLanes + j]) << 16 | bits[j]);
        for (int j = 0; j < 2 * kLanes; j++) *(uint16_t*)(values + (i + j) * 4) = bits[2 * kLanes + j];
      } else {
        for (int j = 0; j < pairs; j++) {
          float* to = (float*)(at + j * pair);
          to[0] = even[j], to[kLanes] = odd[j];
        }
        copy<V>((float*)(values + i * 4), value, 2 * kLanes);
      }
    }
  }
};

}  // namespace headrace
