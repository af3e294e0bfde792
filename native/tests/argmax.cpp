// The largest of random numbers, ties, zeros of both signs, infinities and NaN among them, against the obvious loop.
#include "argmax.h"

#include <limits>
#include <vector>

#include "check.h"
#include "kernels.h"
#include "tests.h"

namespace headrace::test {

int check_argmax(const Kernels& kernels, long shapes) {
  failures = 0;
  Random random(17);
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (long shape = 0; shape < shapes; shape++) {
    const int64_t n = random.one_in(2) ? random.between(1, 70) : random.between(1, 3000);
    const int kind = random.below(6);
    std::vector<float> x(static_cast<size_t>(n));
    for (float& value : x) {
      value = kind == 0 ? random.real() : float(random.between(-3, 3)) * (random.one_in(2) ? -1.0f : 1.0f);
      if (kind >= 2 && random.one_in(3)) value = -infinity;
      if (kind == 3) value = random.one_in(2) ? 0.0f : -0.0f;
      if (kind == 4) value = -infinity;
    }
    if (kind == 5) x[size_t(random.below(int(n)))] = random.one_in(2) ? nan : infinity;
    Largest want{x[0], 0};
    for (int64_t i = 1; i < n; i++)
      if (x[size_t(i)] > want.value) want = {x[size_t(i)], int32_t(i)};
    for (float value : x)
      if (value != value) want.column = -1;
    const Largest got = kernels.argmax(x.data(), n);
    if (got.column != want.column || (want.column >= 0 && !same(&got.value, &want.value, 1))) fail(kernels.name, "argmax", shape);
  }
  return failures;
}

}  // namespace headrace::test
