// Which instruction sets there are on this machine, and which of them is used.
#pragma once

namespace headrace {

struct Kernels;

// The tables that were compiled and that this machine can run, best first, ended by null. The last one is scalar.
const Kernels* const* supported();

// Their names, separated by commas.
const char* supported_isas();

// Uses the table of that name, or the best for null, from now on. A table other than scalar must first compute what scalar
// computes; one that does not is passed over, and dispatch_warning() tells. False, and nothing is chosen, for a name that
// is not supported.
bool choose(const char* name);

// Of the last choice; empty if there was nothing to tell.
const char* dispatch_warning();

}  // namespace headrace
