// From the rows of a GGUF file's tensor to panels; formats.h says what panels are.
#pragma once

#include <cstdint>

#include "formats.h"

namespace headrace {

// Bytes of a panel of this format and so many columns; 0 where the columns do not fill whole blocks.
int64_t panel_bytes(int id, int64_t columns);

// Packs rows [outputs] of blocks as the file has them (of bfloat16 or float32 elements for the dense formats) to panels,
// one after the other. Outputs missing in the last panel are zeros.
void pack_rows_of_file(int id, const uint8_t* rows, int64_t outputs, int64_t columns, uint8_t* panels);

// The same for int8 [outputs, columns] with a scale per output. Columns are filled up with zeros to whole groups.
void pack_int8(const int8_t* values, const float* scales, int64_t outputs, int64_t columns, uint8_t* panels);

// One row (0 … 15) of a packed panel as floats [columns].
void unpack_row(int id, const uint8_t* panel, int row, int64_t columns, float* y);

}  // namespace headrace
