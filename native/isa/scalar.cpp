#include "isa/table.h"
#include "simd/scalar.h"

namespace headrace {

constexpr Kernels table = table_of<Scalar>();
const Kernels scalar_kernels = table;

}  // namespace headrace
