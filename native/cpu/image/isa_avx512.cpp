// Kernels over images for avx512. Flags: native/isa.cmake.
#if defined(__x86_64__)
#define RB_NS avx512
#define RB_VEC "cpu/vec_avx512.h"
#include "cpu/image/all.h"
#endif
