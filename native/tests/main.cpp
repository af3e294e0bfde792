// Tests of the native kernels without Python or JAX: all instruction sets that this machine has, against plain C++.
//
//   native_test [shapes] [least]     number of random shapes for each kernel (1000); an instruction set to insist on
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "dispatch.h"
#include "kernels.h"
#include "tests.h"

using namespace headrace;

namespace {

int check_vectors(const char* isa, long cases) {
#if defined(HEADRACE_AVX2)
  if (std::strcmp(isa, "avx2") == 0) return test::check_avx2(cases);
#endif
#if defined(HEADRACE_AVX512)
  if (std::strcmp(isa, "avx512") == 0) return test::check_avx512(cases);
#endif
#if defined(HEADRACE_AVX512_BF16)
  if (std::strcmp(isa, "avx512_bf16") == 0) return test::check_avx512_bf16(cases);
#endif
#if defined(HEADRACE_NEON)
  if (std::strcmp(isa, "neon") == 0) return test::check_neon(cases);
#endif
  return std::strcmp(isa, "scalar") == 0 ? test::check_scalar(cases) : 0;
}

}  // namespace

int main(int count, char** arguments) {
  const long shapes = count > 1 ? std::atol(arguments[1]) : 1000;
  const char* wanted = count > 2 ? arguments[2] : "scalar";
  int failures = 0;
  bool found = false;
  std::printf("instruction sets: %s; in use: %s\n", supported_isas(), kernels().name);
  if (*dispatch_warning() != 0) failures++, std::printf("%s\n", dispatch_warning());
  for (const Kernels* const* t = supported(); *t != nullptr; t++) {
    int vectors = check_vectors((*t)->name, shapes * 20), matmul = test::check_matmul(**t, shapes);
    int attention = test::check_attention(**t, shapes);
    int argmax = test::check_argmax(**t, shapes * 10);
    std::printf("%s: vectors %d, matmul %d, attention %d, argmax %d failures\n", (*t)->name, vectors, matmul, attention, argmax);
    std::fflush(stdout);
    failures += vectors + matmul + attention + argmax + test::check_probe(**t);
#if defined(HEADRACE_AMX)
    if (std::strcmp((*t)->name, "avx512_bf16") == 0) {
      const int tiled = test::check_tiled(shapes);
      std::printf("amx, emulated tiles: %d failures\n", tiled);
      failures += tiled;
    }
#endif
    found = found || std::strcmp((*t)->name, wanted) == 0;
  }
  int team = test::check_team(shapes * 20);
  std::printf("parallel loops: %d failures\n", team);
  if (!found) std::printf("%s is not among the instruction sets\n", wanted);
  return failures + team == 0 && found ? 0 : 1;
}
