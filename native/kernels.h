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
};

// The best table that this machine can run, or the one that HEADRACE_NATIVE_ISA names; see dispatch.cpp.
const Kernels& kernels();

}  // namespace headrace
