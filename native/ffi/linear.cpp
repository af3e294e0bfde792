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
    float* buffer = reinterpret_cast<float*>(scratch<Row>(size_t(pack_buffer(rows.columns)) * 4));
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

// The table of a matrix's panels, from runs of panels that lie one after the other: (first byte / 32, panels, FormatId) each.
// Of a pair of matrices the panels are taken in turn. Null where the runs do not describe `outputs` rows within the data.
const int32_t* table_of(ffi::AnyBuffer data, ffi::Span<const int64_t> runs, int64_t outputs, int64_t columns, bool paired) {
  int64_t panels = (outputs + kPanel - 1) / kPanel, all = 0;
  for (size_t i = 0; i + 2 < runs.size(); i += 3) all += runs[i + 1];
  if (runs.size() % 3 != 0 || all != panels || (paired && panels % 2 != 0)) return nullptr;
  struct Table {};
  int32_t* table = reinterpret_cast<int32_t*>(scratch<Table>(size_t(panels) * 8));
  int64_t at = 0;
  for (size_t i = 0; i < runs.size(); i += 3) {
    int64_t first = runs[i], count = runs[i + 1], id = runs[i + 2];
    if (id < 0 || id > kFloat32 || first < 0 || count < 0 || is_dense(int(id)) != is_dense(int(runs[2]))) return nullptr;
    int64_t size = panel_bytes(int(id), columns);
    if (size <= 0 || size % 32 != 0 || first * 32 + count * size > int64_t(data.size_bytes())) return nullptr;
    for (int64_t p = 0; p < count; p++, at++) {
      int64_t place = paired ? (at < panels / 2 ? 2 * at : 2 * (at - panels / 2) + 1) : at;
      table[2 * place] = int32_t(first + p * (size / 32)), table[2 * place + 1] = int32_t(id);
    }
  }
  return table;
}

const char* const kBadRuns = "headrace: the runs of a packed matrix do not fit its data";

ffi::Error linear(ffi::ThreadPool threads, ffi::Buffer<ffi::F32> x, ffi::AnyBuffer data, ffi::Buffer<ffi::F32> norm,
                  ffi::Buffer<ffi::F32> bias, ffi::Buffer<ffi::F32> residual, ffi::Buffer<ffi::F32> post_norm,
                  ffi::Buffer<ffi::S32> num_rows, ffi::Span<const int64_t> runs, int64_t outputs, int64_t columns,
                  int64_t activation, float eps, ffi::ResultBuffer<ffi::F32> y) {
  return guarded([&]() -> ffi::Error {
    const Kernels& k = kernels();
    Pool pool = pool_of(threads);
    const int32_t* table = table_of(data, runs, outputs, columns, activation != 0);
    if (table == nullptr) return ffi::Error::InvalidArgument(kBadRuns);
    int64_t width = activation != 0 ? outputs / 2 : outputs, size = x.dimensions()[0] * width;
    auto fits = [](const ffi::Buffer<ffi::F32>& b, int64_t count) { return b.element_count() == 0 || int64_t(b.element_count()) == count; };
    if (x.dimensions().size() != 2 || x.dimensions()[1] != columns || int64_t(y->element_count()) != size ||
        !fits(norm, columns) || !fits(bias, width) || !fits(residual, size) || !fits(post_norm, width) ||
        (post_norm.element_count() != 0 && residual.element_count() != size_t(size)))
      return ffi::Error::InvalidArgument("headrace: the arrays around a product do not fit it");
    if (!is_dense(int(runs[2])) && columns % kGroup != 0)
      return ffi::Error::InvalidArgument("headrace: a quantised matrix must have a multiple of 32 columns");
    Matrix matrix{static_cast<const uint8_t*>(data.untyped_data()), table, outputs, columns};
    int64_t count = std::clamp<int64_t>(num_rows.typed_data()[0], 0, x.dimensions()[0]);
    Rows rows{x.typed_data(), count, columns, optional(norm), eps, is_dense(matrix.format(0)), nullptr};
    struct Packed {};
    rows.packed = scratch<Packed>(size_t(rows.row_bytes() * count) + 64);
    pack_all(pool, k, rows);
    const float *last = optional(post_norm), *added = optional(residual);
    Product product{matrix, rows, Activation(activation), optional(bias), last == nullptr ? added : nullptr, y->typed_data()};
    multiply_all(pool, k, product);
    if (last != nullptr) {
      int64_t parts = std::min<int64_t>(count, count * width <= kSerialElements ? 1 : pool.num_threads * 4);
      parallel_for(pool, parts, [&](int64_t i) {
        struct Row {};
        float* buffer = reinterpret_cast<float*>(scratch<Row>(size_t(width) * 4));
        for (int64_t r = count * i / parts; r < count * (i + 1) / parts; r++)
          k.add_norm(added + r * width, last, eps, width, product.y + r * width, buffer);
      });
    }
    return ffi::Error::Success();
  });
}

