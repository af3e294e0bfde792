// What each instruction set's translation unit offers, and which of them this machine gets.
#pragma once

#include <cstdint>

#include "argmax.h"
#include "attention_kernel.h"
#include "matmul.h"
#include "probe.h"
#include "simd/checksum.h"

namespace headrace {

// One table for each instruction set. All tables give the same bits for the same arguments.
struct Kernels {
  const char* name;
  uint64_t (*checksum)();  // of what its vectors compute from fixed numbers; see simd/checksum.h
  int most_rows;            // of a block
  void (*pack_rows)(const Rows& rows, int64_t begin, int64_t end, float* buffer);
  void (*multiply)(const Product& product, int64_t begin, int64_t end);
  void (*add_norm)(const float* residual, const float* weight, float eps, int64_t n, float* y, float* buffer);
  Largest (*argmax)(const float* x, int64_t n);
  AttentionKernels attention;
  ProbeKernels probe;
};

// A constant, so that the code of an instruction set does not run by itself on a machine that has not got it.
template <class V> constexpr Kernels kernels_of() {
  return {V::kName, checksum<V>, V::kRows, pack_rows<V>, multiply<V>, add_norm<V>, argmax<V>, Attention<V>::table(), Probe<V>::table()};
}

// In isa/, one file each; which of them there are depends on the processor and the compiler.
extern const Kernels kScalarKernels, kAvx2Kernels, kAvx512Kernels, kAvx512Bf16Kernels, kAmxKernels, kNeonKernels;

// The best table that this machine can run, or the one that was chosen before; see dispatch.h.
const Kernels& kernels();

}  // namespace headrace
