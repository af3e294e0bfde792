// A translation unit's table of kernels, from the kernel templates and its struct of vector operations.
#pragma once

#include "attention_kernel.h"
#include "kernels.h"
#include "simd/checksum.h"

namespace headrace {

// Constant, so that a translation unit has no code that runs by itself on a machine without its instructions.
template <class V> constexpr Kernels table_of() {
  Kernels t{};
  t.name = V::kName;
  t.checksum = checksum<V>;
  t.block_rows = block_rows<V>;
  t.pack_rows = pack_rows<V>;
  t.multiply = multiply<V>;
  t.add_norm = add_norm<V>;
  t.attention = Attention<V>::table();
  return t;
}

}  // namespace headrace
