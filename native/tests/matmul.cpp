// Products of random shapes: each instruction set against plain C++ bit for bit, and plain C++ against float64.
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "check.h"
#include "kernels.h"
#include "pack.h"
#include "packing.h"
#include "pool.h"
#include "scratch.h"
#include "simd/scalar.h"
#include "tests.h"

namespace headrace::test {
namespace {

// Bytes of a block in a GGUF file, its elements, and where its halves are.
struct FileBlock {
  int bytes, elements, halves, first_half;
};

constexpr FileBlock kFileBlocks[] = {{18, 32, 1, 0},  {20, 32, 2, 0},   {22, 32, 1, 0},   {24, 32, 2, 0},
                                     {34, 32, 1, 0},  {144, 256, 2, 0}, {176, 256, 2, 0}, {210, 256, 1, 208}};

uint16_t half(Random& r) {  // magnitudes of 2^-11 to 2, either sign
  return uint16_t(r.below(2) << 15 | r.between(4, 15) << 10 | r.below(1024));
}

// Memory of just this size, so that AddressSanitizer sees whoever goes beyond.
struct Bytes {
  std::unique_ptr<uint8_t[]> memory;
  size_t size = 0;

  explicit Bytes(size_t size) : memory(new uint8_t[size]()), size(size) {}
  uint8_t* get() const { return memory.get(); }
};

struct Case {
  int64_t rows, columns, outputs;
  Activation activation;
  bool dense;
  std::vector<float> x, norm, bias, residual;
  std::vector<int32_t> table;
  std::shared_ptr<uint8_t[]> panels;

