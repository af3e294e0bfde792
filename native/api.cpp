// What Python calls by ctypes. Strings live as long as the library.
#include "dispatch.h"
#include "ffi/target.h"
#include "kernels.h"

#define HEADRACE_EXPORT extern "C" __attribute__((visibility("default")))

// The instruction sets that were compiled and that this machine has, best first, separated by commas.
HEADRACE_EXPORT const char* headrace_isas() { return headrace::supported_isas(); }

// Chooses an instruction set by name, or the best for null; returns 0 if there is none of that name. Before any kernel runs.
HEADRACE_EXPORT int headrace_choose(const char* name) { return headrace::choose(name); }

// The instruction set whose kernels are used.
HEADRACE_EXPORT const char* headrace_isa() { return headrace::kernels().name; }

// What went wrong when it was chosen; empty if nothing did.
HEADRACE_EXPORT const char* headrace_warning() { return headrace::dispatch_warning(); }

// The i-th FFI handler and, through `name`, what it is called; null after the last.
HEADRACE_EXPORT void* headrace_target(int i, const char** name) {
  const headrace::Target* target = headrace::Target::first();
  for (; target != nullptr && i > 0; i--) target = target->next;
  if (target == nullptr) return nullptr;
  *name = target->name;
  return reinterpret_cast<void*>(target->handler);
}
