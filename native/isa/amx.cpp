#include "../simd/amx.h"
#include "../tiled.h"

namespace headrace {

constexpr Kernels table = kernels_with_tiles<Amx>();
extern const Kernels kAmxKernels = table;

}  // namespace headrace
