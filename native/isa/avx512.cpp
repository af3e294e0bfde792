#include "../kernels.h"
#include "../simd/avx512.h"

namespace headrace {

extern const Kernels kAvx512Kernels = kernels_of<Avx512>();

}  // namespace headrace
