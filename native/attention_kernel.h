// Ragged paged attention over an instruction set's 16 lanes.
//
// Sixteen keys are the lanes of a vector of scores, and sixteen columns those of weighted values, so that nothing is
// summed across lanes but once for each query. All sums run over dimensions and keys in ascending order, by fma; how
// many queries and keys are worked on together does not show. Keys that a query does not see get the weight 0.
//
// With pages of bfloat16, queries and weights are rounded to it as well, and two products are added to a sum at a time, the
// second's first: what `vdpbf16ps` does, twice as fast as two fma, and what two fma do elsewhere.
//
// The state of one query after some segments: weighted values [width], the sum of its weights in 16 parts, and a vector
// that holds the maximum of its scores, to which the weights are relative, in lane 0.
#pragma once

#include "attention_pages.h"

namespace headrace {

template <class V> struct Attention {
  using F = typename V::F;
  using I = typename V::I;

  static constexpr bool kWide = V::kRows >= 8;  // registers for 24 vectors of sums, or for 4 (a vector may take several)
  static constexpr int kQueries = kWide ? 12 : 4;
  static constexpr int kStride = kSegment + kLanes;  // of a query's scores; no power of two, which would crowd the cache
  static constexpr float kNothing = -3e38f;          // the maximum of no scores; finite, as infinity - infinity is NaN

  using BfloatPage = headrace::BfloatPage<V>;
  using FloatPage = headrace::FloatPage<V>;

  // Scores and weighted values.

  // Queries q, in the form that Page takes, · K blocks of 16 keys -> s [R, kStride]. Meanwhile as much is fetched from
  // `ahead`.
  template <class Page, int R, int K>
  static void scores_of(const float* q, const char* const* keys, const char* const* ahead, int pairs, float* s) {
    F acc[R][K];
    for (int r = 0; r < R; r++)
      for (int k = 0; k < K; k++) acc[r][k] = V::zero();
    for (int i = 0; i < pairs; i++, q += Page::kQueryPair * R) {
      const size_t at = size_t(i) * Page::kPair;
      for (int k = 0; k < K; k++) Page::fetch(ahead[k] + at);
      if constexpr (Page::kDots) {
        I x[K];
        for (int k = 0; k < K; k++) x[k] = V::iload((const int32_t*)(keys[k] + at));
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
          for (int k = 0; k < K; k++) acc[r][k] = dot_bfloat<V>(acc[r][k], x[k], V::iset1(((const int32_t*)q)[r]));
      } else {
        F x[K];
        for (int k = 0; k < K; k++) x[k] = Page::second(keys[k] + at);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
          for (int k = 0; k < K; k++) acc[r][k] = V::fma(V::set1(q[R + r]), x[k], acc[r][k]);
        for (int k = 0; k < K; k++) x[k] = Page::first(keys[k] + at);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
          for (int k = 0; k < K; k++) acc[r][k] = V::fma(V::set1(q[r]), x[k], acc[r][k]);
      }
    }
    for (int r = 0; r < R; r++)
      for (int k = 0; k < K; k++) V::store(s + r * kStride + k * kLanes, acc[r][k]);
  }

  template <class Page, int R, int K>
  static void all_scores(const float* q, const char* const* keys, const char* const* ahead, int begin, int end, int pairs,
                         float* s) {
    for (; begin + K <= end; begin += K) scores_of<Page, R, K>(q, keys + begin, ahead + begin, pairs, s + begin * kLanes);
    if constexpr (K > 1) {
      if (begin < end) all_scores<Page, R, K / 2>(q, keys, ahead, begin, end, pairs, s);
    }
  }

  // Adds weights p [R, kStride], in the form that Page takes, times values of the keys [begin, end) to acc [R, stride]: N
  // vectors of columns, which begin `shift` bytes into a row of `row` bytes.
  template <class Page, int R, int N>
  static void weigh(const float* p, const char* const* values, const char* const* ahead, int begin, int end, size_t shift,
                    size_t row, float* acc, size_t stride) {
    F a[R][N];
    for (int r = 0; r < R; r++)
      for (int c = 0; c < N; c++) a[r][c] = V::load(acc + r * stride + c * kLanes);
    auto add = [&](const char* v, const char* next, int j, int32_t mask) {  // the keys [j * kKeys, (j + 1) * kKeys)
      I x[N];
      for (int c = 0; c < N; c++) {
        x[c] = V::iload((const int32_t*)(v + c * 64));
        __builtin_prefetch(next + c * 64, 0, 2);
      }
      if (mask != -1) {
        for (int c = 0; c < N; c++) x[c] = V::iand(x[c], V::iset1(mask));
      }
      Page::template weigh<R, N, kStride>(a, x, p, j);
    };
    constexpr int kKeys = Page::kKeys, kRows = kLanes / kKeys;
    // Of two keys the one that is not asked for may be no number.
    const int last = (end + kKeys - 1) / kKeys;
    for (int j = begin / kKeys; j < last;) {
      const size_t offset = size_t(j % kRows) * row + shift;
      const char *v = values[j / kRows] + offset, *next = ahead[j / kRows] + offset;
      const int stop = least(last, (j / kRows + 1) * kRows);
      for (; j < stop; j++, v += row, next += row) {
        int32_t mask = -1;
        if constexpr (kKeys == 2) mask = (j * 2 < begin ? int32_t(0xffff0000u) : -1) & (j * 2 + 2 > end ? 0xffff : -1);
        add(v, next, j, mask);
      }
    }
    for (int r = 0; r < R; r++)
      for (int c = 0; c < N; c++) V::store(acc + r * stride + c * kLanes, a[r][c]);
  }

  // Columns [column, width) of the keys [begin, end).
  template <class Page, int R, int C>
  static void weigh_columns(const float* p, const char* const* values, const char* const* ahead, int begin, int end,
                            int column, int width, float* acc, size_t stride) {
    for (; column + 32 * C <= width; column += 32 * C) {
      weigh<Page, R, 2 * C>(p, values, ahead, begin, end, size_t(column) * 4, size_t(width) * 4, acc + column, stride);
    }
    if constexpr (C > 1) {
      if (column < width) weigh_columns<Page, R, C / 2>(p, values, ahead, begin, end, column, width, acc, stride);
    }
  }

  // cap * tanh(s / cap): a quotient of polynomials, as Eigen has it, within a few units in the last place.
  static F soft_capped(F s, float cap) {
    F limit = V::set1(7.90531110763549805f);
    F x = V::max(V::sub(V::zero(), limit), V::min(limit, V::div(s, V::set1(cap)))), square = V::mul(x, x);
    constexpr float tops[] = {2.00018790482477e-13f, -8.60467152213735e-11f, 5.12229709037114e-08f,
                              1.48572235717979e-05f, 6.37261928875436e-04f,  4.89352455891786e-03f};
    constexpr float bottoms[] = {1.18534705686654e-04f, 2.26843463243900e-03f, 4.89352518554385e-03f};
    F top = V::set1(-2.76076847742355e-16f), bottom = V::set1(1.19825839466702e-06f);
    for (float c : tops) top = V::fma(top, square, V::set1(c));
    for (float c : bottoms) bottom = V::fma(bottom, square, V::set1(c));
    return V::mul(V::div(V::mul(x, top), bottom), V::set1(cap));
  }

  // All ones in the lanes [begin, end).
  static I lanes(int begin, int end) {
    alignas(64) static const int32_t ones[3 * kLanes] = {
        0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  -1, -1, -1, -1, -1, -1, -1, -1,
        -1, -1, -1, -1, -1, -1, -1, -1, 0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0};
    begin = begin < 0 ? 0 : begin;
    end = end > kLanes ? kLanes : end;
    return V::iand(V::iload(ones + kLanes - begin), V::iload(ones + 2 * kLanes - end));
  }

  // Sixteen scores, and what takes the place of those outside the lanes [begin, end).
  static F masked(F x, int begin, int end, float other) {
    I seen = lanes(begin, end), hidden = V::isub(V::iset1(-1), seen);
    return V::from_bits(V::iadd(V::iand(V::bits(x), seen), V::iand(V::bits(V::set1(other)), hidden)));
  }

  // The largest of one query's scores for the keys [begin, end). Scores of others in its first and last block of 16 become
  // kNothing.
  static float peak_of(float* s, int begin, int end, float softcap) {
    if (begin >= end) return kNothing;
    int low = begin / kLanes, high = (end - 1) / kLanes;  // the blocks that may be seen in part
    if (softcap != 0.0f) {
      for (int b = low; b <= high; b++) V::store(s + b * kLanes, soft_capped(V::load(s + b * kLanes), softcap));
    }
    // Keys never written may have given NaN.
    for (int b = low;; b = high) {
      F x = V::load(s + b * kLanes);
      V::store(s + b * kLanes, masked(x, begin - b * kLanes, end - b * kLanes, kNothing));
      if (b == high) break;
    }
    F peak = V::set1(kNothing);
    for (int b = low; b <= high; b++) peak = V::max(peak, V::load(s + b * kLanes));
    return max_lanes<V>(peak);
  }

  // Scores of one query -> its weights, in the form that Page takes: 0 but for the keys [begin, end), in the blocks [first,
  // stop). Returns their sum.
  template <class Page> static F weights_of(float* s, int begin, int end, int first, int stop, float most) {
    const int low = begin < end ? begin / kLanes : stop, high = begin < end ? (end - 1) / kLanes : -1;
    F sum = V::zero(), top = V::set1(most);
    for (int b = first; b < stop; b++) {  // in ascending order: Page's form may lie below the scores
      F p = V::zero();
      if (b >= low && b <= high) p = exp<V>(V::sub(V::load(s + b * kLanes), top));  // 0 where masked, unless all scores are as low
      sum = V::add(sum, Page::put_weights(s, b, p));
    }
    return sum;
  }

  // A block's keys in one segment: which of the blocks of 16 they lie in, and where their keys and values are.
  struct Keys {
    int first = 0, stop = 0;
    const char *keys[kBlocks], *values[kBlocks];
  };

  // One segment of a block: q packed as [width, R] -> states [R, state_floats]. Meanwhile the keys of `next` are fetched.
  template <class Page, int R>
  static void segment(const AttentionWork& w, const QueryBlock& block, int segment, const Keys& here, const Keys& next,
                      const float* q, float* s, float* states) {
    constexpr int kSums = kWide ? 24 : 6;
    constexpr int kKeys = R * 4 <= kSums ? 4 : R * 2 <= kSums ? 2 : 1;
    all_scores<Page, R, kKeys>(q, here.keys, here.values, here.first, here.stop, w.dim / 2, s);
    // All peaks and then all weights: one query's peak is a long wait, in which others' can be found.
    const int from = segment * kSegment;
    int low = kSegment, high = 0, begin[R], end[R];
    float most[R];
    for (int r = 0; r < block.count; r++) {
      int position = first_position(w, block) + (block.first % w.group() + r) / w.group();
      end[r] = least(position + 1 - from, kSegment), begin[r] = w.window > 0 ? position + 1 - from - w.window : 0;
      begin[r] = begin[r] < 0 ? 0 : begin[r];
      if (begin[r] < end[r]) low = least(low, begin[r]), high = end[r] > high ? end[r] : high;
      most[r] = peak_of(s + r * kStride, begin[r], end[r], w.softcap);
    }
    for (int r = 0; r < block.count; r++) {
      float* state = states + r * w.state_floats();
      for (int i = 0; i < w.width; i += kLanes) V::store(state + i, V::zero());
      V::store(state + w.width, weights_of<Page>(s + r * kStride, begin[r], end[r], here.first, here.stop, most[r]));
      V::store(state + w.width + kLanes, V::set1(most[r]));
    }
    const char* ahead[kBlocks];
    for (int b = here.first; b < here.stop; b++) {
      int there = next.first + b - here.first;
      ahead[b] = there < next.stop ? next.keys[there] : here.values[b];
    }
    weigh_rows<Page, R>(w, s, here.values, ahead, low, high, states);
  }

  static int first_position(const AttentionWork& w, const QueryBlock& block) {
    return w.positions[w.query_start[block.row] + block.first / w.group()];
  }

  template <class Page>
  static void find_keys(const AttentionWork& w, const QueryBlock& block, int segment, Keys& found) {
    const int32_t* table = w.page_table + clamp(w.row_slots[block.row], w.slots) * w.pages_per_sequence;
    int64_t block_bytes = int64_t(w.width / 2) * Page::kPair;
    int from = segment * kSegment, low = first_position(w, block);
    int high = low + (block.first % w.group() + block.count - 1) / w.group() + 1 - from;
    low = w.window > 0 ? low + 1 - w.window - from : 0;
    found.first = low < 0 ? 0 : low / kLanes;
    found.stop = (least(high, kSegment) + kLanes - 1) / kLanes;
    for (int b = found.first; b < found.stop; b++) {
      int key = from + b * kLanes;
      int64_t page = clamp(table[clamp(key / w.page_size, w.pages_per_sequence)], w.num_pages);
      found.keys[b] = w.pages + (page * w.kv_heads + block.kv_head) * 2 * w.part_bytes();
      found.keys[b] += key % w.page_size / kLanes * block_bytes;
      found.values[b] = found.keys[b] + w.part_bytes();
    }
  }

  // Weighted values of the keys [begin, end), added to states [R, state_floats]: as many rows at a time as leave registers
  // for a good number of columns, and some keys at a time where they do not hold all columns, so that the keys' values stay
  // in the cache.
  template <class Page, int R>
  static void weigh_rows(const AttentionWork& w, const float* p, const char* const* values, const char* const* ahead,
                         int begin, int end, float* states) {
    constexpr int kRows = kWide ? (R > 8 ? R / 2 : R) : R <= 2 ? R : 2;
    constexpr int kFit = (kWide ? 24 : 4) / (2 * kRows);
    constexpr int kColumns = kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
    static_assert(R % kRows == 0);
    int step = w.width <= 32 * kColumns ? kSegment : 4 * kLanes;
    for (; begin < end; begin = (begin / step + 1) * step) {
      int stop = least(end, (begin / step + 1) * step);
      for (int r = 0; r < R; r += kRows) {
        weigh_columns<Page, kRows, kColumns>(p + r * kStride, values, ahead, begin, stop, 0, w.width,
                                             states + r * w.state_floats(), size_t(w.state_floats()));
      }
    }
  }

  // Folding.

  // Takes a segment's state into that of the segments before it.
  static void fold_state(const AttentionWork& w, float* state, const float* next) {
    const float* later = next + w.width;
    float* sum = state + w.width;
    F peak = V::set1(state[w.width + kLanes]), next_peak = V::set1(next[w.width + kLanes]);
    F most = V::max(peak, next_peak);
    F decay = exp<V>(V::sub(peak, most)), weight = exp<V>(V::sub(next_peak, most));
    for (int i = 0; i < w.width; i += kLanes) {
      V::store(state + i, V::fma(V::load(next + i), weight, V::mul(V::load(state + i), decay)));
    }
    V::store(sum, V::fma(V::load(later), weight, V::mul(V::load(sum), decay)));
    V::store(state + w.width + kLanes, most);
  }

  // The states of a block's queries -> `out`.
  static void finish(const AttentionWork& w, const QueryBlock& block, const float* states) {
    for (int r = 0; r < block.count; r++, states += w.state_floats()) {
      float total = sum_lanes<V>(V::load(states + w.width));
      F divisor = V::set1(total > 0 ? total : 1.0f);
      float* to = w.out + (token_of(w, block, r) * w.heads + block.kv_head * w.group() + (block.first + r) % w.group()) * w.dim;
      for (int i = 0; i < w.dim; i += kLanes) {
        // + 0 makes one zero of both: a weight of 0 may have turned the one into the other.
        F x = V::add(V::div(V::load(states + i), divisor), V::zero());
        V::store_n(to + i, x, least(w.dim - i, kLanes));
      }
    }
  }

  static int64_t token_of(const AttentionWork& w, const QueryBlock& block, int r) {
    return w.query_start[block.row] + (block.first + r) / w.group();
  }

  static void fold(const AttentionWork& w, const Piece& whole, float* scratch) {
    const QueryBlock& block = whole.block;
    const float* states = whole.states;
    int64_t size = block.count * w.state_floats();
    int segments = whole.end - whole.begin;
    copy<V>(scratch, states, int(size));
    for (int s = 1; s < segments; s++) {
      for (int r = 0; r < block.count; r++) {
        fold_state(w, scratch + r * w.state_floats(), states + s * size + r * w.state_floats());
      }
    }
    finish(w, block, scratch);
  }

  // Whole pieces of work. Scratch: queries [width, kQueries], scores [kQueries, kStride], two states.

  template <class Page, int R>
  static void attend_rows(const AttentionWork& w, const Piece& piece, const Piece* next, float* scratch) {
    const QueryBlock& block = piece.block;
    float *q = scratch, *s = q + w.width * kQueries, *state = s + kStride * kQueries;
    float *later = state + w.state_floats() * kQueries, *parts = piece.states;
    alignas(64) float head[kMostDim];
    for (int r = 0; r < R; r++) {
      if (r < block.count) TokenHeads<V>::load_query(w, token_of(w, block, r), block.kv_head, (block.first + r) % w.group(), head);
      for (int i = 0; i < w.dim; i += kLanes) {
        const int n = least(w.dim - i, kLanes);
        Page::put_query(q + i / 2 * Page::kQueryPair * R + r, R, r < block.count ? V::load_n(head + i, n) : V::zero(), n);
      }
    }
    int64_t size = block.count * w.state_floats();
    Keys keys[2] = {};
    find_keys<Page>(w, block, piece.begin, keys[0]);
    for (int i = piece.begin; i < piece.end; i++) {
      Keys &here = keys[(i - piece.begin) % 2], &ahead = keys[(i - piece.begin + 1) % 2];
      if (i + 1 < piece.end) {
        find_keys<Page>(w, block, i + 1, ahead);
      } else if (next != nullptr) {
        find_keys<Page>(w, next->block, next->begin, ahead);
      } else {
        ahead.stop = 0;
      }
      float* to = parts != nullptr || i == piece.begin ? state : later;
      segment<Page, R>(w, block, i, here, ahead, q, s, to);
      if (parts != nullptr) {
        copy<V>(parts + (i - piece.begin) * size, to, int(size));
      } else if (i > piece.begin) {
        for (int r = 0; r < block.count; r++) fold_state(w, state + r * w.state_floats(), later + r * w.state_floats());
      }
    }
    if (parts == nullptr) finish(w, block, state);
  }

  template <class Page>
  static void attend_page(const AttentionWork& w, const Piece& piece, const Piece* next, float* scratch) {
    int count = piece.block.count;
    if (count == 1) return attend_rows<Page, 1>(w, piece, next, scratch);
    if (count == 2) return attend_rows<Page, 2>(w, piece, next, scratch);
    if constexpr (kWide) {
      if (count == 3) return attend_rows<Page, 3>(w, piece, next, scratch);
    }
    if (count <= 4) return attend_rows<Page, 4>(w, piece, next, scratch);
    if constexpr (kWide) {
      if (count <= 6) return attend_rows<Page, 6>(w, piece, next, scratch);
      if (count <= 8) return attend_rows<Page, 8>(w, piece, next, scratch);
      attend_rows<Page, 12>(w, piece, next, scratch);
    }
  }

  static void attend(const AttentionWork& w, const Piece* pieces, int64_t count, float* scratch) {
    for (int64_t i = 0; i < count; i++) {
      const Piece* next = i + 1 < count ? pieces + i + 1 : nullptr;
      if (w.bfloat) {
        attend_page<BfloatPage>(w, pieces[i], next, scratch);
      } else {
        attend_page<FloatPage>(w, pieces[i], next, scratch);
      }
    }
  }

  static constexpr AttentionKernels table() { return {kQueries, TokenHeads<V>::write, attend, fold}; }

 private:
  static int64_t clamp(int64_t i, int64_t count) { return i < 0 ? 0 : i < count ? i : count - 1; }
};

}  // namespace headrace
