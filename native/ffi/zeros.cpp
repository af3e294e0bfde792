// Zeros that take no memory until they are written to, for pools of which most may never be.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ffi/target.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace headrace {
namespace {

namespace ffi = xla::ffi;

ffi::Error zeros(ffi::Result<ffi::AnyBuffer> out) {
  char* begin = static_cast<char*>(out->untyped_data());
  char* end = begin + out->size_bytes();
#if defined(__linux__)
  // Whole pages are given back to the system, which has zeros there when they are next looked at.
  const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
  char* first = begin + (page - reinterpret_cast<uintptr_t>(begin) % page) % page;
  char* last = end - reinterpret_cast<uintptr_t>(end) % page;
#if defined(MADV_HUGEPAGE)
  // In large pages where the system has them: attention reads a few KB here and there, and would need a translation for
  // each. What is written takes memory 2 MB at a time then.
  if (last - first >= (2 << 20)) madvise(first, size_t(last - first), MADV_HUGEPAGE);
#endif
  if (first < last && madvise(first, size_t(last - first), MADV_DONTNEED) == 0) {
    std::memset(begin, 0, size_t(first - begin));
    std::memset(last, 0, size_t(end - last));
    return ffi::Error::Success();
  }
#endif
  std::memset(begin, 0, size_t(end - begin));
  return ffi::Error::Success();
}

HEADRACE_TARGET(headrace_zeros, zeros, ffi::Ffi::Bind().Ret<ffi::AnyBuffer>());

}  // namespace
}  // namespace headrace
