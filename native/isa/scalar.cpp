#include "../kernels.h"
#include "../simd/scalar.h"

namespace headrace {

constexpr Kernels table = kernels_of<Scalar>();
extern const Kernels kScalarKernels = table;

}  // namespace headrace
