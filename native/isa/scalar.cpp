#include "../kernels.h"
#include "../simd/scalar.h"

namespace headrace {

extern const Kernels kScalarKernels = kernels_of<Scalar>();

}  // namespace headrace
