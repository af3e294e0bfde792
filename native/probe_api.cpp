// The machine's limits, for Python by ctypes; see probe.h. The instruction set is the one in use.
#include "kernels.h"

#define HEADRACE_API extern "C" __attribute__((visibility("default")))

HEADRACE_API int64_t headrace_probe_read(const void* data, int64_t count) { return headrace::kernels().probe.read(data, count); }

HEADRACE_API int64_t headrace_probe_dot(int64_t count) { return headrace::kernels().probe.dot(count); }

HEADRACE_API int64_t headrace_probe_fma(int64_t count) { return headrace::kernels().probe.fma(count); }

HEADRACE_API int64_t headrace_probe_dot_bfloat(int64_t count) { return headrace::kernels().probe.dot_bfloat(count); }
