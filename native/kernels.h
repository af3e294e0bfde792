// What each instruction set's translation unit offers, and which of them this machine gets.
#pragma once

#include <cstdint>

#include "matmul.h"

namespace headrace {

// One table for each instruction set. All tables give the same bits for the same arguments.
struct Kernels {
  const char* name;
  int (*block_rows)(int64_t row, int64_t count);
  void (*pack_rows)(const Rows& rows, int64_t row, int R, float* buffer);
  void (*multiply)(const Product& product, int64_t begin, int64_t end);
  void (*add_norm)(const float* residual, const float* weight, float eps, int64_t n, float* y, float* buffer);
};

template <class V> Kernels kernels_of() {
  return {V::kName, block_rows<V>, pack_rows<V>, multiply<V>, add_norm<V>};
}

// The best table that this machine can run, or the one that HEADRACE_NATIVE_ISA names; see dispatch.cpp.
const Kernels& kernels();

}  // namespace headrace
