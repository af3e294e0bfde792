// What is done to the tokens of a step before attention: norms and rotation of their heads, keys and values into the pages.
#pragma once

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

// A pair of vectors as a page holds it; see attention.h.
template <class V> struct BfloatPage {
  using F = typename V::F;
  static constexpr int kPair = 64;  // bytes
  static F first(const char* p) { return V::from_bits(V::template shl<16>(V::iload((const int32_t*)p))); }
  static F second(const char* p) {
    return V::from_bits(V::iand(V::iload((const int32_t*)p), V::iset1(int32_t(0xffff0000u))));
  }
  static void fetch(const char* p) { __builtin_prefetch(p, 0, 2); }
  static void store(char* p, size_t stride, const float* first, const float* second, int n) {
    uint16_t a[kLanes], b[kLanes];
    V::store_bfloat(a, V::load(first));
    V::store_bfloat(b, V::load(second));
    for (int i = 0; i < n; i++) *(int32_t*)(p + i * stride) = int32_t(uint32_t(b[i]) << 16 | a[i]);
  }
};

template <class V> struct FloatPage {
  using F = typename V::F;
  static constexpr int kPair = 128;
  static F first(const char* p) { return V::load((const float*)p); }
  static F second(const char* p) { return V::load((const float*)p + kLanes); }
  static void fetch(const char* p) { __builtin_prefetch(p, 0, 2), __builtin_prefetch(p + 64, 0, 2); }
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
    int64_t offset = place % w.page_size, lane = offset % kLanes;
    int pair = w.bfloat ? BfloatPage<V>::kPair : FloatPage<V>::kPair;
    keys += offset / kLanes * (w.width / 2) * pair;
    char* values = w.pages + ((place / w.page_size * w.kv_heads + head) * 2 + 1) * w.part_bytes();
    values += offset * (w.width / 32) * pair;

    float key[kMostDim];
    copy<V>(key, in, w.dim);
    prepare_head(w, token, key, w.k_norm);
    for (int i = 0; i < w.dim; i += 2 * kLanes) {
      // Dimensions of a key go to 16 rows of pairs, a lane of each; a tail's further ones are never read.
      float even[kLanes] = {}, odd[kLanes] = {};
      int pairs = least((w.dim - i) / 2, kLanes);
      for (int j = 0; j < pairs; j++) even[j] = key[i + 2 * j], odd[j] = key[i + 2 * j + 1];
      char* at = keys + i / 2 * pair;
      if (w.bfloat) {
        BfloatPage<V>::store(at + 4 * lane, BfloatPage<V>::kPair, even, odd, pairs);
      } else {
        for (int j = 0; j < pairs; j++) {
          float* to = (float*)(at + j * FloatPage<V>::kPair) + lane;
          to[0] = even[j], to[kLanes] = odd[j];
        }
      }
      float value[2 * kLanes] = {};
      copy<V>(value, in + w.dim + i, least(w.dim - i, 2 * kLanes));
      if (w.bfloat) {
        BfloatPage<V>::store(values + i / 32 * pair, 4, value, value + kLanes, kLanes);
      } else {
        copy<V>((float*)(values + i / 32 * pair), value, 2 * kLanes);
      }
    }
  }
};

}  // namespace headrace
