#include "isa/table.h"
#include "simd/avx2.h"

namespace headrace {

constexpr Kernels table = table_of<Avx2>();
const Kernels avx2_kernels = table;

}  // namespace headrace
