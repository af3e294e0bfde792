// Memory for the length of a call, kept for the thread's next call: fresh memory costs a page fault per 4 KB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace headrace {

// At least `bytes` bytes, aligned to 64, until the thread asks for the same `Tag` again.
template <class Tag> inline uint8_t* scratch(size_t bytes) {
  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };
  thread_local std::unique_ptr<uint8_t, Free> memory;
  thread_local size_t size = 0;
  if (bytes > size) {
    size = (bytes + bytes / 4 + 4095) / 4096 * 4096;
    memory.reset(static_cast<uint8_t*>(std::aligned_alloc(64, size)));
    if (!memory) {
      size = 0;
      throw std::bad_alloc();
    }
  }
  return memory.get();
}

}  // namespace headrace
