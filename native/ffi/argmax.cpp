// The largest of each row, for a sampler's first look at its logits.
#include <algorithm>
#include <limits>
#include <vector>

#include "../kernels.h"
#include "call.h"
#include "target.h"

namespace headrace {
namespace {

constexpr int64_t kPart = 8192;  // columns of a row that one thread looks through

ffi::Error argmax_rows(ffi::ThreadPool threads, ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> values,
                       ffi::ResultBuffer<ffi::S32> columns) {
  return guarded([&]() -> ffi::Error {
    const int64_t rows = x.dimensions()[0], n = x.dimensions()[1], parts = (n + kPart - 1) / kPart;
    if (n == 0) return ffi::Error::InvalidArgument("headrace: there is no largest of no numbers");
    const Kernels& k = kernels();
    std::vector<Largest> found(size_t(rows * parts));
    parallel_for(pool_of(threads), rows * parts, [&](int64_t i) {
      const int64_t begin = i % parts * kPart;
      found[size_t(i)] = k.argmax(x.typed_data() + i / parts * n + begin, std::min(kPart, n - begin));
    });
    for (int64_t row = 0; row < rows; row++) {
      Largest best = found[size_t(row * parts)];
      for (int64_t part = 1; part < parts && best.column >= 0; part++) {
        const Largest& next = found[size_t(row * parts + part)];
        if (next.column < 0) best = next;
        else if (next.value > best.value) best = {next.value, int32_t(next.column + part * kPart)};
      }
      const bool nan = best.column < 0;
      values->typed_data()[row] = nan ? std::numeric_limits<float>::quiet_NaN() : best.value;
      columns->typed_data()[row] = nan ? 0 : best.column;
    }
    return ffi::Error::Success();
  });
}

HEADRACE_TARGET(headrace_argmax, argmax_rows,
                ffi::Ffi::Bind()
                    .Ctx<ffi::ThreadPool>()
                    .Arg<ffi::Buffer<ffi::F32>>()   // x [rows, n]
                    .Ret<ffi::Buffer<ffi::F32>>()   // the largest value [rows]; NaN where a number is NaN
                    .Ret<ffi::Buffer<ffi::S32>>());  // its first column [rows]

}  // namespace
}  // namespace headrace
