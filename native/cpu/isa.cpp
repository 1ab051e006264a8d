// isa.cpp: what this machine can run. Intel SDM vol. 1, 14.3 and 15.2: the CPUID bit of the instructions and, in XCR0, the operating
// system's promise to save the registers.
#include "cpu/tables.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace {

#if defined(__x86_64__)
struct Cpuid {
  unsigned a, b, c, d;
};

Cpuid cpuid(unsigned leaf) {
  Cpuid r{};
  __get_cpuid_count(leaf, 0, &r.a, &r.b, &r.c, &r.d);
  return r;
}

uint64_t xcr0() {
  if ((cpuid(1).c >> 27 & 1) == 0) return 0;  // OSXSAVE
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

bool all(unsigned word, unsigned mask) { return (word & mask) == mask; }

bool has_avx2() {
  constexpr unsigned fma = 1u << 12, avx = 1u << 28, f16c = 1u << 29, avx2 = 1u << 5;
  return (xcr0() & 0x6) == 0x6 && all(cpuid(1).c, fma | avx | f16c) && all(cpuid(7).b, avx2);
}

bool has_avx512() {
  constexpr unsigned f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31, vnni = 1u << 11;
  return has_avx2() && (xcr0() & 0xe6) == 0xe6 && all(cpuid(7).b, f | dq | bw | vl) && all(cpuid(7).c, vnni);
}

bool has_neon() { return false; }
#elif defined(__aarch64__)
bool has_avx2() { return false; }
bool has_avx512() { return false; }
#if defined(__linux__)
bool has_neon() { return (getauxval(AT_HWCAP) >> 20 & 1) != 0; }  // HWCAP_ASIMDDP: the byte dot product
#else
bool has_neon() { return true; }  // every aarch64 Apple machine
#endif
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
bool has_neon() { return false; }
#endif

}  // namespace

extern "C" const rb_kernel* rb_kernels(int32_t isa) {
  switch (isa) {
    case RB_ISA_SCALAR:
      return rb::scalar_table();
    case RB_ISA_AVX2:
      return has_avx2() ? rb::avx2_table() : nullptr;
    case RB_ISA_AVX512:
      return has_avx512() ? rb::avx512_table() : nullptr;
    case RB_ISA_NEON:
      return has_neon() ? rb::neon_table() : nullptr;
    default:
      return nullptr;
  }
}

extern "C" int32_t rb_best_isa(void) {
  constexpr int32_t fastest_first[] = {RB_ISA_AVX512, RB_ISA_AVX2, RB_ISA_NEON};
  for (const int32_t isa : fastest_first) {
    if (rb_kernels(isa) != nullptr) return isa;
  }
  return RB_ISA_SCALAR;
}

extern "C" const char* rb_isa_name(int32_t isa) {
  static constexpr const char* names[RB_ISAS] = {"scalar", "avx2", "avx512", "neon"};
  return isa >= 0 && isa < RB_ISAS ? names[isa] : nullptr;
}
