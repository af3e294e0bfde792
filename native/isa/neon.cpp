#include "../kernels.h"
#include "../simd/neon.h"

namespace headrace {

constexpr Kernels table = kernels_of<Neon>();
extern const Kernels kNeonKernels = table;

}  // namespace headrace
