// The products of a decoder with what stands before and after them: norm, product, activation, bias, norm, residual.
#include <algorithm>
#include <utility>

#include "../kernels.h"
#include "../pack.h"
#include "../packing.h"
#include "../scratch.h"
#include "call.h"
#include "target.h"

namespace headrace {
namespace {

constexpr int64_t kSerialElements = 2048;  // below this, a norm of rows is quicker alone than shared out
constexpr int64_t kTileRows = 48;          // of a tile at most; a thread needs two of them to work on rows of its own

// A product and what stands around it.
struct Stage {
  Matrix matrix;
  Activation activation;
  const float *norm, *bias, *post_norm;  // each or null
  float eps;

  int64_t width() const { return activation == Activation::kNone ? matrix.outputs : matrix.outputs / 2; }
};

// x [count, columns] -> y [count, width], to which residual, if any, is added last.
void run(const Pool& pool, const Kernels& k, const Stage& s, const float* x, const float* residual, int64_t count, float* y) {
  const Matrix& m = s.matrix;
  const Packing packing(pool, k, {x, count, m.columns, s.norm, s.eps, is_dense(m.format(0)), nullptr});
  const bool past_caches = Packing::past_caches(pool, count, s.width(), y);
  const Product product{m, {}, s.activation, s.bias, s.post_norm == nullptr ? residual : nullptr, y, past_caches};
  // A few parts for each thread, so that one that is held up does not hold up the others.
  const int64_t units = product.units(), parts = std::min<int64_t>(units, int64_t(pool.num_threads) * 6);
  for_all(pool, parts, [&](int64_t i) {
    Product part = product;
    part.rows = packing.rows();
    k.multiply(part, units * i / parts, units * (i + 1) / parts);
  });
  if (s.post_norm == nullptr) return;
  const int64_t width = s.width(), shares = std::min<int64_t>(count, count * width <= kSerialElements ? 1 : pool.num_threads * 4);
  for_all(pool, shares, [&](int64_t i) {
    struct Row {};
    float* buffer = reinterpret_cast<float*>(scratch<Row>(size_t(width) * 4));
    for (int64_t r = count * i / shares; r < count * (i + 1) / shares; r++)
      k.add_norm(residual + r * width, s.post_norm, s.eps, width, y + r * width, buffer);
  });
}

// body(pool, first row, end) over all rows: at once with all threads, or, of many rows, for tiles that a thread has to
// itself and that stay in its cache from stage to stage.
template <class Body> void by_rows(const Pool& pool, int64_t count, Body body) {
  const int64_t threads = pool.num_threads;
  if (threads == 1 || count < 2 * kTileRows * threads) return body(pool, int64_t{0}, count);
  const int64_t tiles = threads * ((count + threads * kTileRows - 1) / (threads * kTileRows));
  const Pool alone{1, pool.schedule};
  auto border = [&](int64_t i) { return i == tiles ? count : count * i / tiles / 8 * 8; };  // whole blocks of rows
  for_all(pool, tiles, [&](int64_t i) { body(alone, border(i), border(i + 1)); });
}

// The table of a matrix's panels, from runs of panels that lie one after the other: (first byte / 32, panels, FormatId) each.
// Of a pair of matrices the panels are taken in turn. Null where the runs do not describe `outputs` rows within the data.
// It lasts until the thread asks for the same Tag's again.
template <class Tag> const int32_t* table_of(ffi::AnyBuffer data, ffi::Span<const int64_t> runs, int64_t outputs, int64_t columns, bool paired) {
  int64_t panels = (outputs + kPanel - 1) / kPanel, all = 0;
  for (size_t i = 0; i + 2 < runs.size(); i += 3) all += runs[i + 1];
  if (runs.size() % 3 != 0 || all != panels || (paired && panels % 2 != 0)) return nullptr;
  int32_t* table = reinterpret_cast<int32_t*>(scratch<Tag>(size_t(panels) * 8));
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

bool fits(const ffi::Buffer<ffi::F32>& b, int64_t count) { return b.element_count() == 0 || int64_t(b.element_count()) == count; }

const char* const kBadArrays = "headrace: the arrays around a product do not fit it";
const char* const kBadColumns = "headrace: a quantised matrix must have a multiple of 32 columns";
const char* const kBadRuns = "headrace: the runs of a packed matrix do not fit its data";

ffi::Error linear(ffi::ThreadPool threads, ffi::Buffer<ffi::F32> x, ffi::AnyBuffer data, ffi::Buffer<ffi::F32> norm,
                  ffi::Buffer<ffi::F32> bias, ffi::Buffer<ffi::F32> residual, ffi::Buffer<ffi::F32> post_norm,
                  ffi::Buffer<ffi::S32> num_rows, ffi::Span<const int64_t> runs, int64_t outputs, int64_t columns,
                  int64_t activation, float eps, ffi::ResultBuffer<ffi::F32> y) {
  return guarded([&]() -> ffi::Error {
    struct Table {};
    const int32_t* table = table_of<Table>(data, runs, outputs, columns, activation != 0);
    if (table == nullptr) return ffi::Error::InvalidArgument(kBadRuns);
    const int64_t width = activation != 0 ? outputs / 2 : outputs, size = x.dimensions()[0] * width;
    if (x.dimensions().size() != 2 || x.dimensions()[1] != columns || int64_t(y->element_count()) != size ||
        !fits(norm, columns) || !fits(bias, width) || !fits(residual, size) || !fits(post_norm, width) ||
        (post_norm.element_count() != 0 && residual.element_count() != size_t(size)))
      return ffi::Error::InvalidArgument(kBadArrays);
    if (!is_dense(int(runs[2])) && columns % kGroup != 0) return ffi::Error::InvalidArgument(kBadColumns);
    const Stage stage{{static_cast<const uint8_t*>(data.untyped_data()), table, outputs, columns}, Activation(activation),
                      optional(norm), optional(bias), optional(post_norm), eps};
    const int64_t count = std::clamp<int64_t>(num_rows.typed_data()[0], 0, x.dimensions()[0]);
    const float *in = x.typed_data(), *added = optional(residual);
    float* out = y->typed_data();
    by_rows(pool_of(threads), count, [&](const Pool& pool, int64_t begin, int64_t end) {
      run(pool, kernels(), stage, in + begin * columns, added == nullptr ? nullptr : added + begin * width, end - begin,
          out + begin * width);
    });
    return ffi::Error::Success();
  });
}

// What follows the attention h of a layer: x + h o', then x + the gated product with gate, up and down.
ffi::Error feed_forward(ffi::ThreadPool threads, ffi::Buffer<ffi::F32> h, ffi::Buffer<ffi::F32> x, ffi::AnyBuffer o,
                        ffi::Buffer<ffi::F32> o_bias, ffi::Buffer<ffi::F32> o_post_norm, ffi::Buffer<ffi::F32> norm,
                        ffi::AnyBuffer gate_up, ffi::AnyBuffer down, ffi::Buffer<ffi::F32> post_norm, ffi::Buffer<ffi::S32> num_rows,
                        ffi::Span<const int64_t> o_runs, ffi::Span<const int64_t> gate_up_runs, ffi::Span<const int64_t> down_runs,
                        int64_t inner, int64_t activation, float eps, ffi::ResultBuffer<ffi::F32> y) {
  return guarded([&]() -> ffi::Error {
    if (h.dimensions().size() != 2 || x.dimensions().size() != 2) return ffi::Error::InvalidArgument(kBadArrays);
    const int64_t wide = h.dimensions()[1], hidden = x.dimensions()[1];
    struct First {};
    struct Second {};
    struct Third {};
    const int32_t *first = table_of<First>(o, o_runs, hidden, wide, false),
                  *second = table_of<Second>(gate_up, gate_up_runs, 2 * inner, hidden, true),
                  *third = table_of<Third>(down, down_runs, hidden, inner, false);
    if (first == nullptr || second == nullptr || third == nullptr) return ffi::Error::InvalidArgument(kBadRuns);
    if (h.dimensions()[0] != x.dimensions()[0] || y->element_count() != x.element_count() || !fits(o_bias, hidden) ||
        !fits(o_post_norm, hidden) || !fits(norm, hidden) || !fits(post_norm, hidden))
      return ffi::Error::InvalidArgument(kBadArrays);
    for (auto [id, columns] : {std::pair{o_runs[2], wide}, {gate_up_runs[2], hidden}, {down_runs[2], inner}})
      if (!is_dense(int(id)) && columns % kGroup != 0) return ffi::Error::InvalidArgument(kBadColumns);
    auto matrix = [](ffi::AnyBuffer& data, const int32_t* table, int64_t outputs, int64_t columns) {
      return Matrix{static_cast<const uint8_t*>(data.untyped_data()), table, outputs, columns};
    };
    const Stage output{matrix(o, first, hidden, wide), Activation::kNone, nullptr, optional(o_bias), optional(o_post_norm), eps};
    const Stage gated{matrix(gate_up, second, 2 * inner, hidden), Activation(activation), optional(norm), nullptr, nullptr, eps};
    const Stage last{matrix(down, third, hidden, inner), Activation::kNone, nullptr, nullptr, optional(post_norm), eps};
    const int64_t count = std::clamp<int64_t>(num_rows.typed_data()[0], 0, x.dimensions()[0]);
    by_rows(pool_of(threads), count, [&](const Pool& pool, int64_t begin, int64_t end) {
      struct Middle {};
      struct Inner {};
      float* middle = reinterpret_cast<float*>(scratch<Middle>(size_t((end - begin) * hidden) * 4));
      float* gates = reinterpret_cast<float*>(scratch<Inner>(size_t((end - begin) * inner) * 4));
      run(pool, kernels(), output, h.typed_data() + begin * wide, x.typed_data() + begin * hidden, end - begin, middle);
      run(pool, kernels(), gated, middle, nullptr, end - begin, gates);
      run(pool, kernels(), last, gates, middle, end - begin, y->typed_data() + begin * hidden);
    });
    return ffi::Error::Success();
  });
}

ffi::Error embed(ffi::ThreadPool threads, ffi::Buffer<ffi::S32> ids, ffi::AnyBuffer data, ffi::Buffer<ffi::S32> num_rows,
                 ffi::Span<const int64_t> runs, int64_t outputs, ffi::ResultBuffer<ffi::F32> y) {
  return guarded([&]() -> ffi::Error {
    int64_t columns = y->dimensions()[1];
    struct Table {};
    const int32_t* table = table_of<Table>(data, runs, outputs, columns, false);
    if (table == nullptr) return ffi::Error::InvalidArgument(kBadRuns);
    Matrix matrix{static_cast<const uint8_t*>(data.untyped_data()), table, outputs, columns};
    int64_t count = std::clamp<int64_t>(num_rows.typed_data()[0], 0, ids.dimensions()[0]);
    for_all(pool_of(threads), count, [&](int64_t i) {
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

HEADRACE_TARGET(headrace_feed_forward, headrace::feed_forward,
                f::Ffi::Bind()
                    .Ctx<f::ThreadPool>()
                    .Arg<Buffer<f::F32>>()   // h [tokens, heads * head_dim]
                    .Arg<Buffer<f::F32>>()   // x [tokens, hidden]
                    .Arg<f::AnyBuffer>()     // o
                    .Arg<Buffer<f::F32>>()   // its bias [hidden] or [0]
                    .Arg<Buffer<f::F32>>()   // norm of its result [hidden] or [0]
                    .Arg<Buffer<f::F32>>()   // norm before gate and up [hidden] or [0]
                    .Arg<f::AnyBuffer>()     // gate and up
                    .Arg<f::AnyBuffer>()     // down
                    .Arg<Buffer<f::F32>>()   // norm of its result [hidden] or [0]
                    .Arg<Buffer<f::S32>>()   // rows that are not padding [1]
                    .Attr<f::Span<const int64_t>>("o_runs")
                    .Attr<f::Span<const int64_t>>("gate_up_runs")
                    .Attr<f::Span<const int64_t>>("down_runs")
                    .Attr<int64_t>("inner")
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
