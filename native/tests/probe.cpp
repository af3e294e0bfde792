// The machine's probes stay within what they are given, and tell what they did.
#include <vector>

#include "check.h"
#include "kernels.h"
#include "tests.h"

namespace headrace::test {

int check_probe(const Kernels& kernels) {
  failures = 0;
  for (int64_t size : {0, 1, 511, 512, 513, 4096, 5000}) {
    const std::vector<uint8_t> bytes(size_t(size), 1);  // of just that size, so that a sanitizer sees a read beyond
    if (kernels.probe.read(bytes.data(), size) != size / 512 * 512) fail(kernels.name, "bytes read", size);
  }
  for (int64_t count : {0, 1, 10000}) {
    for (int64_t done : {kernels.probe.dot(count), kernels.probe.fma(count), kernels.probe.dot_bfloat(count)})
      if (done > count || done + 1024 <= count) fail(kernels.name, "multiply-adds", count);
  }
  return failures;
}

}  // namespace headrace::test
