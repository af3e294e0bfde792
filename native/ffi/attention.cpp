// Ragged paged attention, all of a layer between its projections.
#include <string>

#include "../kernels.h"
#include "call.h"
#include "target.h"

namespace headrace {
namespace {

using Floats = ffi::Buffer<ffi::F32>;
using Integers = ffi::Buffer<ffi::S32>;

ffi::Error invalid(const std::string& what) { return ffi::Error::InvalidArgument("headrace_attention: " + what); }

ffi::Error run(ffi::ThreadPool threads, Floats qkv, Floats cosines, Floats sines, Floats q_norm, Floats k_norm,
               ffi::AnyBuffer pages, Integers token_rows, Integers positions, Integers write_index, Integers query_start,
               Integers row_slots, Integers page_table, ffi::Result<Floats> out, ffi::Result<ffi::AnyBuffer> new_pages,
               float scale, float softcap, float eps, int32_t window, int32_t page_size, int32_t heads, int32_t kv_heads,
               int32_t dim) {
  AttentionWork w = {};
  w.tokens = int64_t(token_rows.element_count());
  w.rows = int64_t(row_slots.element_count());
  w.slots = page_table.dimensions()[0], w.pages_per_sequence = page_table.dimensions()[1];
  w.num_pages = pages.dimensions()[0];
  w.heads = heads, w.kv_heads = kv_heads, w.dim = dim, w.width = (dim + 31) / 32 * 32, w.page_size = page_size;
  w.bfloat = pages.element_type() == ffi::U16;
  w.window = window, w.scale = scale, w.softcap = softcap, w.eps = eps;
  if (!w.bfloat && pages.element_type() != ffi::F32) return invalid("pages are neither uint16 nor float32");
  if (dim < 2 || dim > kMostDim || dim % 2 != 0 || kv_heads < 1 || heads % kv_heads != 0 || page_size % kLanes != 0) {
    return invalid("no kernel for these heads or pages");
  }
  if (int64_t(qkv.element_count()) != w.tokens * (heads + 2 * kv_heads) * dim) return invalid("qkv does not fit");
  if (int64_t(out->element_count()) != w.tokens * heads * dim) return invalid("out does not fit");
  if (int64_t(pages.size_bytes()) != w.num_pages * kv_heads * 2 * w.part_bytes()) return invalid("pages do not fit");
  if (pages.untyped_data() != new_pages->untyped_data()) return invalid("pages are not updated in place");
  w.qkv = qkv.typed_data(), w.cosines = optional(cosines), w.sines = optional(sines);
  w.q_norm = optional(q_norm), w.k_norm = optional(k_norm);
  w.token_rows = token_rows.typed_data(), w.positions = positions.typed_data();
  w.write_index = write_index.typed_data(), w.query_start = query_start.typed_data();
  w.row_slots = row_slots.typed_data(), w.page_table = page_table.typed_data();
  w.pages = static_cast<char*>(new_pages->untyped_data());
  w.out = out->typed_data();
  return guarded([&] {
    attention(w, kernels().attention, pool_of(threads));
    return ffi::Error::Success();
  });
}

HEADRACE_TARGET(headrace_attention, run,
                ffi::Ffi::Bind()
                    .Ctx<ffi::ThreadPool>()
                    .Arg<Floats>()          // qkv
                    .Arg<Floats>()          // cosines
                    .Arg<Floats>()          // sines
                    .Arg<Floats>()          // q_norm
                    .Arg<Floats>()          // k_norm
                    .Arg<ffi::AnyBuffer>()  // pages
                    .Arg<Integers>()        // token_rows
                    .Arg<Integers>()        // positions
                    .Arg<Integers>()        // write_index
                    .Arg<Integers>()        // query_start
                    .Arg<Integers>()        // row_slots
                    .Arg<Integers>()        // page_table
                    .Ret<Floats>()          // out
                    .Ret<ffi::AnyBuffer>()  // pages
                    .Attr<float>("scale")
                    .Attr<float>("softcap")
                    .Attr<float>("eps")
                    .Attr<int32_t>("window")
                    .Attr<int32_t>("page_size")
                    .Attr<int32_t>("heads")
                    .Attr<int32_t>("kv_heads")
                    .Attr<int32_t>("dim"));

}  // namespace
}  // namespace headrace
