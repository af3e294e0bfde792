// The products of a decoder with what stands before and after them: norm, product, activation, bias, norm, residual.
#include <algorithm>
#include <vector>

#include "../kernels.h"
#include "../pack.h"
#include "call.h"
#include "scratch.h"
#include "target.h"

namespace headrace {
namespace {

constexpr int64_t kSerialElements = 8192;  // below this, packing rows is quicker alone than shared out

void pack_all(const Pool& pool, const Kernels& k, const Rows& rows) {
  std::vector<int64_t> starts;
  for (int64_t row = 0; row < rows.count; row += k.block_rows(row, rows.count)) starts.push_back(row);
  auto pack = [&](int64_t i) {
    struct Row {};
    float* buffer = reinterpret_cast<float*>(scratch<Row>(size_t(rows.columns) * 4));
    k.pack_rows(rows, starts[size_t(i)], k.block_rows(starts[size_t(i)], rows.count), buffer);
  };
  if (rows.count * rows.columns <= kSerialElements) {
    for (size_t i = 0; i < starts.size(); i++) pack(int64_t(i));
  } else {
    parallel_for(pool, int64_t(starts.size()), pack);
  }
}

void multiply_all(const Pool& pool, const Kernels& k, const Product& product) {
  // A few parts for each thread, so that one that is held up does not hold up the others.
  int64_t units = product.units(), parts = std::min<int64_t>(units, int64_t(pool.num_threads) * 6);
  parallel_for(pool, parts, [&](int64_t i) { k.multiply(product, units * i / parts, units * (i + 1) / parts); });
}

ffi::Error linear(ffi::ThreadPool threads, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::U8> data, ffi::Buffer<ffi::S32> table,
                  ffi::Buffer<ffi::F32> norm, ffi::Buffer<ffi::F32> bias, ffi::Buffer<ffi::F32> residual,
                  ffi::Buffer<ffi::F32> post_norm, ffi::Buffer<ffi::S32> num_rows, int64_t outputs, int64_t columns,
                  int64_t activation, float eps, ffi::ResultBuffer<ffi::F32> y) {
  const Kernels& k = kernels();
  Pool pool = pool_of(threads);
  Matrix matrix{data.typed_data(), table.typed_data(), outputs, columns};
  int64_t count = std::clamp<int64_t>(num_rows.typed_data()[0], 0, x.dimensions()[0]);
  Rows rows{x.typed_data(), count, columns, optional(norm), eps, is_dense(matrix.format(0)), nullptr};
  struct Packed {};
  rows.packed = scratch<Packed>(size_t(rows.row_bytes() * count) + 64);
  pack_all(pool, k, rows);
  const float *last = optional(post_norm), *added = optional(residual);
  Product product{matrix, rows, Activation(activation), optional(bias), last == nullptr ? added : nullptr, y->typed_data()};
  multiply_all(pool, k, product);
  if (last != nullptr) {
    int64_t width = product.width(), parts = std::min<int64_t>(count, count * width <= kSerialElements ? 1 : pool.num_threads * 4);
    parallel_for(pool, parts, [&](int64_t i) {
      struct Row {};
      float* buffer = reinterpret_cast<float*>(scratch<Row>(size_t(width) * 4));
      for (int64_t r = count * i / parts; r < count * (i + 1) / parts; r++)
        k.add_norm(added + r * width, last, eps, width, product.y + r * width, buffer);
    });
  }
  return ffi::Error::Success();
}

ffi::Error embed(ffi::ThreadPool threads, ffi::Buffer<ffi::S32> ids, ffi::Buffer<ffi::U8> data, ffi::Buffer<ffi::S32> table,
                 ffi::Buffer<ffi::S32> num_rows, ffi::ResultBuffer<ffi::F32> y) {
  int64_t columns = y->dimensions()[1], outputs = table.dimensions()[0] * kPanel;
  Matrix matrix{data.typed_data(), table.typed_data(), outputs, columns};
  int64_t count = std::clamp<int64_t>(num_rows.typed_data()[0], 0, ids.dimensions()[0]);
  parallel_for(pool_of(threads), count, [&](int64_t i) {
    int64_t id = std::clamp<int64_t>(ids.typed_data()[i], 0, outputs - 1);
    unpack_row(matrix.format(id / kPanel), matrix.panel(id / kPanel), int(id % kPanel), columns, y->typed_data() + i * columns);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace headrace

using headrace::ffi::Buffer;
namespace f = headrace::ffi;

HEADRACE_TARGET(headrace_linear, headrace::linear,
                f::Ffi::Bind()
                    .Ctx<f::ThreadPool>()
                    .Arg<Buffer<f::F32>>()   // x [tokens, columns]
                    .Arg<Buffer<f::U8>>()    // data
                    .Arg<Buffer<f::S32>>()   // table [panels, 2]
                    .Arg<Buffer<f::F32>>()   // norm [columns] or [0]
                    .Arg<Buffer<f::F32>>()   // bias [outputs] or [0]
                    .Arg<Buffer<f::F32>>()   // residual [tokens, outputs] or [0]
                    .Arg<Buffer<f::F32>>()   // norm of the result before the residual [outputs] or [0]
                    .Arg<Buffer<f::S32>>()   // rows that are not padding [1]
                    .Attr<int64_t>("outputs")
                    .Attr<int64_t>("columns")
                    .Attr<int64_t>("activation")
                    .Attr<float>("eps")
                    .Ret<Buffer<f::F32>>());

HEADRACE_TARGET(headrace_embed, headrace::embed,
                f::Ffi::Bind()
                    .Ctx<f::ThreadPool>()
                    .Arg<Buffer<f::S32>>()  // ids [tokens]
                    .Arg<Buffer<f::U8>>()
                    .Arg<Buffer<f::S32>>()
                    .Arg<Buffer<f::S32>>()  // rows that are not padding [1]
                    .Ret<Buffer<f::F32>>());
