// What is done to the tokens of a step before attention: norms and rotation of their heads, keys and values into the pages.
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

template <class V> struct TokenWriter {
  using F = typename V::F;

  static void normalise(float* x, const float* weight, int dim, float eps) {
    F squares = V::zero();
    for (int i = 0; i < dim; i += kLanes) {
      F part = V::load_n(x + i, least(dim - i, kLanes));
      squares = V::fma(part, part, squares);
    }
    F mean = V::set1(sum_lanes<V>(squares) / float(dim));
    F scale = V::div(V::set1(1.0f), V::sqrt(V::add(mean, V::set1(eps))));
    for (int i = 0; i < dim; i += kLanes) {
      int n = least(dim - i, kLanes);
      V::store_n(x + i, V::mul(V::mul(V::load_n(x + i, n), scale), V::load_n(weight + i, n)), n);
    }
  }

  // Dimension i is paired with i + half.
  static void rotate(float* x, const float* cosines, const float* sines, int half) {
    for (int i = 0; i < half; i += kLanes) {
      int n = least(half - i, kLanes);
      F a = V::load_n(x + i, n), b = V::load_n(x + half + i, n);
      F c = V::load_n(cosines + i, n), s = V::load_n(sines + i, n);
      V::store_n(x + i, V::fnma(b, s, V::mul(a, c)), n);
      V::store_n(x + half + i, V::fma(a, s, V::mul(b, c)), n);
    }
  }

  static void prepare_head(const AttentionWork& w, int64_t token, float* x, const float* norm) {
    int half = w.dim / 2;
    if (norm != nullptr) normalise(x, norm, w.dim, w.eps);
    if (w.cosines != nullptr) rotate(x, w.cosines + token * half, w.sines + token * half, half);
  }

  static void rotate_and_write(const AttentionWork& w, int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; token++) {
      float* out = w.out + token * w.heads * w.dim;
      if (uint32_t(w.token_rows[token]) >= uint64_t(w.rows)) {
        for (int i = 0; i < w.heads * w.dim; i++) out[i] = 0.0f;
        continue;
      }
      int64_t place = w.write_index[token];
      bool written = place >= 0 && place < w.num_pages * w.page_size;
      for (int head = 0; head < w.kv_heads; head++) {
        const float* in = w.qkv + (token * w.kv_heads + head) * (w.group() + 2) * w.dim;
        for (int g = 0; g < w.group(); g++, in += w.dim, out += w.dim) {
          copy<V>(out, in, w.dim);
          prepare_head(w, token, out, w.q_norm);
          for (int i = 0; i < w.dim; i += kLanes) {
            int n = least(w.dim - i, kLanes);
            V::store_n(out + i, V::mul(V::load_n(out + i, n), V::set1(w.scale)), n);
          }
        }
        if (written) write_head(w, token, head, place, in);
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
    copy<V>(key, in, w.dim);
    prepare_head(w, token, key, w.k_norm);
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
