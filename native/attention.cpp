#include "attention.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "team.h"

namespace headrace {
namespace {

// Some segments of a block; all of them where `parts` is negative.
struct Piece {
  int32_t block, begin, end;
  int64_t parts;  // where its states go
};

struct Plan {
  std::vector<QueryBlock> blocks;
  std::vector<Piece> pieces;
  std::vector<std::pair<int32_t, int64_t>> folds;  // blocks in several pieces, and where their states lie
  int64_t states = 0;                              // floats

  void clear() {
    blocks.clear(), pieces.clear(), folds.clear();
    states = 0;
  }
};

// Memory that grows and is kept, for one thread.
class Buffer {
 public:
  float* get(int64_t floats) {
    if (floats > size_) {
      size_ = floats;
      data_.reset(static_cast<float*>(std::aligned_alloc(64, size_t(floats * 4 + 63) / 64 * 64)));
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> data_;
  int64_t size_ = 0;
};

// Below this many multiplications of vectors (4 microseconds or so), waiting for other threads takes longer.
constexpr int64_t kWorthSharing = 15000;
constexpr int kPiecesPerThread = 4;  // so that threads end at about the same time

// Products of vectors, counting what it takes to load keys and values as a query.
int64_t cost(const AttentionWork& w, const QueryBlock& block, int segments) {
  return int64_t(segments) * kSegment * (block.count + 1) * w.width / kLanes / 8;
}

void add_blocks(const AttentionWork& w, int most, Plan& plan) {
  for (int row = 0; row < w.rows; row++) {
    int32_t start = w.query_start[row], queries = (w.query_start[row + 1] - start) * w.group();
    // The last queries of a row have the most keys, and what takes longest should begin first.
    for (int first = (queries - 1) / most * most; queries > 0 && first >= 0; first -= most) {
      int count = std::min(most, queries - first);
      int low = w.positions[start + first / w.group()];
      int high = w.positions[start + (first + count - 1) / w.group()];
      int first_key = w.window > 0 ? std::max(low + 1 - w.window, 0) : 0;
      for (int head = 0; head < w.kv_heads; head++) {
        plan.blocks.push_back({row, head, first, count, first_key / kSegment, high / kSegment + 1});
      }
    }
  }
}

// Blocks that would keep a thread busy for long after the others are cut into some segments each.
void add_pieces(const AttentionWork& w, int threads, Plan& plan) {
  int64_t total = 0;
  for (const QueryBlock& block : plan.blocks) total += cost(w, block, block.end_segment - block.first_segment);
  int64_t most = total < kWorthSharing ? total : total / (threads * kPiecesPerThread) + 1;
  for (int i = 0; i < int(plan.blocks.size()); i++) {
    const QueryBlock& block = plan.blocks[i];
    int segments = block.end_segment - block.first_segment;
    if (threads == 1 || segments == 1 || cost(w, block, segments) <= most) {
      plan.pieces.push_back({i, block.first_segment, block.end_segment, -1});
      continue;
    }
    int step = int(std::max<int64_t>(most / cost(w, block, 1), 1));
    plan.folds.push_back({i, plan.states});
    for (int begin = block.first_segment; begin < block.end_segment; begin += step) {
      int end = std::min(begin + step, block.end_segment);
      plan.pieces.push_back({i, begin, end, plan.states});
      plan.states += (end - begin) * block.count * w.state_floats();
    }
  }
}

void share(const Pool& pool, int64_t count, int64_t work, const std::function<void(int64_t)>& body) {
  parallel_for(work < kWorthSharing ? Pool{} : pool, count, body);
}

}  // namespace

int64_t attention_scratch(const AttentionWork& w, const AttentionKernels& kernels) {
  // Queries, scores and two states; see attention_kernel.h.
  return kernels.most_queries * (w.width + kSegment + kLanes + 2 * w.state_floats());
}

void attention(const AttentionWork& w, const AttentionKernels& kernels, const Pool& pool) {
  thread_local Plan plan;
  thread_local Buffer states;
  const int threads = std::max(pool.num_threads, 1);
  plan.clear();
  add_blocks(w, kernels.most_queries, plan);
  add_pieces(w, threads, plan);
  float* parts = states.get(plan.states);
  int64_t size = attention_scratch(w, kernels);
  auto scratch = [size] {
    thread_local Buffer own;
    return own.get(size);
  };

  int64_t token_cost = int64_t(w.heads + 6 * w.kv_heads) * w.width / kLanes * 10;
  int64_t tokens = std::max<int64_t>(w.tokens / (threads * kPiecesPerThread) + 1, kWorthSharing / token_cost + 1);
  share(pool, (w.tokens + tokens - 1) / tokens, w.tokens * token_cost, [&](int64_t i) {
    kernels.rotate_and_write(w, i * tokens, std::min((i + 1) * tokens, w.tokens));
  });
  const Plan& p = plan;  // thread_local names mean another thread's inside the loops
  int64_t total = 0;
  for (const QueryBlock& block : p.blocks) total += cost(w, block, block.end_segment - block.first_segment);
  share(pool, int64_t(p.pieces.size()), total, [&](int64_t i) {
    const Piece& piece = p.pieces[i];
    const QueryBlock& block = p.blocks[piece.block];
    if (piece.parts < 0) {
      kernels.attend(w, block, scratch());
    } else {
      kernels.attend_segments(w, block, piece.begin, piece.end, parts + piece.parts, scratch());
    }
  });
  share(pool, int64_t(p.folds.size()), plan.states * 4 / kLanes, [&](int64_t i) {
    kernels.fold(w, p.blocks[p.folds[i].first], parts + p.folds[i].second, scratch());
  });
}

}  // namespace headrace
