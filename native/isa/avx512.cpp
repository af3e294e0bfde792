#include "../kernels.h"
#include "../simd/avx512.h"

namespace headrace {

constexpr Kernels table = kernels_of<Avx512>();
extern const Kernels kAvx512Kernels = table;

}  // namespace headrace
