#include "isa/table.h"
#include "simd/avx512.h"

namespace headrace {

constexpr Kernels table = table_of<Avx512>();
const Kernels avx512_kernels = table;

}  // namespace headrace
