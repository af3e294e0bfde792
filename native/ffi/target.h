// FFI handlers that Python finds by itself: headrace_target() in api.cpp lists them.
#pragma once

#include "xla/ffi/api/ffi.h"

namespace headrace {

// One handler, in a list of all; objects of static storage only.
struct Target {
  Target(const char* name, XLA_FFI_Handler* handler) : name(name), handler(handler), next(first()) { first() = this; }

  static const Target*& first() {
    static const Target* head = nullptr;
    return head;
  }

  const char* name;
  XLA_FFI_Handler* handler;
  const Target* next;
};

}  // namespace headrace

// Defines the handler `name`, which jax.ffi.ffi_call knows by that name: HEADRACE_TARGET(headrace_x, implementation, binding).
#define HEADRACE_TARGET(name, implementation, ...)                       \
  XLA_FFI_DEFINE_HANDLER(name##_handler, implementation, __VA_ARGS__);   \
  static const ::headrace::Target name##_target(#name, name##_handler)
