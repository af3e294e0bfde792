// Ragged paged attention with the rotation, the norms of heads and the write into the pages: what one call works on, how
// it is cut into pieces for threads, and what each instruction set does with a piece.
//
// A query's keys are cut into segments of kSegment keys, counted from key 0. Each segment gives a maximum, a sum and
// weighted values on its own, and segments are folded together in ascending order, whoever computed them. So a token's
// bits depend neither on chunks and neighbours nor on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

struct Pool;

constexpr int kLanes = 16;
constexpr int kSegment = 256;  // keys
constexpr int kBlocks = kSegment / kLanes;
constexpr int kMostDim = 1024;  // of a head

// A page of a pool [pages, kv_heads, 2, page_size * width] has for each head its keys and then its values. Keys lie as
// [page_size / 16][width / 2] pairs of dimensions (2i, 2i + 1) of 16 keys each. A pair of bfloat16 vectors is one vector of
// 32-bit lanes, the first of both in the low halves; a pair of float32 vectors is one after the other. Values lie in rows of
// `width` numbers of 32 bits: float32 of one key, or bfloat16 of two, the first of both in the low halves. `width` is `dim`
// rounded up to 32.
struct AttentionWork {
  int64_t tokens, rows, slots, pages_per_sequence, num_pages;
  int heads, kv_heads, dim, width, page_size;
  bool bfloat;      // pages of bfloat16 bits; else float32
  int window;       // keys at this distance or further are not seen; 0 sees all
  float scale;      // of q·k
  float softcap;    // scores become softcap * tanh(score / softcap); 0 leaves them
  float eps;        // of the norms
  const float* qkv;         // [tokens, kv_heads, group + 2, dim]: queries, key, value
  const float* cosines;     // [tokens, dim / 2]; null where queries and keys are rotated already
  const float* sines;
  const float* q_norm;      // [dim]; null where heads are not normalised
  const float* k_norm;
  const int32_t* token_rows;   // [tokens]; rows or more for padding
  const int32_t* positions;    // [tokens]
  const int32_t* write_index;  // [tokens]; page * page_size + offset, out of range where nothing is written
  const int32_t* query_start;  // [rows + 1]
  const int32_t* row_slots;    // [rows]
  const int32_t* page_table;   // [slots, pages_per_sequence]
  char* pages;
  float* out;  // [tokens, heads, dim]

  int group() const { return heads / kv_heads; }
  int64_t state_floats() const { return width + 2 * kLanes; }  // of one query of one head, see attention_kernel.h
  int64_t part_bytes() const { return int64_t(page_size) * width * (bfloat ? 2 : 4); }
};

// Some queries of one row that share a key/value head: `count` of the row's [tokens, group] from `first` on.
struct QueryBlock {
  int32_t row, kv_head, first, count;
};

// What one thread does at a time: the segments [begin, end) of a block.
struct Piece {
  QueryBlock block;
  int32_t begin, end;
  float* states;  // [segments, count, state_floats], to be folded later; null for all segments of a block, into `out`
};

// What one instruction set offers.
struct AttentionKernels {
  int most_queries;  // of a block
  // Keys, normed and rotated, and values of the tokens [begin, end) into the pages. Padding gets zeros in `out`.
  void (*write)(const AttentionWork&, int64_t begin, int64_t end);
  // Pieces one after the other.
  void (*attend)(const AttentionWork&, const Piece* pieces, int64_t count, float* scratch);
  // All segments of a block, whose states are there -> `out`.
  void (*fold)(const AttentionWork&, const Piece& whole, float* scratch);
};

// Floats that one thread needs to itself, aligned to 64 bytes.
int64_t attention_scratch(const AttentionWork& work, const AttentionKernels& kernels);

// The whole call.
void attention(const AttentionWork& work, const AttentionKernels& kernels, const Pool& pool);

}  // namespace headrace
