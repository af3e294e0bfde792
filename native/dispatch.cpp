#include "dispatch.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <string>
#include <vector>

#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace headrace {
namespace {

#if defined(__x86_64__)
struct Leaf {
  uint32_t a = 0, b = 0, c = 0, d = 0;
};

Leaf cpuid(uint32_t leaf, uint32_t subleaf = 0) {
  Leaf r;
  __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);  // leaves it zero where the processor has no such leaf
  return r;
}

bool has(uint32_t word, std::initializer_list<int> bits) {
  for (int bit : bits)
    if (!(word >> bit & 1)) return false;
  return true;
}

// Which registers the operating system saves. Only where cpuid says that there is such an instruction.
uint64_t saved_registers() {
  if (!has(cpuid(1).c, {27})) return 0;
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t(high) << 32 | low;
}

[[maybe_unused]] bool has_avx2() {
  return (saved_registers() & 0x6) == 0x6 && has(cpuid(1).c, {12, 28, 29}) && has(cpuid(7).b, {5});  // FMA, AVX, F16C; AVX2
}

[[maybe_unused]] bool has_avx512() {
  return has_avx2() && (saved_registers() & 0xe6) == 0xe6 && has(cpuid(7).b, {16, 17, 30, 31}) &&  // F, DQ, BW, VL
         has(cpuid(7).c, {11});                                                                    // VNNI
}

[[maybe_unused]] bool has_avx512_bf16() { return has_avx512() && cpuid(7).a >= 1 && has(cpuid(7, 1).a, {5}); }

// The system must save the tiles' registers, and on Linux lets a process use them, with all its threads, only when asked.
[[maybe_unused]] bool has_amx() {
  constexpr uint64_t kSaved = 3u << 17;  // XTILECFG, XTILEDATA
  if (!has_avx512_bf16() || (saved_registers() & kSaved) != kSaved || !has(cpuid(7).d, {24, 25})) return false;  // TILE, INT8
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#elif defined(__aarch64__)
[[maybe_unused]] bool has_neon() {
#if defined(__linux__)
  constexpr unsigned long kDotProduct = 1ul << 20;
  return (getauxval(AT_HWCAP) & kDotProduct) != 0;
#else
  return true;  // every Apple processor that runs 64-bit macOS
#endif
}
#endif

std::vector<const Kernels*> find_supported() {
  std::vector<const Kernels*> found;
#if defined(HEADRACE_AMX)
  if (has_amx()) found.push_back(&kAmxKernels);
#endif
#if defined(HEADRACE_AVX512_BF16)
  if (has_avx512_bf16()) found.push_back(&kAvx512Bf16Kernels);
#endif
#if defined(HEADRACE_AVX512)
  if (has_avx512()) found.push_back(&kAvx512Kernels);
#endif
#if defined(HEADRACE_AVX2)
  if (has_avx2()) found.push_back(&kAvx2Kernels);
#endif
#if defined(HEADRACE_NEON)
  if (has_neon()) found.push_back(&kNeonKernels);
#endif
  found.push_back(&kScalarKernels);
  found.push_back(nullptr);
  return found;
}

std::mutex choosing;
std::atomic<const Kernels*> chosen{nullptr};
std::string warning;

}  // namespace

const Kernels* const* supported() {
  static const std::vector<const Kernels*> tables = find_supported();
  return tables.data();
}

const char* supported_isas() {
  static const std::string names = [] {
    std::string joined;
    for (const Kernels* const* t = supported(); *t; t++) joined += (joined.empty() ? "" : ",") + std::string((*t)->name);
    return joined;
  }();
  return names.c_str();
}

// Not taken unasked: tiles have never run on a processor that has them, and some virtual machines are said to lose them when
// a thread is descheduled, which no check at load can see.
constexpr const char* kOnRequest = "amx";

bool choose(const char* name) {
  std::lock_guard<std::mutex> lock(choosing);
  warning.clear();
  const Kernels* const* t = supported();
  if (name != nullptr) {
    while (*t != nullptr && std::strcmp((*t)->name, name) != 0) t++;
    if (*t == nullptr) return false;
  } else if (std::strcmp((*t)->name, kOnRequest) == 0) {
    t++;
  }
  const uint64_t expected = kScalarKernels.checksum();
  for (; *t != &kScalarKernels && (*t)->checksum() != expected; t++)
    warning += std::string(warning.empty() ? "" : "; ") + "the " + (*t)->name + " kernels compute other bits than plain code and are not used";
  chosen.store(*t, std::memory_order_release);
  return true;
}

const char* dispatch_warning() { return warning.c_str(); }

const Kernels& kernels() {
  const Kernels* table = chosen.load(std::memory_order_acquire);
  if (table == nullptr) {
    choose(nullptr);
    table = chosen.load(std::memory_order_acquire);
  }
  return *table;
}

}  // namespace headrace
