// What each instruction set's translation unit offers, and which of them this machine gets.
#pragma once

#include <cstdint>

#include "attention.h"

namespace headrace {

struct MatmulBlock;
struct QuantizeRows;

// One table for each instruction set. All tables give the same bits for the same arguments.
struct Kernels {
  const char* name;
  AttentionKernels attention;
  uint64_t (*checksum)();  // of what its vectors compute from fixed numbers; see simd/checksum.h
};

// In isa/, one file each; which of them there are depends on the processor and the compiler.
extern const Kernels scalar_kernels, avx2_kernels, avx512_kernels, amx_kernels, neon_kernels;

// The best table that this machine can run, or the one that was chosen before; see dispatch.h.
const Kernels& kernels();

}  // namespace headrace
