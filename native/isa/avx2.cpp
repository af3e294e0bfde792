#include "../kernels.h"
#include "../simd/avx2.h"

namespace headrace {

constexpr Kernels table = kernels_of<Avx2>();
extern const Kernels kAvx2Kernels = table;

}  // namespace headrace
