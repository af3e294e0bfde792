#include "attention.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "scratch.h"
#include "team.h"

namespace headrace {
namespace {

struct Plan {
  std::vector<Piece> blocks;      // whole
  std::vector<Piece> pieces;      // of them, in the same order
  std::vector<Piece> folds;       // those in several pieces
  std::vector<int64_t> batches;   // first piece of each batch that a thread takes at a time, and the number of pieces
  int64_t work = 0;
};

// Below this many products of vectors (10 microseconds or so, with the memory that they read), waiting for other threads takes
// longer. Eight short contexts are some 10,000: by one thread alone, a fifth of a whole decode step of a small model.
constexpr int64_t kWorthSharing = 1500;
constexpr int kBatchesPerThread = 4;  // so that threads end at about the same time

// Products of vectors, where loading keys and values counts as much as one query.
int64_t cost(const AttentionWork& w, const Piece& piece) {
  return int64_t(piece.end - piece.begin) * kSegment * (piece.block.count + 1) * w.width / kLanes / 8;
}

void add_blocks(const AttentionWork& w, int most, Plan& plan) {
  plan.blocks.clear();
  plan.work = 0;
  for (int row = 0; row < w.rows; row++) {
    int32_t start = w.query_start[row], queries = (w.query_start[row + 1] - start) * w.group();
    // The last queries of a row have the most keys, and what takes longest should begin first.
    for (int first = (queries - 1) / most * most; queries > 0 && first >= 0; first -= most) {
      int count = std::min(most, queries - first);
      int low = w.positions[start + first / w.group()];
      int high = w.positions[start + (first + count - 1) / w.group()];
      int first_key = w.window > 0 ? std::max(low + 1 - w.window, 0) : 0;
      for (int head = 0; head < w.kv_heads; head++) {
        plan.blocks.push_back({{row, head, first, count}, first_key / kSegment, high / kSegment + 1, nullptr});
        plan.work += cost(w, plan.blocks.back());
      }
    }
  }
}

// Blocks that would keep a thread busy for long after the others are cut into some segments each.
void add_pieces(const AttentionWork& w, int threads, Plan& plan) {
  plan.pieces.clear(), plan.folds.clear(), plan.batches.assign(1, 0);
  bool shared = threads > 1 && plan.work >= kWorthSharing;
  int64_t most = shared ? plan.work / (threads * kBatchesPerThread) + 1 : plan.work, states = 0;
  for (const Piece& whole : plan.blocks) {
    if (cost(w, whole) > most && whole.end - whole.begin > 1) states += (whole.end - whole.begin) * whole.block.count * w.state_floats();
  }
  struct States {};
  float* to = reinterpret_cast<float*>(scratch<States>(size_t(states) * 4));
  int64_t batch = 0;
  for (const Piece& whole : plan.blocks) {
    int64_t own = cost(w, whole);
    int step = whole.end - whole.begin;
    bool cut = own > most && step > 1;
    if (cut) {
      plan.folds.push_back({whole.block, whole.begin, whole.end, to});
      step = int(std::max<int64_t>(most * step / own, 1));
    }
    for (int begin = whole.begin; begin < whole.end; begin += step) {
      Piece piece = {whole.block, begin, std::min(begin + step, whole.end), cut ? to : nullptr};
      if (cut) to += (piece.end - begin) * whole.block.count * w.state_floats();
      if (batch > 0 && batch + cost(w, piece) > most) {
        plan.batches.push_back(int64_t(plan.pieces.size()));
        batch = 0;
      }
      batch += cost(w, piece);
      plan.pieces.push_back(piece);
    }
  }
  plan.batches.push_back(int64_t(plan.pieces.size()));
}

void share(const Pool& pool, int64_t count, int64_t work, const std::function<void(int64_t)>& body) {
  for_all(work < kWorthSharing ? Pool{} : pool, count, body);
}

}  // namespace

int64_t attention_scratch(const AttentionWork& w, const AttentionKernels& kernels) {
  // Queries, scores and two states; see attention_kernel.h.
  return kernels.most_queries * (w.width + kSegment + kLanes + 2 * w.state_floats());
}

void attention(const AttentionWork& w, const AttentionKernels& kernels, const Pool& pool) {
  thread_local Plan own_plan;
  const int threads = std::max(pool.num_threads, 1);
  Plan& plan = own_plan;  // inside the loops below the name of a thread's own would mean another thread's
  add_blocks(w, kernels.most_queries, plan);
  add_pieces(w, threads, plan);
  auto own = [size = attention_scratch(w, kernels)] {
    struct Piece {};
    return reinterpret_cast<float*>(scratch<Piece>(size_t(size) * 4));
  };

  int64_t token_work = int64_t(6 * w.kv_heads) * w.width / kLanes * 10;
  int64_t tokens = std::max<int64_t>(w.tokens / (threads * kBatchesPerThread) + 1, kWorthSharing / token_work + 1);
  share(pool, (w.tokens + tokens - 1) / tokens, w.tokens * token_work, [&](int64_t i) {
    kernels.write(w, i * tokens, std::min((i + 1) * tokens, w.tokens));
  });
  share(pool, int64_t(plan.batches.size()) - 1, plan.work, [&](int64_t i) {
    int64_t first = plan.batches[i];
    kernels.attend(w, plan.pieces.data() + first, plan.batches[i + 1] - first, own());
  });
  share(pool, int64_t(plan.folds.size()), plan.work, [&](int64_t i) { kernels.fold(w, plan.folds[i], own()); });
}

}  // namespace headrace
