// What handlers have in common: XLA's thread pool as a Pool.
#pragma once

#include <algorithm>
#include <new>

#include "team.h"
#include "xla/ffi/api/ffi.h"

namespace headrace {

namespace ffi = xla::ffi;

inline Pool pool_of(ffi::ThreadPool& threads) {
  // XLA says 0 where it cannot tell.
  return {std::max(1, int(threads.num_threads())), [&threads](std::function<void()> task) { threads.Schedule(std::move(task)); }};
}

// What a call needs may not be there; that is an error of the step, not of the process.
template <class Call> inline ffi::Error guarded(Call call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "headrace: no memory for a native kernel");
  }
}

// An optional array: null where it has no elements.
template <class Buffer> inline auto* optional(Buffer& buffer) {
  return buffer.element_count() == 0 ? nullptr : buffer.typed_data();
}

}  // namespace headrace
