#include "../kernels.h"
#include "../simd/avx512_bf16.h"

namespace headrace {

constexpr Kernels table = kernels_of<Avx512_bf16>();
extern const Kernels kAvx512Bf16Kernels = table;

}  // namespace headrace
