// Packing of weights, for Python by ctypes.
#include "pack.h"

#define HEADRACE_API extern "C" __attribute__((visibility("default")))

// See pack.h.
HEADRACE_API int64_t headrace_panel_bytes(int id, int64_t columns) { return headrace::panel_bytes(id, columns); }

HEADRACE_API void headrace_pack_rows(int id, const uint8_t* rows, int64_t outputs, int64_t columns, uint8_t* panels) {
  headrace::pack_rows_of_file(id, rows, outputs, columns, panels);
}

HEADRACE_API void headrace_pack_int8(const int8_t* values, const float* scales, int64_t outputs, int64_t columns,
                                     uint8_t* panels) {
  headrace::pack_int8(values, scales, outputs, columns, panels);
}