ffi::Error embed(ffi::ThreadPool threads, ffi::Buffer<ffi::S32> ids, ffi::AnyBuffer data, ffi::Buffer<ffi::S32> num_rows,
                 ffi::Span<const int64_t> runs, int64_t outputs, ffi::ResultBuffer<ffi::F32> y) {
  return guarded([&]() -> ffi::Error {
    int64_t columns = y->dimensions()[1];
    const int32_t* table = table_of(data, runs, outputs, columns, false);
    if (table == nullptr) return ffi::Error::InvalidArgument(kBadRuns);
    Matrix matrix{static_cast<const uint8_t*>(data.untyped_data()), table, outputs, columns};
    int64_t count = std::clamp<int64_t>(num_rows.typed_data()[0], 0, ids.dimensions()[0]);
    parallel_for(pool_of(threads), count, [&](int64_t i) {
      int64_t id = std::clamp<int64_t>(ids.typed_data()[i], 0, outputs - 1);
      unpack_row(matrix.format(id / kPanel), matrix.panel(id / kPanel), int(id % kPanel), columns, y->typed_data() + i * columns);
    });
    return ffi::Error::Success();
  });
}

}  // namespace
}  // namespace headrace

using headrace::ffi::Buffer;
namespace f = headrace::ffi;

HEADRACE_TARGET(headrace_linear, headrace::linear,
                f::Ffi::Bind()
                    .Ctx<f::ThreadPool>()
                    .Arg<Buffer<f::F32>>()   // x [tokens, columns]
                    .Arg<f::AnyBuffer>()     // data
                    .Arg<Buffer<f::F32>>()   // norm [columns] or [0]
                    .Arg<Buffer<f::F32>>()   // bias [outputs] or [0]
                    .Arg<Buffer<f::F32>>()   // residual [tokens, outputs] or [0]
                    .Arg<Buffer<f::F32>>()   // norm of the result before the residual [outputs] or [0]
                    .Arg<Buffer<f::S32>>()   // rows that are not padding [1]
                    .Attr<f::Span<const int64_t>>("runs")
                    .Attr<int64_t>("outputs")
                    .Attr<int64_t>("columns")
                    .Attr<int64_t>("activation")
                    .Attr<float>("eps")
                    .Ret<Buffer<f::F32>>());

HEADRACE_TARGET(headrace_embed, headrace::embed,
                f::Ffi::Bind()
                    .Ctx<f::ThreadPool>()
                    .Arg<Buffer<f::S32>>()  // ids [tokens]
                    .Arg<f::AnyBuffer>()    // data
                    .Arg<Buffer<f::S32>>()  // rows that are not padding [1]
                    .Attr<f::Span<const int64_t>>("runs")
                    .Attr<int64_t>("outputs")
                    .Ret<Buffer<f::F32>>());