  int64_t width() const { return activation == Activation::kNone ? outputs : outputs / 2; }
};

void random_panel(Random& r, int id, int64_t columns, uint8_t* panel) {
  if (is_dense(id)) {
    Bytes file(size_t(kPanel * columns) * (id == kFloat32 ? 4 : 2));
    for (int64_t i = 0; i < kPanel * columns; i++) {
      float value = r.real();
      uint16_t high = uint16_t(float_to_bfloat(value));
      std::memcpy(file.get() + i * (id == kFloat32 ? 4 : 2), id == kFloat32 ? (void*)&value : (void*)&high, id == kFloat32 ? 4 : 2);
    }
    pack_rows_of_file(id, file.get(), kPanel, columns, panel);
  } else if (id == kInt8) {
    std::vector<int8_t> values(size_t(kPanel * columns));
    float scales[kPanel];
    for (int8_t& value : values) value = int8_t(r.between(-127, 127));
    for (float& scale : scales) scale = r.real();
    pack_int8(values.data(), scales, kPanel, columns, panel);
  } else {
    const FileBlock& form = kFileBlocks[id];
    Bytes file(size_t(kPanel * columns / form.elements * form.bytes));
    for (size_t i = 0; i < file.size; i++) file.get()[i] = uint8_t(r.next());
    for (size_t at = size_t(form.first_half); at < file.size; at += size_t(form.bytes)) {
      uint16_t halves[2] = {half(r), half(r)};
      std::memcpy(file.get() + at, halves, 2 * size_t(form.halves));
    }
    pack_rows_of_file(id, file.get(), kPanel, columns, panel);
  }
}

Case random_case(Random& r) {
  Case c{};
  c.rows = r.one_in(4) ? r.between(1, 70) : r.between(1, 9);
  c.dense = r.one_in(4);
  c.columns = c.dense ? r.between(1, 70) : r.one_in(2) ? 32 * r.between(1, 9) : 256 * r.between(1, 3);
  c.activation = Activation(r.one_in(2) ? 0 : r.between(1, 2));
  c.outputs = c.activation == Activation::kNone ? r.between(1, 70) : 32 * r.between(1, 3);
  int64_t count = (c.outputs + kPanel - 1) / kPanel, bytes = 0;
  const int dense = r.one_in(2) ? kBfloat16 : kFloat32;
  for (int64_t i = 0; i < count; i++) {
    int id = c.dense ? dense : r.below(kInt8 + 1);
    while (!c.dense && c.columns % 256 != 0 && (id == kQ4_K || id == kQ5_K || id == kQ6_K)) id = r.below(kInt8 + 1);
    c.table.push_back(int32_t(bytes / 32)), c.table.push_back(id);
    bytes += panel_bytes(id, c.columns);
  }
  c.panels.reset(new uint8_t[size_t(bytes)]());
  for (int64_t i = 0; i < count; i++) {
    random_panel(r, c.table[size_t(2 * i + 1)], c.columns, c.panels.get() + int64_t(c.table[size_t(2 * i)]) * 32);
  }
  auto fill = [&r](std::vector<float>& to, int64_t n, bool wanted) {
    if (wanted) to.resize(size_t(n));
    for (float& value : to) value = 4 * r.real();
  };
  fill(c.x, c.rows * c.columns, true);
  if (r.one_in(3)) {  // rows of zeros, tiny and huge numbers
    for (int64_t i = 0; i < c.columns; i++) c.x[size_t(i)] *= r.one_in(2) ? 0.0f : r.one_in(2) ? 1e-36f : 1e20f;
  }
  if (r.one_in(16)) c.x[size_t(r.below(int(c.x.size())))] = r.one_in(2) ? INFINITY : -NAN;
  fill(c.norm, c.columns, r.one_in(2)), fill(c.bias, c.width(), r.one_in(2)), fill(c.residual, c.rows * c.width(), r.one_in(2));
  return c;
}

const float* pointer(const std::vector<float>& v) { return v.empty() ? nullptr : v.data(); }

Rows rows_of(const Case& c) { return {c.x.data(), c.rows, c.columns, pointer(c.norm), 1e-5f, c.dense, nullptr}; }

Product product_of(const Case& c, std::vector<float>& y) {
  y.assign(size_t(c.rows * c.width()), -1.0f);
  return {{c.panels.get(), c.table.data(), c.outputs, c.columns}, {}, c.activation, pointer(c.bias), pointer(c.residual), y.data(), false};
}

std::vector<float> product(const Kernels& k, const Case& c, int64_t parts) {
  std::vector<float> y, buffer(static_cast<size_t>(pack_buffer(c.columns)));
  Rows rows = rows_of(c);
  Bytes packed(size_t(rows.row_bytes() * c.rows) + 64);
  rows.packed = packed.get();
  for (int64_t i = 0; i < parts; i++) k.pack_rows(rows, c.rows * i / parts, c.rows * (i + 1) / parts, buffer.data());
  Product p = product_of(c, y);
  p.rows = rows;
  for (int64_t i = 0; i < parts; i++) k.multiply(p, p.units() * i / parts, p.units() * (i + 1) / parts);
  return y;
}

// The same on several threads, which pack rows for themselves or for each other.
std::vector<float> shared_product(const Kernels& k, const Case& c, const Pool& pool, int64_t parts) {
  struct Results {};
  std::vector<float> y;
  const Packing packing(pool, k, rows_of(c));
  Product whole = product_of(c, y);
  whole.y = reinterpret_cast<float*>(scratch<Results>(y.size() * 4));
  whole.past_caches = c.width() % kPanel == 0;
  for_all(pool, parts, [&](int64_t i) {
    Product p = whole;
    p.rows = packing.rows();
    k.multiply(p, p.units() * i / parts, p.units() * (i + 1) / parts);
  });
  std::memcpy(y.data(), whole.y, y.size() * 4);
  return y;
}

// What the quants of 16 inputs are worth: the row's largest magnitude / 127, halved as often as they allow.
double quant_worth(const float* x, int64_t n, double most) {
  double largest = 0;
  for (int64_t i = 0; i < n; i++) largest = std::fmax(largest, std::fabs(double(x[i])));
  int shift = 0;
  while (shift < kMaxShift && largest <= most / 2) most /= 2, shift++;
  return most / 127;
}

// Of a plain product: the error is at most what rounding activations to 8 bits costs, and that of float sums.
bool near_float64(const Case& c, const std::vector<float>& y) {
  if (c.activation != Activation::kNone || !c.norm.empty()) return true;
  std::vector<float> weights(static_cast<size_t>(c.columns));
  for (int64_t o = 0; o < c.outputs; o++) {
    unpack_row(c.table[size_t(o / kPanel * 2 + 1)], c.panels.get() + int64_t(c.table[size_t(o / kPanel * 2)]) * 32, int(o % kPanel),
               c.columns, weights.data());
    for (int64_t row = 0; row < c.rows; row++) {
      const float* x = c.x.data() + row * c.columns;
      double sum = 0, size = 0, rounding = 0, most = 0, worth = 0;
      for (int64_t k = 0; k < c.columns; k++) most = std::fmax(most, std::fabs(double(x[k])));
      for (int64_t k = 0; k < c.columns; k++) {
        if (!c.dense && k % kHalf == 0) worth = quant_worth(x + k, kHalf, most);
        sum += double(weights[size_t(k)]) * x[k], size += std::fabs(double(weights[size_t(k)]) * x[k]);
        if (!c.dense) rounding += std::fabs(double(weights[size_t(k)])) * (worth / 2 + 1e-30);
      }
      if (!c.bias.empty()) sum += c.bias[size_t(o)], size += std::fabs(c.bias[size_t(o)]);
      if (!c.residual.empty()) sum += c.residual[size_t(row * c.outputs + o)], size += 4;
      const double got = y[size_t(row * c.outputs + o)];
      // A minimum multiplies sums that may cancel, and float sums of 768 numbers are within 1e-4 of their sizes.
      if (std::isfinite(sum) && size < 1e30 && !(std::fabs(got - sum) <= rounding * 1.01 + size * 1e-4 + 1e-25)) return false;
    }
  }
  return true;
}

// Of each format, a product of each number of rows: blocks of all sizes, and what is left over.
void check_row_counts(const Kernels& kernels) {
  Random random(17);
  constexpr int64_t kMost = 70;
  for (int id = 0; id <= kFloat32; id++) {
    Case c{};
    c.rows = kMost, c.columns = 512, c.outputs = kPanel, c.dense = is_dense(id), c.table = {0, id};
    c.panels.reset(new uint8_t[size_t(panel_bytes(id, c.columns))]());
    random_panel(random, id, c.columns, c.panels.get());
    for (int64_t i = 0; i < kMost * c.columns; i++)
      c.x.push_back(random.real() * (random.one_in(3) ? 1.0f : 0.01f));  // shifts of all sizes
    const std::vector<float> want = product(kScalarKernels, c, 1);
    for (c.rows = 1; c.rows <= kMost; c.rows++) {
      const std::vector<float> got = product(kernels, c, 1);
      if (!same(got.data(), want.data(), int64_t(got.size()))) fail(kernels.name, "so many rows", c.rows);
    }
  }
}

}  // namespace

int check_matmul(const Kernels& kernels, long shapes) {
  failures = 0;
  check_row_counts(kernels);
  Random random(11);
  Threads threads(2);
  for (long shape = 0; shape < shapes; shape++) {
    const Case c = random_case(random);
    const std::vector<float> want = product(kScalarKernels, c, 1), got = product(kernels, c, random.between(1, 3));
    if (!same(got.data(), want.data(), int64_t(want.size()))) fail(kernels.name, "matmul", shape);
    const std::vector<float> shared = shared_product(kernels, c, threads.pool(), random.between(1, 6));
    if (!same(shared.data(), want.data(), int64_t(want.size()))) fail(kernels.name, "matmul on three threads", shape);
    if (&kernels == &kScalarKernels && !near_float64(c, got)) fail(kernels.name, "matmul against float64", shape);
    // A row alone has the bits that it has among others.
    Case alone = c;
    const int64_t row = random.below(int(c.rows)), width = c.width();
    alone.rows = 1;
    alone.x.assign(c.x.begin() + row * c.columns, c.x.begin() + (row + 1) * c.columns);
    if (!c.residual.empty()) alone.residual.assign(c.residual.begin() + row * width, c.residual.begin() + (row + 1) * width);
    const std::vector<float> one = product(kernels, alone, 1);
    if (!same(one.data(), got.data() + row * width, width)) fail(kernels.name, "a row alone", shape);
    if (!c.norm.empty() && !c.residual.empty() && c.width() >= c.columns) {
      std::vector<float> y[2] = {c.x, c.x}, buffer(static_cast<size_t>(c.columns));
      kScalarKernels.add_norm(c.residual.data(), c.norm.data(), 1e-5f, c.columns, y[0].data(), buffer.data());
      kernels.add_norm(c.residual.data(), c.norm.data(), 1e-5f, c.columns, y[1].data(), buffer.data());
      if (!same(y[0].data(), y[1].data(), c.columns)) fail(kernels.name, "add_norm", shape);
    }
  }
  return failures;
}

}  // namespace headrace::test
