// Attention over random ragged batches: each instruction set against plain C++ bit for bit, and on one thread or three.
#include <cmath>
#include <vector>

#include "attention.h"
#include "check.h"
#include "kernels.h"
#include "pool.h"
#include "simd/scalar.h"
#include "tests.h"

namespace headrace::test {
namespace {

struct Batch {
  AttentionWork work = {};
  std::vector<float> qkv, cosines, sines, q_norm, k_norm;
  std::vector<int32_t> token_rows, positions, write_index, query_start, row_slots, page_table;
  std::vector<char> pages;
};

void add_rows(Random& r, Batch& b) {
  AttentionWork& w = b.work;
  w.rows = r.between(1, 4), w.slots = w.rows + r.below(3);
  w.pages_per_sequence = r.between(1, r.one_in(3) ? 60 : 12);
  w.num_pages = w.slots * w.pages_per_sequence;
  for (int64_t i = 0; i < w.num_pages; i++) b.page_table.push_back(int32_t(i));
  for (int64_t i = w.num_pages - 1; i > 0; i--) std::swap(b.page_table[size_t(i)], b.page_table[size_t(r.below(int(i + 1)))]);
  const int room = int(w.pages_per_sequence) * w.page_size;
  b.query_start.push_back(0);
  for (int row = 0; row < w.rows; row++) {
    const int slot = int(w.slots) - 1 - row, count = r.one_in(8) ? 0 : r.one_in(2) ? 1 : r.between(1, room < 40 ? room : 40);
    const int computed = r.below(room - count + 1);
    b.row_slots.push_back(slot);
    for (int i = 0; i < count; i++) {
      const int position = computed + i;
      b.token_rows.push_back(row), b.positions.push_back(position);
      const int page = b.page_table[size_t(slot * w.pages_per_sequence + position / w.page_size)];
      b.write_index.push_back(page * w.page_size + position % w.page_size);
    }
    b.query_start.push_back(int32_t(b.positions.size()));
  }
  for (int padding = r.below(4); padding > 0; padding--) {
    b.token_rows.push_back(int32_t(w.rows)), b.positions.push_back(0);
    b.write_index.push_back(r.one_in(2) ? -1 : int32_t(w.num_pages * w.page_size));
  }
  w.tokens = int64_t(b.token_rows.size());
}

// One key and value of each head become NaN, as that of a token that was never written, or is another's, may be.
void spoil(Batch& b, int slot, int position) {
  const AttentionWork& w = b.work;
  const int page = b.page_table[size_t(slot * w.pages_per_sequence + position / w.page_size)], offset = position % w.page_size;
  const uint32_t nan = 0x7fc07fc0;
  for (int head = 0; head < w.kv_heads; head++) {
    char* keys = b.pages.data() + (int64_t(page) * w.kv_heads + head) * 2 * w.part_bytes();
    char* values = keys + w.part_bytes();
    for (int i = 0; i < w.width / 2; i++) {
      char* at = keys + (int64_t(offset / kLanes) * (w.width / 2) + i) * (w.bfloat ? 64 : 128) + offset % kLanes * 4;
      std::memcpy(at, &nan, 4);
      if (!w.bfloat) std::memcpy(at + 64, &nan, 4);
    }
    for (int i = 0; i < w.width; i++) {
      if (w.bfloat) {
        std::memcpy(values + int64_t(offset / 2) * w.width * 4 + i * 4 + offset % 2 * 2, &nan, 2);
      } else {
        std::memcpy(values + (int64_t(offset) * w.width + i) * 4, &nan, 4);
      }
    }
  }
}

// All that no token of a row sees: before the first one's window, and behind the last one.
void spoil_unseen(Batch& b) {
  const AttentionWork& w = b.work;
  for (int row = 0; row < w.rows; row++) {
    const int begin = b.query_start[size_t(row)], end = b.query_start[size_t(row) + 1];
    if (begin == end) continue;
    const int first = w.window > 0 ? b.positions[size_t(begin)] + 1 - w.window : 0, last = b.positions[size_t(end) - 1];
    for (int p = 0; p < w.pages_per_sequence * w.page_size; p++)
      if (p < first || p > last) spoil(b, b.row_slots[size_t(row)], p);
  }
}

Batch random_batch(Random& r) {
  Batch b;
  AttentionWork& w = b.work;
  w.kv_heads = r.between(1, 3), w.heads = w.kv_heads * r.between(1, 6);
  w.dim = r.one_in(2) ? 32 * r.between(1, 4) : 2 * r.between(1, 80), w.width = (w.dim + 31) / 32 * 32;
  w.page_size = 16 * r.between(1, 4);
  w.bfloat = !r.one_in(3);
  w.window = r.one_in(3) ? r.between(1, 300) : 0;
  w.scale = 0.2f, w.softcap = r.one_in(4) ? 5.0f : 0.0f, w.eps = 1e-6f;
  add_rows(r, b);
  auto fill = [&r](std::vector<float>& to, int64_t n, bool wanted) {
    if (wanted) to.resize(size_t(n));
    for (float& value : to) value = r.real();
  };
  fill(b.qkv, w.tokens * (w.heads + 2 * w.kv_heads) * w.dim, true);
  const bool rotated = !r.one_in(4), normed = r.one_in(2);
  fill(b.cosines, w.tokens * w.dim / 2, rotated), fill(b.sines, w.tokens * w.dim / 2, rotated);
  fill(b.q_norm, w.dim, normed), fill(b.k_norm, w.dim, normed);
  b.pages.resize(size_t(w.num_pages * w.kv_heads * 2 * w.part_bytes()));
  for (size_t i = 0; i < b.pages.size(); i += w.bfloat ? 2 : 4) {
    const float value = r.real();
    const uint16_t high = float_to_bfloat(value);
    std::memcpy(b.pages.data() + i, w.bfloat ? (const void*)&high : (const void*)&value, w.bfloat ? 2 : 4);
  }
  spoil_unseen(b);
  return b;
}

bool finite(const std::vector<float>& x) {
  for (float value : x)
    if (!std::isfinite(value)) return false;
  return true;
}

struct Result {
  std::vector<float> out;
  std::vector<char> pages;
};

Result attend(const Kernels& kernels, const Batch& b, const Pool& pool) {
  auto pointer = [](const std::vector<float>& v) { return v.empty() ? nullptr : v.data(); };
  AttentionWork w = b.work;
  Result result{std::vector<float>(size_t(w.tokens * w.heads * w.dim), -1.0f), b.pages};
  w.qkv = b.qkv.data(), w.cosines = pointer(b.cosines), w.sines = pointer(b.sines);
  w.q_norm = pointer(b.q_norm), w.k_norm = pointer(b.k_norm);
  w.token_rows = b.token_rows.data(), w.positions = b.positions.data(), w.write_index = b.write_index.data();
  w.query_start = b.query_start.data(), w.row_slots = b.row_slots.data(), w.page_table = b.page_table.data();
  w.pages = result.pages.data(), w.out = result.out.data();
  attention(w, kernels.attention, pool);
  return result;
}

bool equal(const Result& a, const Result& b) {
  return same(a.out.data(), b.out.data(), int64_t(a.out.size())) && a.pages == b.pages;
}

}  // namespace

int check_attention(const Kernels& kernels, long shapes) {
  failures = 0;
  Random random(13);
  Threads threads(2);
  for (long shape = 0; shape < shapes; shape++) {
    const Batch batch = random_batch(random);
    const Result want = attend(kScalarKernels, batch, Pool{}), got = attend(kernels, batch, Pool{});
    if (!equal(got, want)) fail(kernels.name, "attention", shape);
    if (!finite(got.out)) fail(kernels.name, "what no token sees", shape);
    if (!equal(attend(kernels, batch, threads.pool()), got)) fail(kernels.name, "attention on three threads", shape);
  }
  return failures;
}

}  // namespace headrace::test
